"""A store that restarts costs neither a save nor a restore; one that does not know us says so at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.errors import StoragePermissionError
from strata.storage import S3Storage
from tests.testbed.gateway import Fate, gateway_to
from tests.testbed.process import free_ports
from tests.testbed.servers import S3Server, request, seaweedfs

if TYPE_CHECKING:
    from pathlib import Path

AWAY_S = 20
WAIT_S = 280


def storage_of(server: S3Server, **options: str) -> S3Storage:
    keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key, "endpoint": server.endpoint}
    return S3Storage(server.bucket, "us-east-1", prefix="run", **(keys | options))


@pytest.mark.slow
@pytest.mark.part("s3")
@pytest.mark.timeout(400)
def test_a_store_that_is_away_for_20_seconds_costs_neither_a_save_nor_a_restore(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    ports = free_ports(8)
    small, large = {"w": np.arange(1000.0)}, {"w": np.arange(4_000_000.0)}
    returning, never = threading.Event(), threading.Event()
    with ExitStack() as second, ExitStack() as first, ThreadPoolExecutor(3) as threads:
        server = first.enter_context(seaweedfs(tmp_path, ports))
        saver = CheckpointManager(storage=storage_of(server))
        other = CheckpointManager(storage=storage_of(server), job_id="other")
        fresh = CheckpointManager(storage=storage_of(server))
        saver.save(small, 1)
        first.close()  # killed
        saving = [saver.save_background({"w": np.ones(1000)}, 2), other.save_background(large, 1)]
        restoring = threads.submit(fresh.load, 1)

        def restart() -> None:
            never.wait(AWAY_S)
            returning.set()  # before it starts: the saves may succeed before the server counts as started
            second.enter_context(seaweedfs(tmp_path, ports))

        # In a thread that stays: a server dies with the thread that started it.
        restarting = threads.submit(restart)
        try:
            assert [handle.result(WAIT_S).step for handle in saving] == [2, 1]
            assert np.array_equal(restoring.result(WAIT_S).data["w"], small["w"])
            assert returning.is_set()
            assert np.array_equal(other.load().data["w"], large["w"])
            assert "trying again" in caplog.text
        finally:
            restarting.result(WAIT_S)
            for manager in (saver, other, fresh):
                manager.close(WAIT_S)


@pytest.mark.slow
@pytest.mark.part("s3")
@pytest.mark.timeout(400)
def test_a_store_that_is_killed_in_the_middle_of_an_upload_and_comes_back_costs_no_save(tmp_path: Path) -> None:
    ports = free_ports(8)
    killed, never = threading.Event(), threading.Event()
    state = {"w": np.arange(25_000_000.0)}  # 24 parts
    with ExitStack() as second, ExitStack() as first, ThreadPoolExecutor(1) as threads:
        server = first.enter_context(seaweedfs(tmp_path, ports))
        gateway = first.enter_context(gateway_to(server.endpoint))

        def kill_at_the_tenth_part(method: str, path: str) -> Fate:
            if method == "PUT" and "partNumber=10&" in f"{path}&" and not killed.is_set():
                os.killpg(server.process.pid, signal.SIGKILL)
                killed.set()
            return "pass"

        gateway.decide = kill_at_the_tenth_part

        def restart() -> None:
            assert killed.wait(WAIT_S)
            never.wait(3)
            second.enter_context(seaweedfs(tmp_path, ports))

        restarting = threads.submit(restart)
        with CheckpointManager(storage=storage_of(server, endpoint=gateway.endpoint)) as manager:
            try:
                assert manager.save(state, 1, timeout_s=WAIT_S).committed
            finally:
                restarting.result(WAIT_S)
            assert killed.is_set()
            assert np.array_equal(manager.load(timeout_s=WAIT_S).data["w"], state["w"])


@pytest.mark.part("s3")
def test_a_store_that_forgot_the_parts_of_an_upload_gets_them_again(tmp_path: Path) -> None:
    ports = free_ports(8)
    data = np.random.default_rng(0).bytes(100 << 20)
    forgotten = threading.Event()
    with seaweedfs(tmp_path, ports) as server, gateway_to(server.endpoint) as gateway:
        storage = storage_of(server, endpoint=gateway.endpoint)

        def forget_at_the_last_request(method: str, path: str) -> Fate:
            if method == "POST" and "uploadId=" in path and not forgotten.is_set():
                request("DELETE", f"http://127.0.0.1:{ports[2]}/buckets/strata/.uploads?recursive=true")
                forgotten.set()
            return "pass"

        gateway.decide = forget_at_the_last_request
        asyncio.run(storage.write("model.bin", data))
        assert forgotten.is_set()
        assert asyncio.run(storage.read("model.bin")) == data


@pytest.mark.part("s3")
def test_a_wrong_secret_on_load_is_a_matter_of_permission(s3_server: S3Server) -> None:
    for wrong in ({"secret_access_key": "wrong"}, {"access_key_id": "wrong"}):
        with CheckpointManager(storage=storage_of(s3_server, **wrong)) as manager:
            for act in (manager.load, lambda manager=manager: manager.load(1), manager.all_checkpoints):
                with pytest.raises(StoragePermissionError, match=r"check the credentials|grant these"):
                    act()
