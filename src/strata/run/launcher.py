"""The launcher: it starts the workers of one machine, passes signals and output on, and restarts the dead.

It decides nothing about the job: who is in it, and where it goes on, is the coordinator's business. So several
launchers, one per machine, work against one coordinator without knowing of each other.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from strata.client.questions import configure_job
from strata.errors import CoordinatorLostError
from strata.run.process import WorkerProcess
from strata.run.restarts import Exit, Finished, GiveUp, LeaveOut, Restart, RestartPolicy, Restarts
from strata.run.standalone import StandaloneCoordinator

log = logging.getLogger(__name__)

# What ends a job that is told to stop: each signal, and how long it may take. A second Ctrl-C goes on to the next.
TERM_S = 10.0
KILL_S = 5.0
# How long a coordinator may take to answer before the launcher says that there is none.
COORDINATOR_S = 60.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What one launcher starts. Ranks are those that the workers ask for; the coordinator's word counts."""

    command: tuple[str, ...]
    nproc: int
    name: str
    """What the names of the workers begin with; it must be another one on each machine."""
    job_id: str = "default"
    coordinator_url: str | None = None
    """None: the launcher brings a coordinator of its own."""
    nnodes: int = 1
    node_rank: int = 0
    min_workers: int | None = None
    max_workers: int | None = None
    grace_s: float = 30.0
    """How long the workers have after Ctrl-C or SIGTERM before they are ended less politely."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)

    def __post_init__(self) -> None:
        if self.nproc < 1 or self.nnodes < 1 or not 0 <= self.node_rank < self.nnodes:
            raise ValueError(
                f"nproc={self.nproc}, nnodes={self.nnodes}, node_rank={self.node_rank}; "
                "use 1 or more processes and nodes, and a node rank below the number of nodes"
            )
        if self.max_workers is not None and self.world_size > self.max_workers:
            raise ValueError(
                f"{self.world_size} workers are more than max={self.max_workers}; start fewer, or raise it"
            )
        if not 1 <= self.least <= (self.max_workers or self.least):
            raise ValueError(f"min={self.least}, max={self.max_workers}; use 1 <= min <= max")

    @property
    def world_size(self) -> int:
        """How many workers all launchers start together."""
        return self.nproc * self.nnodes

    @property
    def least(self) -> int:
        """How many workers the job needs to run."""
        return self.world_size if self.min_workers is None else self.min_workers


class Launcher:
    """The workers of one machine, until they are all done, one cannot be saved, or someone says stop."""

    def __init__(self, plan: LaunchPlan, *, print_line: Callable[[str, bytes], None] | None = None) -> None:
        self._plan = plan
        self._print_line = print_line or _print_line
        self._restarts = Restarts(plan.restarts, min_workers=min(plan.least, plan.nproc))
        self._workers: dict[int, WorkerProcess] = {}
        self._given_up: str | None = None
        self._stopped_by: int | None = None
        self._stages: list[tuple[int, float]] = []
        self._impatience = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run the job and return its exit code: 0, that of the first cause, or 128 and the signal that ended it."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self.stop, number)
        for number in _PASSED_ON:
            loop.add_signal_handler(number, self._signal_all, number)
        try:
            async with AsyncExitStack() as stack:
                url = self._plan.coordinator_url
                if url is None:
                    url = (await stack.enter_async_context(StandaloneCoordinator())).url
                await self._configure(url)
                async with asyncio.TaskGroup() as group:
                    ending = group.create_task(self._end_when_told())
                    supervising = [group.create_task(self._supervise(i, url)) for i in range(self._plan.nproc)]
                    await asyncio.wait(supervising)
                    ending.cancel()
        finally:
            for number in (*_ENDING, *_PASSED_ON):
                loop.remove_signal_handler(number)
        return self._conclude()

    def stop(self, number: int) -> None:
        """End the job: the first call asks the workers with this signal, each further one asks less politely."""
        if not self._stopping.is_set():
            self._stopped_by = number
            self._stages = [(number, self._plan.grace_s), (signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)]
            self._stopping.set()
        else:
            self._impatience.set()

    async def _configure(self, url: str) -> None:
        deadline_s = time.monotonic() + COORDINATOR_S
        while not self._stopping.is_set():
            try:
                await asyncio.to_thread(
                    configure_job,
                    url,
                    self._plan.job_id,
                    min_workers=self._plan.least,
                    max_workers=self._plan.max_workers,
                )
            except CoordinatorLostError:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.5)
            else:
                return

    async def _supervise(self, local_rank: int, url: str) -> None:
        plan = self._plan
        rank = plan.node_rank * plan.nproc + local_rank
        worker_id = f"{plan.name}-{local_rank}"
        environment = {
            "PYTHONUNBUFFERED": "1",
            "COORDINATOR_URL": url,
            "JOB_ID": plan.job_id,
            "WORKER_ID": worker_id,
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(plan.world_size),
        }
        prefix = f"[{rank}] ".encode()
        while not self._stopping.is_set():
            worker = WorkerProcess.start(
                worker_id, rank, plan.command, environment, lambda to, line: self._print_line(to, prefix + line)
            )
            self._workers[local_rank] = worker
            if self._stopping.is_set():
                worker.send_signal(signal.SIGTERM)
            try:
                ended = await worker.wait()
            finally:
                del self._workers[local_rank]
            if self._stopping.is_set() or not await self._goes_on(ended):
                return

    async def _goes_on(self, ended: Exit) -> bool:
        """Do what was decided about a worker that ended; return whether it is started again."""
        decision = self._restarts.decide(
            ended,
            running=len(self._workers),
            now_s=time.monotonic(),
            chance=random.random(),  # noqa: S311
        )
        match decision:
            case Finished():
                return False
            case Restart(after_s=after_s, number=number):
                self._say(f"{ended}; restart {number} in {after_s:.1f} s")
                try:
                    async with asyncio.timeout(after_s):
                        await self._stopping.wait()
                except TimeoutError:
                    return True
                return False
            case LeaveOut():
                self._say(f"{ended}; the job goes on with {len(self._workers)} workers here")
                return False
            case GiveUp(reason=reason):
                self._say(f"{ended}; giving up: {reason}")
                self._given_up = reason
                self._stages = [(signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)]
                self._stopping.set()
                return False

    async def _end_when_told(self) -> None:
        await self._stopping.wait()
        for number, wait_s in self._stages:
            self._signal_all(number)
            self._impatience.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._impatience.wait()
            except TimeoutError:
                continue

    def _signal_all(self, number: int) -> None:
        for worker in self._workers.values():
            worker.send_signal(number)

    def _conclude(self) -> int:
        cause = self._restarts.first_cause
        if self._given_up is not None:
            assert cause is not None
            lines = "\n".join(f"    {line}" for line in cause.last_lines) or "    (it wrote nothing to stderr)"
            self._say(f"gave up: {self._given_up}\n  first cause: {cause}\n  the end of its stderr:\n{lines}")
            return cause.exit_code
        if self._stopped_by is not None:
            self._say(f"stopped by {signal.Signals(self._stopped_by).name}")
            return 128 + self._stopped_by
        return 0

    def _say(self, text: str) -> None:
        self._print_line("stderr", f"strata run: {text}".encode())


def _print_line(stream: str, line: bytes) -> None:
    # One write for a line and its end, so that lines of several workers never mix.
    output = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    output.write(line + b"\n")
    output.flush()
