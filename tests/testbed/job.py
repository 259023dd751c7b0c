"""A job of real processes (``programs.run_worker``): started, watched, signalled, and ended with the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest

from strata.demo.samples import make_dataset
from strata.run.exits import PREEMPTED
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 120.0
# What holds for each order is shown for one of them, and for the others by ``make test-slow``.
ORDERS = ["global", *(pytest.param(order, marks=pytest.mark.slow) for order in ("sticky", "dynamic"))]


class Worker:
    """One process of the job; what it says is read as it comes."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.said: list[dict[str, Any]] = []
        self.process = start(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._listen_to_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> int:
        code: int = self.process.wait(stretch(WAIT_S))
        for thread in self._threads:
            thread.join(stretch(5))
        return code

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.said.append(json.loads(line))

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.errors.extend(lines)


class Job:
    """The workers of one job, by name. Leaving the block kills what is left of them."""

    def __init__(
        self,
        folder: Path,
        url: str | None,
        *,
        order: str = "global",
        save_every: str = "5 steps",
        epochs: int = 2,
        num_rows: int = 1_003,
        pace_s: float = 0.03,
        options: tuple[str, ...] = (),
    ) -> None:
        self._url = url
        self._arguments = [str(folder), order, save_every, str(epochs), str(pace_s), *options]
        self.workers: dict[str, Worker] = {}
        self.retired: list[Worker] = []
        self.expected = {
            "total": epochs * sum(number * number for number in range(num_rows)),
            "count": epochs * num_rows,
        }
        make_dataset(folder / "data", num_rows)

    def start(self, *names: str, **environment: str) -> None:
        """Start workers; one of the same name that ran before is only remembered."""
        for name in names:
            if name in self.workers:
                self.retired.append(self.workers[name])
            command = [sys.executable, "-m", "tests.testbed.programs.run_worker", *self._arguments]
            fields = {"WORKER_ID": name, "OPENBLAS_NUM_THREADS": "1", **environment}
            if self._url is None:
                command.append("--local")
            else:
                fields["COORDINATOR_URL"] = self._url
            self.workers[name] = Worker(command, fields)

    def signal(self, name: str, number: int) -> None:
        self.workers[name].process.send_signal(number)

    def kill(self, name: str) -> None:
        """Kill a worker with no chance to say goodbye."""
        self.signal(name, signal.SIGKILL)
        self.workers[name].wait()

    def step(self) -> int:
        """The furthest step that any worker has said to be done."""
        return max((said["step"] for worker in self.all() for said in worker.said if "step" in said), default=0)

    def world_size(self) -> int:
        """How many workers the newest generation has that any of them trains in."""
        said = [each for worker in self.all() for each in list(worker.said) if "generation" in each]
        return max(said, key=lambda each: each["generation"])["world_size"] if said else 0

    def wait_until(self, holds: Any, what: str) -> None:
        """Wait for what must come; what never comes is told with the workers that ended, and what all of them said."""

        def state() -> str:
            ended = [name for name, worker in self.workers.items() if worker.process.poll() not in (None, 0)]
            return f"{what}; {ended} ended\n{self.all_errors()}"

        wait_until(holds, state, timeout_s=WAIT_S)

    def wait_for_step(self, number: int) -> None:
        self.wait_until(lambda: self.step() >= number, f"step {number}")

    def check_finished(self) -> None:
        """All workers end well, and all that stayed to the end have the sum of every sample, once an epoch."""
        codes = {name: worker.wait() for name, worker in self.workers.items()}
        assert set(codes.values()) <= {0, PREEMPTED}, f"{codes}\n{self.all_errors()}"
        ends = [worker.said[-1] for worker in self.workers.values()]
        stayed = [end for end in ends if not end["left"]]
        assert stayed
        assert all({name: end[name] for name in self.expected} == self.expected for end in stayed), ends

    def all(self) -> list[Worker]:
        return [*self.retired, *self.workers.values()]

    def all_errors(self) -> str:
        return "\n".join("".join(worker.errors) for worker in self.all())[-4_000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.all():
            worker.process.kill()
            worker.wait()
