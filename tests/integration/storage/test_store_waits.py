"""A real store that stops answering is named within seconds: in a worker's log, and on stderr of a command."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.data import open_dataset
from strata.storage import S3Storage
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.servers import seaweedfs
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT_S = 60.0


@pytest.mark.part("s3")
def test_saves_restores_deletions_and_reads_of_data_say_that_they_wait_for_a_frozen_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with seaweedfs(tmp_path) as server, ThreadPoolExecutor(4) as threads:
        keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
        storage = S3Storage(server.bucket, "us-east-1", server.endpoint, **keys)
        where = f"s3://{server.bucket} at {server.endpoint.removeprefix('http://')}"
        with CheckpointManager(storage=storage) as manager, CheckpointManager(storage=storage) as reader:
            for step in (1, 2):
                manager.save({"w": np.full(1000, float(step))}, step)
            reader.load()
            asked: dict[str, Callable[[], object]] = {
                "write default/checkpoints/step_3": lambda: manager.save_background({"w": np.zeros(1000)}, 3).result(
                    WAIT_S
                ),
                "read default/checkpoints/step_2": lambda: reader.load(2),
                "list default/checkpoints": manager.all_checkpoints,
                "list data": lambda: open_dataset("data", storage=storage, batch_size=1),
            }
            for what, ask in asked.items():
                caplog.clear()
                os.killpg(server.process.pid, signal.SIGSTOP)
                try:
                    asking = threads.submit(ask)
                    wait_until(lambda: f"{where}: waiting for 3 s to " in caplog.text, what)
                finally:
                    os.killpg(server.process.pid, signal.SIGCONT)
                asking.exception(stretch(WAIT_S))
                wait_until(lambda: f"{where}: goes on after" in caplog.text, what)


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        pytest.param("ckpt ls {}", marks=pytest.mark.quick),
        "ckpt show {} 1",
        "ckpt delete {} 1 --yes",
        "data index {}",
    ],
)
def test_a_command_says_on_stderr_which_store_it_waits_for(command: str, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # it accepts, and never answers
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        environment = os.environ | keys | {"AWS_ENDPOINT_URL": f"http://{host}"}
        words = command.format("s3://bucket/place").split()
        errors = tmp_path / "errors"
        with (
            errors.open("w") as stderr,
            start([sys.executable, "-m", "strata", *words], env=environment, stderr=stderr) as process,
        ):
            try:
                wait_until(lambda: f"s3://bucket at {host}: waiting for " in errors.read_text(), errors.read_text)
                assert process.poll() is None
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(stretch(5))
                except subprocess.TimeoutExpired:
                    process.kill()
