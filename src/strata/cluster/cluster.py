"""The coordinator's state machine: commands in, replies and effects out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from strata.cluster import commands as c
from strata.cluster.access import administration as t
from strata.cluster.access.access_registry import Access
from strata.cluster.access.names import check_name, tenant_of
from strata.cluster.events import Event, EventLog
from strata.cluster.job import Job
from strata.cluster.lifecycle.aging import Aging
from strata.cluster.limits import Limits
from strata.cluster.replies import Answer, Done
from strata.cluster.values import snake_case
from strata.errors import DamagedRecordError, JobBusyError, JournalVersionError, QuotaExceededError, UnknownJobError
from strata.sharding import Assignment

SNAPSHOT_VERSION = 4
# It knew neither tenants nor tokens, nor did version 3 know revisions of keys; all else is as it was.
OLDEST_VERSION = 2
# Whoever drives the cluster asks for what is due more often than this, unless it is stopped or starved.
MAX_PAUSE_S = 1.0

# A job has a method for each kind of command, under its name.
_HANDLERS: dict[type[c.Command], Callable[[Job, Any, float], Answer]] = {
    kind: getattr(Job, snake_case(kind)) for kind in c.COMMANDS if kind is not c.RemoveJob
}
_HANDLERS[c.ArriveAgain] = Job.arrive_at_barrier
RULES = 2
"""The rules that commands are decided by now. Each entry of a journal names its own, and is replayed by them.

