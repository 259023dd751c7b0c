"""Workers that ended well, and are needed again: one of the others died after them, or they left too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strata.client.unary import ask
from strata.cluster.commands import WorkerState
from strata.errors import StrataError
from strata.wire._generated import coordinator_pb2 as pb

# How often it is looked whether they are needed; twice in a row they must be.
LOOK_S = 2.0


class Recall:
    """Keeps workers that ended well at hand for as long as others run: those cannot go on if the job lacks workers."""

    def __init__(self) -> None:
        self._busy = 0
        self._resting: list[asyncio.Future[bool]] = []

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A worker runs, or is about to be started again, while the block runs."""
        self._busy += 1
        try:
            yield
        finally:
            self._leave()

    async def rest(self) -> bool:
        """Return whether a worker that ended well is needed again; at the latest when no other one is busy."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._resting.append(future)
        self._leave()
        try:
            return await future
        finally:
            self._resting.remove(future)
            self._busy += 1

    async def watch(self, lacks_workers: Callable[[], bool]) -> None:
        """Look, as long as this runs, whether the job lacks those who rest."""
        was_lacking = False
        while True:
            await asyncio.sleep(LOOK_S)
            is_lacking = bool(self._resting) and await asyncio.to_thread(lacks_workers)
            if is_lacking and was_lacking:
                self.call()
            was_lacking = is_lacking

    def call(self, *, is_needed: bool = True) -> None:
        """Let all who rest go on, or with ``is_needed=False`` end."""
        for future in self._resting:
            if not future.done():
                future.set_result(is_needed)

    def _leave(self) -> None:
        self._busy -= 1
        if not self._busy:
            self.call(is_needed=False)


def lacks_workers(url: str, job_id: str) -> bool:
    """Whether a worker gathers this job to go on with it, and it has too few; False while nobody knows."""
    try:
        status = ask(url, lambda stub: stub.GetStatus(pb.GetStatus(), timeout=LOOK_S))
    except StrataError:
        return False
    job = next((job for job in status.jobs if job.job_id == job_id), None)
    gathers = job is not None and any(worker.state == WorkerState.RECOVERING for worker in job.workers)
    return job is not None and gathers and job.waits_for > 0
