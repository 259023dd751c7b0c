"""Who a worker is: what its commands carry, and its next life after it was declared dead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from strata.cluster import commands as c
from strata.cluster.membership import split_incarnation

W = TypeVar("W", bound=c.WorkerCommand)


class Identity:
    """One process of one worker. ``worker`` is what it registers as."""

    def __init__(self, worker: c.RegisterWorker) -> None:
        self.worker = worker

    def make(self, kind: type[W], **fields: Any) -> W:
        """Return a command of this worker in its present incarnation."""
        worker = self.worker
        return kind(job_id=worker.job_id, worker_id=worker.worker_id, incarnation=worker.incarnation, **fields)

    def next_life(self) -> None:
        """Become a new incarnation of the same process."""
        process, life = split_incarnation(self.worker.incarnation)
        self.worker = replace(self.worker, incarnation=f"{process}.{life + 1}")
