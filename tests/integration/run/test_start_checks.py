"""What `strata run` looks at before any worker starts: whether checkpoints can be written where the settings say."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from strata.config import load_settings
from strata.errors import ConfigError
from strata.run.checkpoint_path import check_checkpoint_store
from strata.storage import S3Storage
from tests.integration.run.test_first_minutes import strata
from tests.testbed.servers import S3Server

pytestmark = [pytest.mark.timeout(200), pytest.mark.part("s3")]


@pytest.fixture
def at_server(monkeypatch: pytest.MonkeyPatch, s3_server: S3Server) -> S3Server:
    monkeypatch.setenv("STORAGE_BACKEND", "s3")
    monkeypatch.setenv("CHECKPOINT_BUCKET", s3_server.bucket)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    return s3_server


async def list_job(server: S3Server, job_id: str) -> list[str]:
    keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    storage = S3Storage(server.bucket, "us-east-1", server.endpoint, **keys)
    return [info.path async for info in storage.list(job_id)]


def check() -> str:
    """Return what is wrong with the store of the environment."""
    with pytest.raises(ConfigError) as refused:
        check_checkpoint_store(load_settings(job_id="start"))
    return str(refused.value)


async def test_a_bucket_that_can_be_written_is_fine_and_stays_empty(at_server: S3Server) -> None:
    await asyncio.to_thread(check_checkpoint_store, load_settings(job_id="start"))
    assert await list_job(at_server, "start") == []


class NoSuchBucket(BaseHTTPRequestHandler):
    """Answers as S3 does for a bucket that is not there; SeaweedFS makes it instead."""

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = _refuse  # noqa: N815 - the names that the server calls

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_bucket_that_is_not_there_is_named(at_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), NoSuchBucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("CHECKPOINT_BUCKET", "no-such-bucket")
        message = check()
        server.shutdown()
    assert "CHECKPOINT_BUCKET='no-such-bucket' (environment): expected a bucket in s3 that can be written" in message
    assert "does not exist" in message


def test_credentials_that_are_wrong_are_said_to_be(at_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    message = check()
    assert f"CHECKPOINT_BUCKET={at_server.bucket!r}" in message
    assert "credentials" in message


def test_no_worker_starts_while_the_store_cannot_be_used(
    at_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    (tmp_path / "train.py").write_text("open('started', 'w').close()\n")
    done = strata(tmp_path, "run", "--standalone", "train.py")
    assert done.returncode == 1
    assert done.stderr.startswith("strata: error: CHECKPOINT_BUCKET=")
    assert not (tmp_path / "started").exists()


def test_a_bucket_must_be_set(at_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKPOINT_BUCKET")
    assert "CHECKPOINT_BUCKET" in check()
