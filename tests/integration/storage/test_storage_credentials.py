"""Where an S3Storage gets its credentials from, each way against a server that checks them."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest

from strata.errors import StoragePermissionError
from strata.storage import RetryPolicy, S3Storage, open_storage, storage_from_env

if TYPE_CHECKING:
    from pathlib import Path

    from strata.storage import Storage
    from tests.testbed.servers import S3Server


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def check_access(storage: Storage) -> None:
    path = f"credentials/{uuid.uuid4().hex}"
    await storage.write(path, b"mine")
    assert await storage.read(path) == b"mine"


async def test_from_the_environment(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    await check_access(S3Storage(s3_server.bucket))
    await check_access(open_storage(f"s3://{s3_server.bucket}/below"))
    monkeypatch.setenv("STORAGE_BACKEND", "s3")
    monkeypatch.setenv("CHECKPOINT_BUCKET", s3_server.bucket)
    await check_access(storage_from_env())


async def test_from_arguments_with_nothing_of_the_environment_mixed_in(
    monkeypatch: pytest.MonkeyPatch, s3_server: S3Server
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    keys = {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    await check_access(S3Storage(s3_server.bucket, "us-east-1", s3_server.endpoint, **keys))
    with pytest.raises(ValueError, match="go together"):
        S3Storage(s3_server.bucket, "us-east-1", s3_server.endpoint, access_key_id="alone")


@pytest.mark.parametrize("how", ["default", "environment", "argument"])
async def test_from_a_profile(monkeypatch: pytest.MonkeyPatch, files: Path, s3_server: S3Server, how: str) -> None:
    name = "default" if how == "default" else "team"
    (files / "credentials").write_text(
        f"[{name}]\naws_access_key_id = {s3_server.access_key}\naws_secret_access_key = {s3_server.secret_key}\n"
    )
    if how == "environment":
        monkeypatch.setenv("AWS_PROFILE", name)
    profile = name if how == "argument" else None
    await check_access(S3Storage(s3_server.bucket, "us-east-1", s3_server.endpoint, profile=profile))


async def test_without_any_the_error_says_so(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> None:
    # Where a machine's role would be asked for, on a port that nobody listens on.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1/metadata/identity")
    quick = RetryPolicy(max_attempts=2, first_backoff_s=0.01, connect_timeout_s=1)
    storage = S3Storage(s3_server.bucket, "us-east-1", s3_server.endpoint, retry=quick)
    with pytest.raises(StoragePermissionError, match="no credentials were found"):
        await storage.write("x", b"1")
