"""A job to try things on: short commands in, replies and effects out."""

from __future__ import annotations

from typing import Any

import pytest

from strata.cluster import Cluster, Limits
from strata.cluster import commands as c
from strata.cluster.events import Effect
from strata.cluster.job import Job
from strata.cluster.replies import Registered, Reply

LIMITS = Limits(lease_s=10.0, grace_s=2.0, collect_s=100.0, manifest_s=30.0)


class Bench:
    """A cluster with one job and a clock that only moves when it is told to."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.cluster = Cluster(limits)
        self.now_s = 100.0

    @property
    def job(self) -> Job:
        return self.cluster.job("default")

    @property
    def generation(self) -> int:
        return self.job.membership.generation

    def apply(self, command: c.Command) -> tuple[Reply, list[Effect]]:
        return self.cluster.apply(command, self.now_s)

    def join(self, *workers: str, incarnation: str = "1", **fields: Any) -> Registered:
        """Register workers; return the reply to the last."""
        for worker in workers:
            reply, _ = self.apply(c.RegisterWorker(worker_id=worker, incarnation=incarnation, **fields))
        assert isinstance(reply, Registered)
        return reply

    def say(self, kind: type[c.WorkerCommand], worker: str, incarnation: str = "1", **fields: Any) -> Any:
        """Send a worker's command, in the present generation if it is generation_command; return reply and effects."""
        if issubclass(kind, c.GenerationCommand):
            fields.setdefault("generation", self.generation)
        return self.apply(kind(worker_id=worker, incarnation=incarnation, **fields))

    def beat(self, worker: str, **fields: Any) -> Any:
        return self.say(c.Heartbeat, worker, **fields)[0]

    def pass_time(self, seconds: float) -> list[Effect]:
        """Let time pass, and do what is due then; return the effects."""
        effects = []
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            # As often as a coordinator that runs asks: a longer pause would count as one in which it did not.
            self.now_s = min(end_s, self.now_s + 0.5)
            effects += [effect for demand in self.cluster.due(self.now_s) for effect in self.apply(demand)[1]]
        return effects

    def restarted(self) -> Bench:
        """Return the same cluster as after a restart of the coordinator."""
        other = Bench()
        other.cluster.restore(self.cluster.snapshot())
        other.now_s = self.now_s
        other.cluster.restart(self.now_s)
        return other

    def ranks(self) -> dict[str, int]:
        return {member.worker_id: member.rank for member in self.job.membership.present()}


@pytest.fixture
def bench() -> Bench:
    return Bench()
