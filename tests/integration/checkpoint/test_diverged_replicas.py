"""Processes of which one holds a corrupt replica: no restart ever goes on from a state that no process held."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.errors import DivergedReplicasWarning
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.programs.replica_worker import weights

pytestmark = pytest.mark.full


def train(folder: Path, ranks: int, steps: int, *, corrupt: str = "", url: str = "") -> list[list[str]]:
    """Run the processes of a job to their end, and return what each printed."""
    command = [sys.executable, "-m", "tests.testbed.programs.replica_worker", str(folder)]
    processes = [
        start([*command, str(rank), str(ranks), str(steps), corrupt, url], stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        printed = [process.communicate(timeout=stretch(60))[0].splitlines() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [lines[-1] for lines in printed] == ["done"] * ranks
    return printed


def commit(folder: Path, *steps: int) -> None:
    with CheckpointManager(folder, keep_count=None) as manager:
        for step in steps:
            manager.commit(step)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_corrupt_replica_committed_by_hand_is_suspect_and_the_job_goes_on_before_it(
    ranks: int, tmp_path: Path
) -> None:
    train(tmp_path, ranks, 3, corrupt="2:1,3:1")
    with pytest.warns(DivergedReplicasWarning):
        commit(tmp_path, 1, 2, 3)
    with CheckpointManager(tmp_path) as manager:
        marks = [info.diverged for info in manager.all_checkpoints()]
        assert [mark is not None and mark.suspect for mark in marks] == [False, True, True]
        restored = manager.load()
    assert (restored.step, restored.diverged, len(restored.skipped)) == (1, None, 2)
    np.testing.assert_array_equal(restored.data["w"], weights(1))
    # The same steps are saved again, by processes that are sound.
    assert [lines[0] for lines in train(tmp_path, ranks, 3)] == ["at 1"] * ranks
    commit(tmp_path, 2, 3)
    with CheckpointManager(tmp_path) as manager:
        restored = manager.load()
        np.testing.assert_array_equal(restored.data["w"], weights(3))
        assert [info.diverged for info in manager.all_checkpoints()] == [None] * 3


@pytest.mark.parametrize(("ranks", "corrupt"), [(3, "2:0,3:1,3:1,4:2"), (5, "2:0,2:1,3:3,3:4")])
def test_a_corrupt_replica_is_repaired_before_the_commit(ranks: int, corrupt: str, tmp_path: Path) -> None:
    service = CoordinatorProcess(tmp_path)
    folder = tmp_path / "checkpoints"
    with service.serving():
        train(folder, ranks, 4, corrupt=corrupt, url=service.url)
    with CheckpointManager(folder) as manager:
        infos = manager.all_checkpoints()
        assert [info.step for info in infos] == [1, 2, 3, 4]
        for info in infos:
            restored = manager.load(info.step)
            np.testing.assert_array_equal(restored.data["w"], weights(info.step), strict=True)
            wrong = {int(each.split(":")[1]) for each in corrupt.split(",") if each.startswith(f"{info.step}:")}
            found = restored.diverged
            assert (set() if found is None else set(found.ranks)) == wrong
            assert found is None or not found.suspect
        assert manager.load().step == 4


def test_two_replicas_that_differ_are_suspect_and_the_job_goes_on_before_them(tmp_path: Path) -> None:
    service = CoordinatorProcess(tmp_path)
    folder = tmp_path / "checkpoints"
    with service.serving():
        train(folder, 2, 3, corrupt="2:1,3:1", url=service.url)
        assert [lines[0] for lines in train(folder, 2, 4, url=service.url)] == ["at 1"] * 2
    with CheckpointManager(folder) as manager:
        assert [info.diverged for info in manager.all_checkpoints()] == [None] * 4
        np.testing.assert_array_equal(manager.load().data["w"], weights(4))
