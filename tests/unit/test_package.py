"""The package as others see it: public names, a cheap import, a door text in every room, a typed wheel."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import strata

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "strata"
PUBLIC = {
    "open_dataset",
    "Stopped",
    "Step",
    "Slice",
    "SaveHandle",
    "RunDataset",
    "Run",
    "Mixture",
    "Cadence",
    "AzureStorage",
    "CheckpointManager",
    "ConsistentHash",
    "DatasetRegistry",
    "GCSStorage",
    "LocalStorage",
    "MemoryStorage",
    "Reconfigure",
    "S3Storage",
    "ShardAssignment",
    "ShardManager",
    "StrataError",
    "TrainingOrchestrator",
    "__version__",
    "join",
    "open_storage",
    "storage_from_env",
}
HEAVY = {"torch", "jax", "grpc", "obstore", "numpy", "pydantic", "rich", "typer", "asyncio", "sqlite3"}


def test_the_public_names_are_these() -> None:
    assert set(strata.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(strata, name) is not None


def test_dir_lists_the_public_names_though_they_are_resolved_on_first_use() -> None:
    assert dir(strata) == sorted(PUBLIC)


def test_importing_strata_loads_no_library_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # coverage.py would load libraries of its own before strata is imported.
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    script = (
        "import sys, threading, json; import strata;print(json.dumps([sorted(sys.modules), threading.active_count()]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules, threads = json.loads(done.stdout)
    assert HEAVY.isdisjoint(modules)
    assert threads == 1
    assert done.stderr == ""


def test_a_worker_loads_nothing_of_the_coordinators_http() -> None:
    code = "import sys, strata, strata.run.team.coordinated_team; strata.join, strata.Run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"fastapi", "starlette", "uvicorn", "prometheus_client"} == set()
    assert "strata.coordinator" not in done.stdout


def test_the_version_stands_in_one_place() -> None:
    assert importlib.metadata.version("strata-runtime") == strata.__version__
    elsewhere = [
        path.name
        for path in (ROOT / "pyproject.toml", *SOURCE.rglob("*.py"))
        if f'"{strata.__version__}"' in path.read_text() and path != SOURCE / "__init__.py"
    ]
    assert elsewhere == []


@pytest.mark.full
def test_the_wheel_has_the_type_marker_and_no_tests(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("strata_runtime-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "strata/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "dtruntime",
        "strata",
        f"strata_runtime-{strata.__version__}.dist-info",
    }
