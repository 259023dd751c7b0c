"""Work that grows with data: in a thread, one piece at a time, so that heartbeats are answered meanwhile.

A piece works on values that nobody changes. What comes of it is taken over on the event loop, if it is still of use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from strata.cluster import Cluster
from strata.coordinator.failing.fail_stop import FailStop
from strata.errors import BadCommandError, StrataError

T = TypeVar("T")
_Key = tuple[str, str, int | None, int]


class HeavyWork:
    """The queue of heavy work of one coordinator."""

    def __init__(self, fail_stop: FailStop | None = None) -> None:
        self._fail_stop = fail_stop or FailStop()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[_Key, list[Callable[[StrataError | None], None]]] = {}

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` comes to."""
        async with self._turn:
            return await asyncio.to_thread(work)

    def start(self, work: Callable[[], T], tell: Callable[[T | StrataError], None]) -> None:
        """Run ``work`` when it is its turn, and tell what it came to."""

        async def run() -> None:
            outcome: T | StrataError
            try:
                outcome = await self.run(work)
            except StrataError as error:
                outcome = error
            except ValueError as error:
                outcome = BadCommandError(str(error))
            tell(outcome)

        task = self._fail_stop.own(run(), name="heavy work")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def prepare(
        self,
        cluster: Cluster,
        job_id: str,
        dataset_id: str,
        epoch: int | None,
        then: Callable[[StrataError | None], None],
    ) -> bool:
        """Have a large dataset dealt among the present workers, and call ``then``; False if nothing needs doing.

        Without an epoch only its shards are assigned. Those who ask for the same wait for the same work.
        """
        try:
            job = cluster.job(job_id)
            preparation = job.ledger.preparation(dataset_id, epoch, job.membership.ids())
        except (StrataError, ValueError):
            return False  # whoever asked is refused with the same words by the cluster
        if preparation is None:
            return False
        key = job_id, dataset_id, epoch, job.membership.generation
        if key in self._waiting:
            self._waiting[key].append(then)
            return True
        self._waiting[key] = [then]

        def take_over(outcome: object) -> None:
            if isinstance(outcome, tuple):
                job.ledger.take_over(preparation, job.membership.ids(), *outcome)
            for waiting in self._waiting.pop(key):
                waiting(outcome if isinstance(outcome, StrataError) else None)

        self.start(preparation.run, take_over)
        return True

    async def close(self) -> None:
        """Drop what waits; a piece that is being worked on is not waited for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
