"""Readers in one process and a writer that keeps one checkpoint in another: every load returns a whole checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.errors import CheckpointNotFoundError
from tests.testbed.process import end, start

if TYPE_CHECKING:
    from tests.testbed.servers import S3Server

pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]

LOADS = 60
WRITER = """
import itertools, sys
import numpy as np
from strata.checkpoint import CheckpointManager

with CheckpointManager(sys.argv[1], keep_count=1) as manager:
    for step in itertools.count(1):
        manager.save({"a": np.full(300_000, step), "b": np.full(7, step)}, step)
        print(step, flush=True)
"""


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.part("s3"))])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the checkpoints are, on a real store."""
    if request.param == "disk":
        return str(tmp_path / "run")
    server: S3Server = request.getfixturevalue("s3_server")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    return f"s3://{server.bucket}/{tmp_path.name}"


def test_readers_find_a_whole_checkpoint_while_another_process_keeps_only_the_newest(place: str) -> None:
    with start(
        [sys.executable, "-c", WRITER, place], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline()
            loaded: set[int] = set()
            gone = 0
            with CheckpointManager(place) as manager:
                for _ in range(LOADS):
                    restored = manager.load()
                    assert not restored.skipped
                    for values in restored.data.values():
                        assert np.all(values == restored.step)
                    loaded.add(restored.step)
                    latest = manager.latest()
                    assert latest is not None
                    try:
                        assert np.all(manager.load(latest.step).data["b"] == latest.step)
                    except CheckpointNotFoundError as error:
                        gone += 1
                        assert error.known, "the error names the steps that there are"
            assert len(loaded) > 1
            assert gone < LOADS
        finally:
            end(writer)
