"""What is over and long gone: departed workers, finished jobs, ended tokens, which must not keep new ones out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from strata.cluster import commands as c
from strata.cluster.access.access_registry import Access
from strata.cluster.limits import Limits
from strata.cluster.values import Incarnation

K = TypeVar("K")
# Nobody notices a second, and all workers of all jobs are looked at.
LOOK_EVERY_S = 1.0


class Aging:
    """Since when who is gone. Not durable: after a restart time counts anew, and what was decided is in the journal."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._gone_since_s: dict[tuple[str, str, str], float] = {}
        self._idle_since_s: dict[str, float] = {}
        self._looked_s = float("-inf")

    def due(self, access: Access, now_s: float) -> list[c.Command]:
        """Return which workers, jobs and tokens to forget: those gone for too long, and the oldest of too many.

        What is too many is counted for each tenant, so that none can make the cluster forget another one's jobs.
        """
        if now_s - self._looked_s < LOOK_EVERY_S:
            return []
        self._looked_s = now_s
        demands: list[c.Command] = [*access.due(now_s)]
        jobs = {job_id: job for tenant in access.tenants() for job_id, job in tenant.jobs.items()}
        gone_since_s: dict[tuple[str, str, str], float] = {}
        for job in jobs.values():
            gone = {
                (job.job_id, member.worker_id, member.incarnation): Incarnation(member.worker_id, member.incarnation)
                for member in job.membership.departed()
            }
            since_s = {key: self._gone_since_s.get(key, now_s) for key in gone}
            gone_since_s |= since_s
            old = _old(since_s, now_s, most=self._limits.max_departed_per_job, keep_s=self._limits.keep_departed_s)
            if old:
                demands.append(c.ForgetWorkers(job_id=job.job_id, workers=tuple(gone[key] for key in old)))
        self._gone_since_s = gone_since_s
        self._idle_since_s = {
            job_id: self._idle_since_s.get(job_id, now_s)
            for job_id, job in jobs.items()
            if not job.membership.present()
        }
        reason = "nobody has worked on it for too long, or on too many others since"
        for tenant in access.tenants():
            idle = {job_id: self._idle_since_s[job_id] for job_id in tenant.jobs if job_id in self._idle_since_s}
            old_jobs = _old(idle, now_s, most=self._limits.max_idle_jobs, keep_s=self._limits.keep_jobs_s)
            demands += [c.RemoveJob(job_id=job_id, reason=reason) for job_id in old_jobs]
        return demands


def _old(since_s: Mapping[K, float], now_s: float, *, most: int, keep_s: float) -> list[K]:
    """Return those that are over for longer than ``keep_s``, and the oldest of more than ``most``."""
    by_age = sorted(since_s, key=since_s.__getitem__)
    surplus = max(0, len(by_age) - most)
    return [key for place, key in enumerate(by_age) if place < surplus or since_s[key] + keep_s < now_s]
