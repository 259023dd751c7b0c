"""The test bed itself: servers are real, and none outlives its test run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError
from obstore.store import AzureStore, S3Store

from tests.testbed import process
from tests.testbed.process import start
from tests.testbed.servers import request

if TYPE_CHECKING:
    from tests.testbed.servers import AzureServer, EtcdServer, GcsServer, S3Server


def s3_store(server: S3Server, *, secret_key: str | None = None) -> S3Store:
    return S3Store(
        server.bucket,
        endpoint=server.endpoint,
        region="us-east-1",
        access_key_id=server.access_key,
        secret_access_key=secret_key or server.secret_key,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def test_seaweedfs_keeps_objects_and_honours_put_if_absent(s3_server: S3Server) -> None:
    store = s3_store(s3_server)
    obstore.put(store, "testbed/once", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "testbed/once", b"second", mode="create")
    assert obstore.get(store, "testbed/once").bytes() == b"first"


def test_seaweedfs_refuses_a_wrong_secret(s3_server: S3Server) -> None:
    with pytest.raises(PermissionDeniedError):
        obstore.put(s3_store(s3_server, secret_key="wrong"), "testbed/refused", b"x")


def test_rclone_accepts_put_if_absent_and_overwrites_all_the_same(weak_s3_server: S3Server) -> None:
    store = s3_store(weak_s3_server)
    obstore.put(store, "testbed/once", b"first", mode="create")
    obstore.put(store, "testbed/once", b"second", mode="create")
    assert obstore.get(store, "testbed/once").bytes() == b"second"


def test_azurite_keeps_objects_and_honours_put_if_absent(azure_server: AzureServer) -> None:
    store = AzureStore(
        container_name=azure_server.container,
        account_name=azure_server.account,
        account_key=azure_server.key,
        endpoint=azure_server.endpoint,
        client_options={"allow_http": True},
    )
    obstore.put(store, "testbed/once", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "testbed/once", b"second", mode="create")


def test_fake_gcs_has_its_bucket(gcs_server: GcsServer) -> None:
    assert b'"strata"' in request("GET", f"{gcs_server.endpoint}/storage/v1/b/{gcs_server.bucket}")


def test_etcd_is_healthy(etcd_server: EtcdServer) -> None:
    assert b"true" in request("GET", f"{etcd_server.endpoint}/health")


def test_a_server_dies_with_a_killed_test_run(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.testbed.process import running\n"
        "with running(['sleep', '600'], log=Path(sys.argv[1]), is_ready=lambda: True) as server:\n"
        "    print(server.pid, flush=True); sys.stdin.read()\n"
    )
    root = Path(__file__).parents[3]
    run = start(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with run:
        assert run.stdout is not None
        server_pid = int(run.stdout.readline())
        os.kill(server_pid, 0)
        run.kill()
    assert _is_gone(server_pid)


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo the port is taken; exit 3"]
    with (
        pytest.raises(RuntimeError, match=r"ended with 3; the end of its log:\nthe port is taken"),
        process.running(command, log=tmp_path / "log", is_ready=lambda: False),
    ):
        pass


def test_stopping_a_server_stops_its_children(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 600 & echo $!; wait"]
    log = tmp_path / "log"
    with process.running(command, log=log, is_ready=lambda: log.read_text().endswith("\n")):
        child_pid = int(log.read_text())
        os.kill(child_pid, 0)
    assert _is_gone(child_pid)


def _is_gone(pid: int) -> bool:
    """Whether the process ends within a moment; its parent may still have to collect it."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False
