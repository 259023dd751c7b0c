"""One job: its members, barriers, checkpoints and data, and how a change of one touches the others."""

from __future__ import annotations

from typing import Any

from strata.cluster import commands as c
from strata.cluster.barriers import Barriers
from strata.cluster.commits import Commits, Committed, Pending
from strata.cluster.events import (
    CheckpointAborted,
    CheckpointCommitted,
    Effect,
    Event,
    EventLog,
    GenerationChanged,
    ManifestWanted,
)
from strata.cluster.keys import Keys
from strata.cluster.ledger import Ledger
from strata.cluster.limits import Limits
from strata.cluster.membership import Membership
from strata.cluster.replies import Done, Hand, Heard, Registered, Reply, RestorePoint
from strata.errors import (
    CheckpointAbortedError,
    CommitPendingError,
    DatasetConflictError,
    JobWaitingError,
    LastCheckpointError,
    QuotaExceededError,
    RestoreTooLateError,
)

Answer = tuple[Reply, list[Effect]]


class Job:
    """The state of one training run. Every method either does what it says or raises and changes nothing."""

    def __init__(self, job_id: str, limits: Limits, log: EventLog) -> None:
        self.job_id = job_id
        self._limits = limits
        self._log = log
        self.membership = Membership(lease_s=limits.lease_s, grace_s=limits.grace_s)
        self.barriers = Barriers(job_id)
        self.commits = Commits()
        self.ledger = Ledger()
        self.keys = Keys(max_keys=limits.max_keys_per_job)
        # The answer to a heartbeat, by rank: the same until the membership changes.
        self._heard: dict[int, Heard] = {}
        # The checkpoint that the present generation goes on from, once someone has asked.
        self._restored: tuple[int | None] | None = None

    def configure(self, command: c.ConfigureJob, now_s: float) -> Answer:
        """Set the least and the most workers."""
        if command.min_workers < 1 or (command.max_workers or command.min_workers) < command.min_workers:
            raise ValueError(
                f"min_workers={command.min_workers}, max_workers={command.max_workers}; use 1 <= min <= max"
            )
        self.membership.min_workers, self.membership.max_workers = command.min_workers, command.max_workers
        self._heard.clear()
        self._say(now_s, None, "configured", f"{command.min_workers} to {command.max_workers or 'any'} workers")
        return Done(), []

    def register(self, command: c.RegisterWorker, now_s: float) -> Answer:
        """Take a worker in."""
        if self.membership.is_new(command.worker_id) and self.membership.size >= self._limits.max_workers_per_job:
            raise QuotaExceededError("workers in one job", limit=self._limits.max_workers_per_job)
        member, changed = self.membership.register(command, now_s=now_s)
        effects = self._new_generation(now_s, f"{command.worker_id} joined") if changed else []
        # One that comes back may not have heard that it was asked.
        asked = [pending for pending in self.commits.pending.values() if pending.asked_of == command.worker_id]
        effects += [self._wanted(pending, command.worker_id) for pending in asked]
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
        heard = self._heard.get(member.rank)
        if heard is None:
            heard = self._heard[member.rank] = Heard(
                rank=member.rank,
                world_size=len(self.membership.present()),
                generation=self.membership.generation,
                waits_for=self.membership.waits_for(),
            )
        return heard, []

    def vouch(self, command: c.Vouch, now_s: float) -> Answer:
        """Note that a worker lives that cannot say so itself."""
        self.membership.vouch(command, now_s=now_s)
        return Done(), []

    def say_goodbye(self, command: c.Goodbye, now_s: float) -> Answer:
        """Let a worker go."""
        gone = self.membership.leave(command)
        return Done(), self._new_generation(now_s, f"{command.worker_id} left: {command.reason}") if gone else []

    def lose_channel(self, command: c.ChannelLost, now_s: float) -> Answer:
        """Give a worker whose connection closed its grace."""
        self.membership.lose_channel(command, now_s=now_s)
        return Done(), []

    def fail_workers(self, command: c.FailWorkers, now_s: float) -> Answer:
        """Declare workers dead."""
        names = ", ".join(worker_id for worker_id, _ in command.workers)
        failed = self.membership.fail(command.workers)
        return Done(), self._new_generation(now_s, f"{names} failed: {command.reason}") if failed else []

    def arrive(self, command: c.ArriveAtBarrier, now_s: float) -> Answer:
        """Note an arrival at a barrier."""
        self._check(command)
        if not self.barriers.is_open(command.name) and len(self.barriers.open()) >= self._limits.max_barriers_per_job:
            raise QuotaExceededError("open barriers in one job", limit=self._limits.max_barriers_per_job)
        return Done(), self.barriers.arrive(command, self.membership, now_s=now_s)

    def cancel_barrier(self, command: c.CancelBarrier, now_s: float) -> Answer:
        """Call a barrier off."""
        self._say(now_s, None, "barrier cancelled", f"{command.name}: {command.reason}")
        return Done(), self.barriers.cancel(command.name, command.reason)

    def expire_barrier(self, command: c.ExpireBarrier, now_s: float) -> Answer:
        """Send everyone away from a barrier whose time is up."""
        effects: list[Effect] = []
        for barrier in self.barriers.overdue(now_s=now_s):
            if barrier.name == command.name:
                effects.append(self.barriers.time_out(barrier, self.membership, now_s=now_s))
                self._say(now_s, None, "barrier timed out", f"{command.name}: {len(barrier.arrivals)} came")
        return Done(), effects

    def register_dataset(self, command: c.RegisterDataset, now_s: float) -> Answer:
        """Make a dataset known."""
        known = command.dataset_id in self.ledger.datasets
        if not known and len(self.ledger.datasets) >= self._limits.max_datasets_per_job:
            raise QuotaExceededError("datasets in one job", limit=self._limits.max_datasets_per_job)
        other = self.ledger.register(command)
        if other is not None:
            raise DatasetConflictError(command.dataset_id, registered=repr(other), given=repr(command))
        if not known:
            self._say(now_s, None, "dataset registered", f"{command.dataset_id}: {command.total_samples} samples")
        return Done(), []

    def ask_restore_point(self, command: c.AskRestorePoint, now_s: float) -> Answer:
        """Say where this generation goes on; the first to ask sets the ledger back."""
        self._check_running(command)
        if self._restored is None:
            if self.ledger.is_dealt():
                raise RestoreTooLateError(command.worker_id, generation=command.generation)
            writing = [pending.step for pending in self.commits.pending.values() if not pending.is_collecting]
            if writing:
                # All its parts are durable, so it will be committed. To go on from before it would leave it behind as
                # the newest step of a history that nobody continues.
                raise CommitPendingError(self.job_id, max(writing))
            latest = self.commits.latest()
            self.ledger.roll_back("[]" if latest is None else latest.cursors)
            self._restored = (None if latest is None else latest.step,)
            self._say(now_s, None, "rolled back", "to the beginning" if latest is None else f"to step {latest.step}")
        (step,) = self._restored
        return RestorePoint(checkpoint=None if step is None else self.commits.committed[step]), []

    def take_hand(self, command: c.TakeHand, now_s: float) -> Answer:
        """Give a worker its samples."""
        self._check_running(command)
        return Hand(spans=self.ledger.take_hand(command, self.membership.ids())), []

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

    def ack_part(self, command: c.AckPart, now_s: float) -> Answer:
        """Note that a part is durable; with the last one, have the manifest written."""
        said_before = self.commits.progress(command.step, command.part)
        if said_before.phase == "aborted":
            raise CheckpointAbortedError(command.step, said_before.reason)
        if said_before.phase in ("writing", "committed"):
            return Done(), []  # whatever became of the generation since: it counts
        self._check(command)
        begins = command.step not in self.commits.pending and command.step not in self.commits.committed
        pending = self.commits.ack(command, self.membership.ids(), now_s=now_s)
        if begins:
            self._say(now_s, command.worker_id, "checkpoint begun", f"step {command.step}")
        if pending is None or not pending.is_collecting or pending.missing():
            return Done(), []
        pending.cursors = self.ledger.cut(pending.step)
        return Done(), self._ask_for_manifest(pending, now_s)

    def ask_for_manifest(self, command: c.AskForManifest, now_s: float) -> Answer:
        """Ask the next worker to write a manifest that is still missing."""
        pending = self.commits.pending.get(command.step)
        if pending is None or pending.is_collecting:
            return Done(), []
        return Done(), self._ask_for_manifest(pending, now_s)

    def confirm_commit(self, command: c.ConfirmCommit, now_s: float) -> Answer:
        """Take a checkpoint whose manifest is in storage into the index, and announce it."""
        rejected = self.commits.rejected.get(command.step)
        if rejected is not None and command.generation < rejected.until:
            return Done(), []  # said late, of the manifest that was rejected since
        checkpoint = Committed(command.step, command.epoch, command.manifest, command.cursors)
        return Done(), self._commit(checkpoint, now_s)

    def ask_commit(self, command: c.AskCommit, now_s: float) -> Answer:
        """Say how a checkpoint is doing, to a worker that may have missed the announcement."""
        return self.commits.progress(command.step, command.part), []

    def give_up_checkpoint(self, command: c.GiveUpCheckpoint, now_s: float) -> Answer:
        """Give up a checkpoint whose parts are durable and yet cannot be committed."""
        pending = self.commits.pending.get(command.step)
        if pending is None or pending.generation != command.generation:
            return Done(), []
        return Done(), self._abort(command.step, f"{command.worker_id}: {command.reason}", now_s, even_writing=True)

    def reject_checkpoint(self, command: c.RejectCheckpoint, now_s: float) -> Answer:
        """Take a checkpoint that cannot be restored out of the index, and have all workers restore an older one."""
        self._check(command)
        if self._restored != (command.step,):
            return Done(), []  # nobody goes on from it
        if len(self.commits.committed) == 1:
            raise LastCheckpointError(self.job_id, command.step)
        self.membership.begin_anew()
        self.commits.reject(command.step, command.reason, until=self.membership.generation)
        self._say(now_s, command.worker_id, "checkpoint rejected", f"step {command.step}: {command.reason}")
        return Done(), self._new_generation(now_s, f"step {command.step} cannot be restored")

    def adopt_checkpoints(self, command: c.AdoptCheckpoints, now_s: float) -> Answer:
        """Take what a listing of storage shows into the index.

        The listing may be older than a deletion, which never takes the newest: so what is not newer than all that is
        known is either known too, or gone.
        """
        latest = self.commits.latest()
        found = [Committed(*row) for row in command.checkpoints if row[0] not in self.commits.rejected]
        new = [checkpoint for checkpoint in found if latest is None or checkpoint.step > latest.step]
        effects = [effect for checkpoint in new for effect in self._commit(checkpoint, now_s)]
        return Done(), effects

    def forget_checkpoints(self, command: c.ForgetCheckpoints, now_s: float) -> Answer:
        """Take deleted checkpoints out of the index; what the present generation goes on from stays."""
        kept = self._restored[0] if self._restored else None
        for step in self.commits.forget(tuple(step for step in command.steps if step != kept)):
            self._say(now_s, None, "checkpoint removed", f"step {step}")
        return Done(), []

    def abort_checkpoint(self, command: c.AbortCheckpoint, now_s: float) -> Answer:
        """Give up a checkpoint that still misses parts."""
        return Done(), self._abort(command.step, command.reason, now_s)

    def set_key(self, command: c.SetKey, now_s: float) -> Answer:
        """Set a small value, if nobody did since the sender read it."""
        return self.keys.set(command), []

    def get_key(self, command: c.GetKey, now_s: float) -> Answer:
        """Say what a key holds."""
        return self.keys.get(command.key), []

    def due(self, *, now_s: float) -> list[c.JobCommand]:
        """Return what time alone demands now, as commands."""
        demands: list[c.JobCommand] = []
        silent = self.membership.expired(now_s=now_s)
        if silent:
            workers = tuple((member.worker_id, member.incarnation) for member in silent)
            demands.append(c.FailWorkers(job_id=self.job_id, workers=workers, reason="lease ended"))
        demands += [
            c.ExpireBarrier(job_id=self.job_id, name=barrier.name) for barrier in self.barriers.overdue(now_s=now_s)
        ]
        for pending in self.commits.pending.values():
            if pending.is_collecting and pending.begun_s + self._limits.collect_s < now_s:
                reason = f"no part of {', '.join(pending.missing()[:5])} in {self._limits.collect_s:g} s"
                demands.append(c.AbortCheckpoint(job_id=self.job_id, step=pending.step, reason=reason))
            elif not pending.is_collecting and pending.asked_at_s + self._limits.manifest_s < now_s:
                demands.append(c.AskForManifest(job_id=self.job_id, step=pending.step))
        return demands

    def restart(self, *, now_s: float) -> None:
        """Count all time anew after a restart of the coordinator: a restart never fails a healthy worker."""
        self.membership.restart_leases(now_s=now_s)
        self.commits.restart_clocks(now_s=now_s)

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "job_id": self.job_id,
            "membership": self.membership.record(),
            "commits": self.commits.record(),
            "ledger": self.ledger.record(),
            "keys": self.keys.record(),
            "restored": None if self._restored is None else list(self._restored),
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        self.membership.restore(record["membership"])
        self.commits.restore(record["commits"])
        self.ledger.restore(record["ledger"])
        self.keys.restore(record.get("keys", []))
        self._restored = None if record["restored"] is None else (record["restored"][0],)

    def _check(self, command: c.FencedCommand) -> None:
        self.membership.check(command)
        self.membership.check_generation(command.worker_id, command.generation)

    def _check_running(self, command: c.FencedCommand) -> None:
        self._check(command)
        if missing := self.membership.waits_for():
            raise JobWaitingError(self.job_id, missing=missing, min_workers=self.membership.min_workers)

    def _new_generation(self, now_s: float, reason: str) -> list[Effect]:
        """Void everything that belongs to the membership before; what is already durable stays."""
        generation = self.membership.generation
        self._heard.clear()
        self._restored = None
        self.ledger.change_generation()
        effects = self.barriers.change_generation(generation)
        for step in self.commits.of_older_generations(generation):
            effects += self._abort(step, reason, now_s)
        for pending in self.commits.pending.values():
            # Whoever was asked may be the one that went: the next one is due to be asked at once.
            pending.asked_at_s = float("-inf")
        self._say(now_s, None, "generation changed", f"{generation}: {reason}")
        changed = GenerationChanged(job_id=self.job_id, to=self.membership.ids(), generation=generation, reason=reason)
        return [*effects, changed]

    def _ask_for_manifest(self, pending: Pending, now_s: float) -> list[Effect]:
        workers = self.membership.ids()
        if not workers:
            return []
        writer = workers[pending.asked % len(workers)]
        pending.asked += 1
        pending.asked_of, pending.asked_at_s = writer, now_s
        return [self._wanted(pending, writer)]

    def _wanted(self, pending: Pending, writer: str) -> ManifestWanted:
        assert pending.cursors is not None
        return ManifestWanted(
            job_id=self.job_id,
            to=(writer,),
            step=pending.step,
            epoch=pending.epoch,
            generation=pending.generation,
            parts=tuple(pending.parts[worker_id] for worker_id in pending.expected),
            cursors=pending.cursors,
        )

    def _commit(self, checkpoint: Committed, now_s: float) -> list[Effect]:
        if not self.commits.commit(checkpoint):
            return []
        # Cuts of steps that still collect parts must stay possible.
        collecting = [p.step - 1 for p in self.commits.pending.values() if p.is_collecting]
        self.ledger.settle(min([checkpoint.step, *collecting]))
        self._say(now_s, None, "checkpoint committed", f"step {checkpoint.step}")
        to = self.membership.ids()
        return [CheckpointCommitted(job_id=self.job_id, to=to, step=checkpoint.step, manifest=checkpoint.manifest)]

    def _abort(self, step: int, reason: str, now_s: float, *, even_writing: bool = False) -> list[Effect]:
        if not self.commits.abort(step, reason, even_writing=even_writing):
            return []
        self._say(now_s, None, "checkpoint aborted", f"step {step}: {reason}")
        return [CheckpointAborted(job_id=self.job_id, to=self.membership.ids(), step=step, reason=reason)]

    def _say(self, now_s: float, worker_id: str | None, kind: str, reason: str) -> None:
        self._log.append(Event(now_s, self.job_id, worker_id, kind, reason))
