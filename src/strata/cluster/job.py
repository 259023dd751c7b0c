"""One job: its members, barriers, checkpoints and data, and how a change of one touches the others."""

from __future__ import annotations

from typing import Any

from strata.cluster import commands as c
from strata.cluster.access.tenant import Tenant
from strata.cluster.barriers import Barriers
from strata.cluster.commits import read_row, write_row
from strata.cluster.events import Cause, Effect, Event, EventLog, GenerationChanged
from strata.cluster.job_checkpoints import JobCheckpoints
from strata.cluster.keys import Keys
from strata.cluster.ledger.ledger import Ledger
from strata.cluster.lifecycle.job_state import Ending, Verdict, judge
from strata.cluster.limits import Limits
from strata.cluster.membership import Membership
from strata.cluster.replies import Answer, Done, HeartbeatReply, Registered, ShardLease
from strata.cluster.values import CommitRecord, Incarnation
from strata.errors import JobWaitingError, QuotaExceededError

# The same for everyone: most commands are answered with it.
_DONE = Done()


class Job(JobCheckpoints):
    """The state of one training run: a method for each kind of command, under the command's name.

    Every method either does what it says or raises and changes nothing.
    """

    def __init__(self, job_id: str, limits: Limits, log: EventLog, tenant: Tenant) -> None:
        super().__init__()
        self.job_id = job_id
        self.tenant = tenant
        self._limits = limits
        self._log = log
        self.membership = Membership(lease_s=limits.lease_s, grace_s=limits.grace_s)
        self.membership.generation = tenant.last_generation
        self.ending = Ending()
        self.barriers: Barriers = Barriers(job_id)
        self.ledger = Ledger()
        self.keys: Keys = Keys(
            max_keys=limits.max_keys_per_job,
            check_quota=lambda: tenant.check("keys"),
            first_revision=tenant.last_revision,
        )
        # The answer to a heartbeat, by rank: the same until the membership changes.
        self._heartbeat_replies: dict[int, HeartbeatReply] = {}

    def configure_job(self, command: c.ConfigureJob, now_s: float) -> Answer:
        """Set the least and the most workers."""
        if command.min_workers < 1 or (command.max_workers or command.min_workers) < command.min_workers:
            raise ValueError(
                f"min_workers={command.min_workers}, max_workers={command.max_workers}; use 1 <= min <= max"
            )
        self.membership.min_workers, self.membership.max_workers = command.min_workers, command.max_workers
        self._heartbeat_replies.clear()
        self._say(now_s, None, "configured", f"{command.min_workers} to {command.max_workers or 'any'} workers")
        return Done(), []

    def register_worker(self, command: c.RegisterWorker, now_s: float) -> Answer:
        """Take a worker in."""
        return self._take_in(command, now_s)

    def register_worker_by_wall_clock(self, command: c.RegisterWorker, now_s: float) -> Answer:
        """Do the same, but order processes by the wall clocks of their machines, as rules 0 and 1 did."""
        return self._take_in(command, now_s, by_wall_clock=True)

    def _take_in(self, command: c.RegisterWorker, now_s: float, *, by_wall_clock: bool = False) -> Answer:
        present = len(self.membership.present())
        if self.membership.is_new(command.worker_id) and present >= self._limits.max_workers_per_job:
            raise QuotaExceededError("workers in one job", limit=self._limits.max_workers_per_job)
        if self.membership.is_new(command.worker_id):
            self.tenant.check("workers")
            if not present:
                self.tenant.check("jobs")
        member, changed = self.membership.register(command, now_s=now_s, by_wall_clock=by_wall_clock)
        if changed:
            self.ending.go_on()
        effects = self._new_generation(now_s, f"{command.worker_id} joined", Cause.JOINED) if changed else []
        effects += self._ask_again_of(command.worker_id)
        reply = Registered(
            rank=member.rank,
            world_size=len(self.membership.present()),
            generation=self.membership.generation,
            waits_for=self.membership.waits_for(),
            lease_s=self._limits.lease_s,
        )
        return reply, effects

    def heartbeat(self, command: c.Heartbeat, now_s: float) -> Answer:
        """Note a sign of life."""
        member = self.membership.heartbeat(command, now_s=now_s)
        reply = self._heartbeat_replies.get(member.rank)
        if reply is None:
            reply = self._heartbeat_replies[member.rank] = HeartbeatReply(
                rank=member.rank,
                world_size=len(self.membership.present()),
                generation=self.membership.generation,
                waits_for=self.membership.waits_for(),
            )
        return reply, []

    def keep_alive(self, command: c.KeepAlive, now_s: float) -> Answer:
        """Note that a worker lives that cannot say so itself."""
        self.membership.keep_alive(command, now_s=now_s)
        return Done(), []

    def goodbye(self, command: c.Goodbye, now_s: float) -> Answer:
        """Let a worker go."""
        gone = self.membership.leave(command)
        reason = f"{command.worker_id} {command.cause.past}{': ' * bool(command.reason)}{command.reason}"
        return Done(), self._depart(now_s, reason, command.cause) if gone else []

    def report_stall(self, command: c.ReportStall, now_s: float) -> Answer:
        """Tell people that a worker stands still, or goes on again."""
        self.membership.check(command)
        self._say(now_s, command.worker_id, "stall over" if command.is_over else "stalled", command.reason)
        return Done(), []

    def channel_lost(self, command: c.ChannelLost, now_s: float) -> Answer:
        """Give a worker whose connection closed its grace."""
        self.membership.lose_channel(command, now_s=now_s)
        return Done(), []

    def fail_workers(self, command: c.FailWorkers, now_s: float) -> Answer:
        """Declare workers dead."""
        names = ", ".join(worker_id for worker_id, _ in command.workers)
        failed = self.membership.fail(command.workers)
        reason = f"{names} failed: {command.reason}"
        return Done(), self._depart(now_s, reason, command.cause) if failed else []

    def forget_workers(self, command: c.ForgetWorkers, now_s: float) -> Answer:
        """Forget workers that are long gone."""
        self.ledger.forget_workers(self.membership.forget(command.workers))
        return Done(), []

    def arrive_at_barrier(self, command: c.ArriveAtBarrier, now_s: float) -> Answer:
        """Note an arrival at a barrier."""
        self._check(command)
        limit = self._limits.max_barriers_per_job
        if self.tenant.quotas.barriers is not None and not self.barriers.is_open(command):
            self.tenant.check("barriers")
        return _DONE, self.barriers.arrive(command, self.membership, now_s=now_s, limit=limit)

    def offer_releases(self, command: c.OfferReleases, now_s: float) -> Answer:
        """Note which barriers of this generation a worker was released from."""
        self._check(command)
        return Done(), self.barriers.offer(command, self.membership)

    def bring_release(self, command: c.BringRelease, now_s: float) -> Answer:
        """Release a barrier as it was released before a restart."""
        self._check(command)
        return Done(), self.barriers.bring(command, self.membership)

    def cancel_barrier(self, command: c.CancelBarrier, now_s: float) -> Answer:
        """Call a barrier off."""
        self._say(now_s, None, "barrier cancelled", f"{command.name}: {command.reason}")
        return Done(), self.barriers.cancel(command.name, command.reason)

    def expire_barrier(self, command: c.ExpireBarrier, now_s: float) -> Answer:
        """Send everyone away from a barrier whose time is up."""
        effects: list[Effect] = []
        for barrier in self.barriers.overdue(now_s=now_s):
            if barrier.meeting == (command.name, command.round):
                effects.append(self.barriers.time_out(barrier, self.membership, now_s=now_s))
                self._say(now_s, None, "barrier timed out", f"{command.name}: {len(barrier.arrivals)} came")
        return Done(), effects

    def register_dataset(self, command: c.RegisterDataset, now_s: float) -> Answer:
        """Make a dataset known."""
        known = command.dataset_id in self.ledger.datasets
        if not known and len(self.ledger.datasets) >= self._limits.max_datasets_per_job:
            raise QuotaExceededError("datasets in one job", limit=self._limits.max_datasets_per_job)
        if not known:
            self.tenant.check("datasets")
        self.ledger.register(command)
        if not known:
            self._say(now_s, None, "dataset registered", f"{command.dataset_id}: {command.total_samples} samples")
        return Done(), []

    def assign_shards(self, command: c.AssignShards, now_s: float) -> Answer:
        """Assign the shards of a dataset to the present workers, moving as few as possible."""
        self.ledger.assign_shards(command.dataset_id, self.membership.ids())
        return Done(), []

    def lease_shards(self, command: c.LeaseShards, now_s: float) -> Answer:
        """Give a worker its samples."""
        self._check_running(command)
        lease = ShardLease(spans=self.ledger.lease_shards(command, self.membership.ids()))
        self.ending.go_on()
        return lease, []

    def report_progress(self, command: c.ReportProgress, now_s: float) -> Answer:
        """Note what the model has seen."""
        self._check(command)
        self.ledger.report(command)
        return Done(), []

    def skip_samples(self, command: c.SkipSamples, now_s: float) -> Answer:
        """Note what could not be read."""
        self._check(command)
        if self.ledger.skip(command):
            what = f"{command.dataset_id}: {command.start} to {command.stop}: {command.reason}"
            self._say(now_s, command.worker_id, "samples skipped", what)
        return Done(), []

    def set_key(self, command: c.SetKey, now_s: float) -> Answer:
        """Set a small value, if nobody did since the sender read it."""
        return self.keys.set(command), []

    def set_key_by_count(self, command: c.SetKey, now_s: float) -> Answer:
        """Do the same with tokens that began anew for a key that was removed, as rules 0 did."""
        return self.keys.set_by_count(command), []

    def get_key(self, command: c.GetKey, now_s: float) -> Answer:
        """Say what a key holds."""
        return self.keys.get(command.key), []

    def judge(self) -> Verdict:
        """Return the state that the job is in, and why."""
        return judge(self.membership.present(), waits_for=self.membership.waits_for(), ending=self.ending.verdict)

    def due(self, *, now_s: float) -> list[c.JobCommand]:
        """Return what time alone demands now, as commands."""
        demands: list[c.JobCommand] = []
        silent = self.membership.expired(now_s=now_s)
        if silent:
            workers = tuple(Incarnation(member.worker_id, member.incarnation) for member in silent)
            cause, reason = self.membership.judge(silent)
            demands.append(c.FailWorkers(job_id=self.job_id, workers=workers, reason=reason, cause=cause))
        demands += [
            c.ExpireBarrier(job_id=self.job_id, name=barrier.name, round=barrier.meeting.round)
            for barrier in self.barriers.overdue(now_s=now_s)
        ]
        return demands + self._due_checkpoints(now_s)

    def delay(self, seconds: float, *, now_s: float) -> None:
        """Put everything off that time decides, for time in which the coordinator did not run."""
        self.membership.delay(seconds, now_s=now_s)
        self.barriers.delay(seconds)
        self.commits.delay(seconds)

    def restart(self, *, now_s: float) -> None:
        """Count all time anew after a restart of the coordinator: a restart never fails a healthy worker."""
        self.membership.restart_leases(now_s=now_s)
        self.commits.restart_clocks(now_s=now_s)

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "job_id": self.job_id,
            "membership": self.membership.record(),
            "ending": self.ending.record(),
            "commits": self.commits.record(),
            "ledger": self.ledger.record(),
            "keys": self.keys.record(),
            "restored": None if self._restored is None else self._record_restored(*self._restored),
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        self.membership.restore(record["membership"])
        self.ending.restore(record.get("ending"), has_members=bool(record["membership"]["members"]))
        self.commits.restore(record["commits"])
        self.ledger.restore(record["ledger"], self.membership.ids())
        self.keys.restore(record.get("keys", []))
        self._restored = None
        match record["restored"]:
            case [None]:
                self._restored = (None,)
            case [int(step)]:
                self._restored = (self.commits.committed[step],)
            case [int(), list(row)]:
                self._restored = (read_row(row),)

    def _record_restored(self, point: CommitRecord | None) -> list[Any]:
        if point is None:
            return [None]
        # The index may have lost it since.
        return [point.step] if point.step in self.commits.committed else [point.step, write_row(point)]

    def _check(self, command: c.GenerationCommand) -> None:
        self.membership.check(command)
        self.membership.check_generation(command.worker_id, command.generation)

    def _check_running(self, command: c.GenerationCommand) -> None:
        self._check(command)
        if missing := self.membership.waits_for():
            raise JobWaitingError(self.job_id, missing=missing, min_workers=self.membership.min_workers)

    def _depart(self, now_s: float, reason: str, cause: Cause) -> list[Effect]:
        """Go on without workers that left or failed; without any, that is how the job ended."""
        self.ending.note_departure(cause, reason, now_s=now_s)
        return self._new_generation(now_s, reason, cause)

    def _new_generation(self, now_s: float, reason: str, cause: Cause) -> list[Effect]:
        """Discard everything that belongs to the previous membership; what is already durable stays."""
        generation = self.membership.generation
        self._heartbeat_replies.clear()
        self.ledger.change_generation()
        effects = self.barriers.change_generation(generation)
        effects += self._leave_generation(generation, reason, now_s)
        self._say(now_s, None, "generation changed", f"{generation}: {reason}", cause)
        to = self.membership.ids()
        return [
            *effects,
            GenerationChanged(job_id=self.job_id, to=to, generation=generation, reason=reason, cause=cause),
        ]

    def _say(self, now_s: float, worker_id: str | None, kind: str, reason: str, cause: Cause | None = None) -> None:
        self._log.append(Event(now_s, self.job_id, worker_id, kind, reason, cause))
