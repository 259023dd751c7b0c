"""Dropout in real processes: bit-identical after kill -9, and with blocks for any number of workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest

from strata.demo.samples import make_dataset
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.full,
    pytest.mark.part("torch"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("whole runs"),
]

WAIT_S = 120.0
UNTIL = 30


class DropoutJob:
    """The processes of one job. Leaving the block kills what is left of them."""

    def __init__(self, folder: Path, *options: str, url: str | None = None, pace_s: float = 0.0) -> None:
        make_dataset(folder / "data", 400)
        (folder / "said").mkdir()
        self._folder, self._url = folder, url
        self._program = ["-m", "tests.testbed.programs.dropout_worker", str(folder), str(UNTIL), str(pace_s), *options]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str, **environment: str) -> None:
        for name in names:
            fields = {"WORKER_ID": name, **environment, **({"COORDINATOR_URL": self._url} if self._url else {})}
            self._start(name, [sys.executable, *self._program], fields)

    def start_launcher(self, *options: str) -> None:
        self._start("launcher", [sys.executable, "-m", "strata", "run", "--standalone", *options, *self._program], {})

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self._folder / "log").open("ab") as log:
            self._processes[name] = start(
                command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
            )

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def said(self) -> list[dict[str, Any]]:
        """All that was said, also by those who died; the last line of one may not be all there yet."""
        lines = [line for path in (self._folder / "said").iterdir() for line in path.read_text().splitlines(True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, holds: Any, what: str) -> None:
        wait_until(holds, lambda: f"{what}\n{self._log()}", timeout_s=WAIT_S)

    def wait_for_step(self, number: int, *, world_size: int) -> None:
        def is_there() -> bool:
            return any(each.get("step", 0) >= number and each["world_size"] == world_size for each in self.said())

        self.wait_for(is_there, f"step {number} of {world_size}")

    def finish(self, *left: str) -> None:
        for name in {*self._processes} - {*left}:
            assert self._processes[name].wait(stretch(WAIT_S)) == 0, self._log()

    def _log(self) -> str:
        return (self._folder / "log").read_text()[-4_000:]

    def losses(self) -> dict[tuple[int, int], set[str]]:
        """All that was said of the loss of each step and rank, also by those who died."""
        found: dict[tuple[int, int], set[str]] = {}
        for each in self.said():
            if "step" in each:
                found.setdefault((each["step"], each["rank"]), set()).add(each["loss"])
        return found

    def weights(self) -> set[str]:
        return {each["weights"] for each in self.said() if "weights" in each}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._processes:
            self.kill(name)


def by_step(losses: dict[tuple[int, int], set[str]]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for (step, _), said in losses.items():
        found.setdefault(step, set()).update(said)
    return found


def test_after_kill_9_under_strata_run_each_step_has_the_loss_of_an_undisturbed_run(tmp_path: Path) -> None:
    with DropoutJob(tmp_path / "whole") as job:
        job.start_launcher("--nproc", "2")
        job.finish()
        expected, weights = job.losses(), job.weights()
    assert len(expected) == 2 * UNTIL
    assert len(weights) == 1
    assert all(len(said) == 1 for said in expected.values())
    with DropoutJob(tmp_path / "killed", pace_s=0.1) as job:
        job.start_launcher("--nproc", "2", "--min", "2", "--max-restarts", "5")
        for number, rank in ((7, 1), (17, 0)):
            job.wait_for(lambda number=number: any(each.get("step", 0) >= number for each in job.said()), "it trains")
            newest = max((each for each in job.said() if each.get("rank") == rank), key=lambda each: each["step"])
            os.kill(newest["pid"], signal.SIGKILL)
        job.finish()
        assert len({each["pid"] for each in job.said() if "pid" in each}) >= 4, "two were killed and replaced"
        assert job.losses() == expected
        assert job.weights() == weights


def test_with_blocks_dropout_is_the_same_for_any_number_of_workers_that_die_and_come(tmp_path: Path) -> None:
    with DropoutJob(tmp_path / "local", "--blocks", "--local") as job:
        job.start("alone")
        job.finish()
        expected, weights = by_step(job.losses()), job.weights()
    assert expected.keys() == {*range(1, UNTIL + 1)}
    assert all(len(said) == 1 for said in expected.values())
    for count in (2, 3, 4):
        folder = tmp_path / str(count)
        with DropoutJob(folder, "--blocks") as job:
            job.start_launcher("--nproc", str(count))
            job.finish()
            assert len(job.losses()) == count * UNTIL
            assert (by_step(job.losses()), job.weights()) == (expected, weights)
    coordinator = CoordinatorProcess(tmp_path, "--lease", "4", "--grace", "1")
    with coordinator.serving(), DropoutJob(tmp_path / "d", "--blocks", url=coordinator.url, pace_s=0.15) as job:
        job.start("a", "b", "c", "d", WORLD_SIZE="4")
        job.wait_for_step(6, world_size=4)
        job.kill("d")
        job.wait_for_step(7, world_size=3)
        job.kill("a")
        job.wait_for_step(12, world_size=2)
        job.start("a")
        job.finish("d")
        assert (by_step(job.losses()), job.weights()) == (expected, weights)
