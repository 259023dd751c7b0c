"""The coordinator's state machine: commands in, replies and effects out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from strata import ids
from strata.cluster import commands as c
from strata.cluster.events import Effect, EventLog
from strata.cluster.job import Answer, Job
from strata.cluster.limits import Limits
from strata.cluster.replies import Reply
from strata.errors import DamagedRecordError, QuotaExceededError, UnknownJobError

SNAPSHOT_VERSION = 1

_HANDLERS: dict[type[c.JobCommand], Callable[[Job, Any, float], Answer]] = {
    c.ConfigureJob: Job.configure,
    c.RegisterWorker: Job.register,
    c.Heartbeat: Job.heartbeat,
    c.Vouch: Job.vouch,
    c.Goodbye: Job.say_goodbye,
    c.ChannelLost: Job.lose_channel,
    c.FailWorkers: Job.fail_workers,
    c.ArriveAtBarrier: Job.arrive,
    c.CancelBarrier: Job.cancel_barrier,
    c.ExpireBarrier: Job.expire_barrier,
    c.RegisterDataset: Job.register_dataset,
    c.AskRestorePoint: Job.ask_restore_point,
    c.TakeHand: Job.take_hand,
    c.ReportProgress: Job.report_progress,
    c.SkipSamples: Job.skip_samples,
    c.AckPart: Job.ack_part,
    c.AskForManifest: Job.ask_for_manifest,
    c.ConfirmCommit: Job.confirm_commit,
    c.AskCommit: Job.ask_commit,
    c.GiveUpCheckpoint: Job.give_up_checkpoint,
    c.RejectCheckpoint: Job.reject_checkpoint,
    c.AbortCheckpoint: Job.abort_checkpoint,
    c.AdoptCheckpoints: Job.adopt_checkpoints,
    c.ForgetCheckpoints: Job.forget_checkpoints,
    c.SetKey: Job.set_key,
    c.GetKey: Job.get_key,
}
# A job comes to be when it is first configured or joined, or given something to keep; other commands need one.
_FOUNDING = (c.ConfigureJob, c.RegisterWorker, c.RegisterDataset, c.AdoptCheckpoints, c.SetKey)


class Cluster:
    """All jobs of one coordinator, as a deterministic state machine without I/O.

    The durable commands, applied in their order to a new cluster, give the same snapshot to the byte. Whoever drives it
    must let no reply and no effect leave the process before every durable command that was applied until then is
    journaled: also the answer to a heartbeat tells of the generation, and a generation that was told must not be lost.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self.events = EventLog()
        self._jobs: dict[str, Job] = {}

    def apply(self, command: c.JobCommand, now_s: float) -> tuple[Reply, list[Effect]]:
        """Carry out one command, or raise a StrataError and change nothing."""
        job = self._jobs.get(command.job_id)
        if job is None:
            job = self._found(command)
        answer = _HANDLERS[type(command)](job, command, now_s)
        self._jobs[command.job_id] = job
        return answer

    def due(self, now_s: float) -> list[c.JobCommand]:
        """Return what time alone demands now, such as workers to fail, to be applied like any command."""
        return [demand for job in self._jobs.values() for demand in job.due(now_s=now_s)]

    def job(self, job_id: str) -> Job:
        """Return a job, to look at."""
        if job_id not in self._jobs:
            raise UnknownJobError(job_id, known=self._jobs)
        return self._jobs[job_id]

    def jobs(self) -> list[str]:
        """Return the names of all jobs."""
        return sorted(self._jobs)

    def snapshot(self) -> bytes:
        """Return the durable state; equal states give equal bytes."""
        jobs = [self._jobs[job_id].record() for job_id in sorted(self._jobs)]
        return json.dumps({"version": SNAPSHOT_VERSION, "jobs": jobs}, separators=(",", ":"), sort_keys=True).encode()

    def restore(self, snapshot: bytes) -> None:
        """Take over a snapshot; the cluster must be new."""
        assert not self._jobs
        record = json.loads(snapshot)
        if record.get("version") != SNAPSHOT_VERSION:
            problem = f"its version is {record.get('version')}, and this Strata reads {SNAPSHOT_VERSION}"
            raise DamagedRecordError("cluster snapshot", problem)
        for row in record["jobs"]:
            job = Job(row["job_id"], self._limits, self.events)
            job.restore(row)
            self._jobs[row["job_id"]] = job

    def restart(self, now_s: float) -> None:
        """Begin to serve after a restart, when the journal is replayed: every lease starts anew."""
        for job in self._jobs.values():
            job.restart(now_s=now_s)

    def _found(self, command: c.JobCommand) -> Job:
        if not isinstance(command, _FOUNDING):
            raise UnknownJobError(command.job_id, known=self._jobs)
        if len(self._jobs) >= self._limits.max_jobs:
            raise QuotaExceededError("jobs", limit=self._limits.max_jobs)
        return Job(ids.job_id(command.job_id), self._limits, self.events)