Before rules were counted, under rules 0, any member could confirm any commit, and the numbers of keys and jobs began
anew when these were removed. Until rules 1, the wall clocks of their machines said which of two processes is newer.
"""
# What earlier rules decided in another way.
_UNTIL_RULES_1: dict[type[c.Command], Callable[[Job, Any, float], Answer]] = {
    c.RegisterWorker: Job.register_worker_by_wall_clock,
}
_UNTIL_RULES_0: dict[type[c.Command], Callable[[Job, Any, float], Answer]] = {
    c.AdoptCheckpoints: Job.adopt_checkpoints_unfenced,
    c.ConfirmCommit: Job.confirm_commit_unfenced,
    c.GiveUpCheckpoint: Job.give_up_checkpoint_unfenced,
    c.ReportPart: Job.report_part_unfenced,
    c.SetKey: Job.set_key_by_count,
}
_HANDLERS_BY_RULES = (_HANDLERS | _UNTIL_RULES_1 | _UNTIL_RULES_0, _HANDLERS | _UNTIL_RULES_1, _HANDLERS)
# And the registry of tenants and tokens has one for each of theirs.
_ADMINISTRATION: dict[type[c.Command], Callable[[Access, Any, float], None]] = {
    kind: getattr(Access, snake_case(kind)) for kind in t.TENANT_COMMANDS if kind is not t.RemoveTenant
}
# A job comes to be when it is first configured or joined, or given something to keep; other commands need one.
_FOUNDING = (c.ConfigureJob, c.RegisterWorker, c.RegisterDataset, c.AdoptCheckpoints, c.RewindJob, c.SetKey)


class Cluster:
    """All jobs of one coordinator, as a deterministic state machine without I/O.

    The durable commands, applied in their order to a new cluster, give the same snapshot to the byte. Whoever drives it
    must let no reply and no effect leave the process before every durable command that was applied until then is
    journaled: also the answer to a heartbeat tells of the generation, and a generation that was told must not be lost.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._aging = Aging(self._limits)
        self.events = EventLog()
        self.access = Access(self._limits, self.events)
        self._jobs: dict[str, Job] = {}
        self._looked_s: float | None = None

    def apply(self, command: c.Command, now_s: float, *, rules: int = RULES) -> Answer:
        """Carry out one command, or raise a StrataError and change nothing; on replay, by the rules of its time."""
        handler = _HANDLERS_BY_RULES[rules].get(type(command))
        if handler is None:
            return self._manage(command, now_s, rules)
        assert isinstance(command, c.JobCommand)
        job = self._jobs.get(command.job_id)
        if job is None:
            job = self._found(command)
            answer = handler(job, command, now_s)
            self._add(job)
            return answer
        if command.is_sign_of_life:
            assert isinstance(command, c.WorkerCommand)
            job.membership.hear(command, now_s=now_s)
        return handler(job, command, now_s)

    def due(self, now_s: float) -> list[c.Command]:
        """Return what time alone demands now, such as workers to fail, to be applied like any command.

        It is to be asked several times a second. After a longer pause the coordinator was stopped or starved, and what
        workers sent meanwhile is still unread: so nobody is judged by that time, and everything is put off by it.
        """
        pause_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if pause_s > MAX_PAUSE_S:
            self._put_off(pause_s, now_s)
            return []
        demands: list[c.Command] = [demand for job in self._jobs.values() for demand in job.due(now_s=now_s)]
        return demands + self._aging.due(self.access, now_s)

    def resume(self, now_s: float, *, leases_anew: bool) -> None:
        """Put everything off by the time since :meth:`due` was asked last, in which nobody could be heard.

        With ``leases_anew`` every lease starts again: workers were sent away, and have to come back first.
        """
        if self._looked_s is not None:
            self._put_off(now_s - self._looked_s, now_s)
            self._looked_s = now_s
        if leases_anew:
            for job in self._jobs.values():
                job.membership.restart_leases(now_s=now_s)

    def job(self, job_id: str) -> Job:
        """Return a job, to look at."""
        if job_id not in self._jobs:
            raise self._unknown(job_id)
        return self._jobs[job_id]

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def jobs(self) -> list[str]:
        """Return the names of all jobs."""
        return sorted(self._jobs)

    def snapshot(self) -> bytes:
        """Return the durable state; equal states give equal bytes."""
        return self.freeze()()

    def freeze(self) -> Callable[[], bytes]:
        """Return what makes the snapshot of this moment, in any thread, while the cluster goes on."""
        jobs = [self._jobs[job_id].record() for job_id in sorted(self._jobs)]
        record = {"version": SNAPSHOT_VERSION, "jobs": jobs, **self.access.record()}
        return lambda: _encode_record(record)

    def freeze_sizes(self) -> Callable[[], dict[str, int]]:
        """Return what measures, in any thread, how much of a snapshot each tenant with a quota of it takes."""
        records = {
            tenant.name: [job.record() for job in tenant.jobs.values()]
            for tenant in self.access.tenants()
            if tenant.quotas.journal_bytes is not None
        }
        return lambda: {tenant: len(json.dumps(rows, default=_encode)) for tenant, rows in records.items()}

    def restore(self, snapshot: bytes, *, where: str = "of the cluster") -> None:
        """Take over a snapshot of the journal that ``where`` names; the cluster must be new."""
        assert not self._jobs
        record = json.loads(snapshot)
        version = record.get("version") or 0
        if version < OLDEST_VERSION:
            problem = f"its version is {version}, and this Strata reads {OLDEST_VERSION} to {SNAPSHOT_VERSION}"
            raise DamagedRecordError("cluster snapshot", problem)
        if version > SNAPSHOT_VERSION:
            known = f"versions {OLDEST_VERSION} to {SNAPSHOT_VERSION}"
            raise JournalVersionError(where, found=f"a snapshot of version {version}", known=known)
        self.access.restore({"tenants": [], "tokens": [], **record})
        for row in record["jobs"]:
            job = Job(row["job_id"], self._limits, self.events, self.access.tenant(tenant_of(row["job_id"])))
            job.restore(row)
            self._add(job)

    def restart(self, now_s: float) -> None:
        """Begin to serve after a restart, when the journal is replayed: every lease starts anew."""
        self._looked_s = now_s
        for job in self._jobs.values():
            job.restart(now_s=now_s)

    def _put_off(self, seconds: float, now_s: float) -> None:
        for job in self._jobs.values():
            job.delay(seconds, now_s=now_s)

    def _manage(self, command: c.Command, now_s: float, rules: int) -> Answer:
        """Carry out what is about a whole job, a tenant or a token."""
        match command:
            case c.RemoveJob():
                job = self.job(command.job_id)
                if present := job.membership.ids():
                    raise JobBusyError(command.job_id, workers=present)
                if rules:
                    job.tenant.retire(job)
                self._remove(command.job_id, command.reason, now_s)
            case t.RemoveTenant():
                for job_id in self.access.remove_tenant(command, now_s):
                    self._remove(job_id, "its tenant was removed", now_s)
            case _:
                _ADMINISTRATION[type(command)](self.access, command, now_s)
        return Done(), []

    def _add(self, job: Job) -> None:
        self._jobs[job.job_id] = job.tenant.jobs[job.job_id] = job

    def _remove(self, job_id: str, reason: str, now_s: float) -> None:
        del self._jobs.pop(job_id).tenant.jobs[job_id]
        self.events.append(Event(now_s, job_id, None, "job removed", reason))

    def _unknown(self, job_id: str) -> UnknownJobError:
        tenant = self.access.tenant(tenant_of(job_id))
        return UnknownJobError(job_id, known=tenant.jobs)

    def _found(self, command: c.JobCommand) -> Job:
        """Return a new job, which is to be added when the command was carried out."""
        if not isinstance(command, _FOUNDING):
            raise self._unknown(command.job_id)
        tenant = self.access.tenant(tenant_of(check_name(command.job_id)))
        active = sum(bool(job.membership.present()) for job in self._jobs.values())
        # Idle ones are forgotten once a second; however fast they are made, there are not many more than may be.
        most = self._limits.max_jobs + 2 * self._limits.max_idle_jobs
        if active >= self._limits.max_jobs or len(tenant.jobs) >= most:
            raise QuotaExceededError("jobs", limit=self._limits.max_jobs)
        return Job(command.job_id, self._limits, self.events, tenant)


def _encode_record(record: dict[str, Any]) -> bytes:
    """Return canonical JSON, row by row: other threads do not get to run while a large value is encoded at once."""

    def encode(value: object) -> str:
        return json.dumps(value, separators=(",", ":"), sort_keys=True, default=_encode)

    fields = (
        f"{encode(name)}:[{','.join(map(encode, value))}]"
        if isinstance(value, list)
        else f"{encode(name)}:{encode(value)}"
        for name, value in sorted(record.items())
    )
    return f"{{{','.join(fields)}}}".encode()


def _encode(value: Assignment) -> str:
    """Return an assignment, the only value of a record that JSON does not know: it has millions of shards."""
    return value.to_bytes().hex()
