"""Fixtures for all tests: hypothesis profiles, a clean environment, and one server of each kind per process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from strata.config import FILE_VARIABLE, Settings
from tests.testbed import servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest_plugins = [
    "tests.testbed.plugins.deadlines",
    "tests.testbed.plugins.default_process",
    "tests.testbed.plugins.failures",
    "tests.testbed.plugins.lanes",
    "tests.testbed.plugins.measuring",
    "tests.testbed.plugins.scheduling",
]

# Examples are derandomized where they gate others' work; the deep profile explores.
settings.register_profile("fast", max_examples=60, stateful_step_count=20, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=3_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


LONGEST_NAME = 80
# What clouds, schedulers, launchers and telemetry set for other programs.
FOREIGN = ("AWS_", "AZURE_", "GOOGLE_", "MASTER_", "OTEL_", "SLURM_", "TORCHELASTIC_")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long value by its beginning and its length: some have a megabyte, and logs and xdist repeat each name."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_NAME:
        return f"{val[: LONGEST_NAME // 2]!a}... of {len(val)}"
    return None


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the settings of the machine that it runs on, nor leaves folders of jobs there."""
    ours = {name.upper() for name in (*Settings.model_fields, FILE_VARIABLE)}
    for name in [name for name in os.environ if name in ours or name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("JOBS_PATH", str(tmp_path / "strata-jobs"))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3Server]:
    with servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def weak_s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3Server]:
    with servers.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.AzureServer]:
    with servers.azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.GcsServer]:
    with servers.fake_gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.EtcdServer]:
    with servers.etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server
