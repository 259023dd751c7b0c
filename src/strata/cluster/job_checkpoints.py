"""What a job does with commands about checkpoints: parts reported, manifests asked for, commits, and where to go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from strata.cluster import commands as c
from strata.cluster.access.tenant import Tenant
from strata.cluster.commits import NOTHING, Commits, Pending
from strata.cluster.events import Cause, CheckpointAborted, CheckpointCommitted, Effect, ManifestWanted, RepairWanted
from strata.cluster.ledger.ledger import Ledger
from strata.cluster.lifecycle.job_state import Ending
from strata.cluster.limits import Limits
from strata.cluster.membership import Membership
from strata.cluster.replies import Answer, CommittedSteps, Done, RestorePoint
from strata.cluster.values import CommitRecord
from strata.errors import (
    CheckpointAbortedError,
    CommitPendingError,
    LastCheckpointError,
    RestoreTooLateError,
    StepTakenError,
)


class JobCheckpoints(ABC):
    """The part of :class:`strata.cluster.job.Job` that is about checkpoints."""

    job_id: str
    tenant: Tenant
    commits: Commits
    membership: Membership
    ending: Ending
    ledger: Ledger
    _limits: Limits

    def __init__(self) -> None:
        self.commits = Commits()
        # The checkpoint that the present generation goes on from, once someone has asked.
        self._restored: tuple[CommitRecord | None] | None = None

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
            point = self._choose_restore_point(now_s, allow_suspect=command.allow_suspect)
            self.ledger.roll_back("[]" if point is None else point.cursors)
            self._restored = (point,)
            self._say(now_s, None, "rolled back", "to the beginning" if point is None else f"to step {point.step}")
        self.ending.go_on()
        return RestorePoint(checkpoint=self._restored[0]), []

    def _restored_step(self) -> int | None:
        """Return the step that this generation goes on from; None if nobody has asked, or it is the beginning."""
        return self._restored[0].step if self._restored and self._restored[0] else None

    def _choose_restore_point(self, now_s: float, *, allow_suspect: bool) -> CommitRecord | None:
        """Return where to go on. Suspect checkpoints that are passed over do not hinder saves of their steps."""
        point = self.commits.find_restore_point(allow_suspect=allow_suspect)
        if point is None:
            return None
        for record in self.commits.pass_over(point.step, until=self.membership.generation):
            self._say(now_s, None, "checkpoint passed over", f"step {record.step} is suspect: {record.diverged}")
        if point.is_suspect:
            why = "a worker allowed it" if allow_suspect else "there is no other one"
            self._say(now_s, None, "suspect checkpoint restored", f"step {point.step}, because {why}")
        return point

    def report_part(self, command: c.ReportPart, now_s: float) -> Answer:
        """Note that a part is durable; with the last one, have the manifest written."""
        if self.commits.has_other_part(command):
            self._check(command)
            raise StepTakenError(self.job_id, command.step)
        return self.report_part_unfenced(command, now_s)

    def report_part_unfenced(self, command: c.ReportPart, now_s: float) -> Answer:
        """Do the same, but accept a second part of a worker and ignore it, as rules 0 did."""
        before = self.commits.progress(command.step, command.report.path)
        if before.phase == "aborted":
            raise CheckpointAbortedError(command.step, before.reason)
        if before.phase in ("writing", "committed"):
            return Done(), []  # whatever became of the generation since: it counts
        self._check(command)
        self.ledger.check_reported(command.worker_id, command.progress)
        begins = command.step not in self.commits.pending and command.step not in self.commits.committed
        if begins:
            # Before the first part or not at all: a checkpoint that was begun is not left without its other parts.
            self.tenant.check("checkpoint_bytes", adding=command.report.size_bytes)
        pending = self.commits.report(command, self.membership.ids(), now_s=now_s)
        self.ending.go_on()
        if begins:
            self._say(now_s, command.worker_id, "checkpoint begun", f"step {command.step}")
        effects: list[Effect] = []
        for step in self.commits.passed_by(command.worker_id, command.step):
            effects += self._abort(step, f"{command.worker_id} has saved step {command.step} without it", now_s)
        if not pending.is_collecting or pending.missing():
            return Done(), effects
        pending.cursors = self.ledger.cut(pending.step)
        if pending.has_diverged():
            return Done(), effects + self._begin_repair(pending, now_s)
        return Done(), effects + self._ask_for_manifest(pending, now_s)

    def report_repair(self, command: c.ReportRepair, now_s: float) -> Answer:
        """Note what a worker repaired; when all have answered, have the manifest written."""
        self.membership.check(command)
        pending = self.commits.pending.get(command.step)
        if pending is None or pending.repairs is None or pending.generation != command.generation:
            return Done(), []
        if not pending.is_repairing or command.worker_id not in pending.expected:
            return Done(), []  # it comes late: the manifest is written without it
        pending.repairs.setdefault(command.worker_id, command.repair or NOTHING)
        if pending.unrepaired():
            return Done(), []
        return Done(), self._end_repair(pending, now_s)

    def end_repair(self, command: c.EndRepair, now_s: float) -> Answer:
        """Have the manifest written with what was repaired until now."""
        pending = self.commits.pending.get(command.step)
        if pending is None or not pending.is_repairing:
            return Done(), []
        return Done(), self._end_repair(pending, now_s)

    def ask_for_manifest(self, command: c.AskForManifest, now_s: float) -> Answer:
        """Ask the next worker to write a manifest that is still missing."""
        pending = self.commits.pending.get(command.step)
        if pending is None or not pending.is_writing:
            return Done(), []
        return Done(), self._ask_for_manifest(pending, now_s)

    def confirm_commit(self, command: c.ConfirmCommit, now_s: float) -> Answer:
        """Take a checkpoint whose manifest is in storage into the index, and announce it.

        Only the one that the coordinator wants a manifest of, with its own data position: what a confirmation says of
        any other is a mistake, and would have the job continue from where nobody was.
        """
        self.membership.check(command)
        if command.step in self.commits.committed:
            return Done(), []
        pending = self.commits.check_confirmed(command)
        assert pending.cursors is not None
        cut = pending.step, pending.epoch, command.manifest, pending.cursors
        return Done(), self._commit(CommitRecord(*cut, command.diverged), now_s)

    def confirm_commit_unfenced(self, command: c.ConfirmCommit, now_s: float) -> Answer:
        """Decide as journals from before the fence did: whatever a member confirms is committed."""
        self.membership.check(command)
        rejected = self.commits.rejected.get(command.step)
        if rejected is not None and command.generation < rejected.until:
            return Done(), []
        checkpoint = CommitRecord(command.step, command.epoch, command.manifest, command.cursors, command.diverged)
        return Done(), self._commit(checkpoint, now_s)

    def ask_commit(self, command: c.AskCommit, now_s: float) -> Answer:
        """Say how a checkpoint is doing, to a worker that may have missed the announcement."""
        return self.commits.progress(command.step, command.path), []

    def give_up_checkpoint(self, command: c.GiveUpCheckpoint, now_s: float) -> Answer:
        """Give up a checkpoint: a worker has no part of it, or its durable parts cannot be committed."""
        self.membership.check(command)
        if command.step not in self.commits.pending and command.generation != self.membership.generation:
            return Done(), []  # its generation is over, and what a later one saves is none of its business
        return self.give_up_checkpoint_unfenced(command, now_s)

    def give_up_checkpoint_unfenced(self, command: c.GiveUpCheckpoint, now_s: float) -> Answer:
        """Do the same, but remember it whatever generation it is of, as rules 0 did."""
        self.membership.check(command)
        pending = self.commits.pending.get(command.step)
        if pending is not None and pending.generation != command.generation:
            return Done(), []
        reason = f"{command.worker_id}: {command.reason}"
        if command.step not in self.commits.committed:
            # Also for those that have not reported their part yet.
            self.commits.give_up(command.step, command.generation, reason)
        return Done(), self._abort(command.step, reason, now_s, even_writing=True)

    def reject_checkpoint(self, command: c.RejectCheckpoint, now_s: float) -> Answer:
        """Take a checkpoint that cannot be restored out of the index, and have all workers restore an older one."""
        self._check(command)
        if self._restored_step() != command.step:
            return Done(), []  # nobody goes on from it
        # It may have been dropped from the index already.
        if not self.commits.committed.keys() - {command.step} and not self.commits.take_back():
            raise LastCheckpointError(self.job_id, command.step)
        self.membership.begin_anew()
        self.commits.reject(command.step, command.reason, until=self.membership.generation)
        self._say(now_s, command.worker_id, "checkpoint rejected", f"step {command.step}: {command.reason}")
        return Done(), self._new_generation(now_s, f"step {command.step} cannot be restored", Cause.REJECTED)

    def rewind_job(self, command: c.RewindJob, now_s: float) -> Answer:
        """Take what is newer than the step that the job was rewound to out of the index; whoever trains restores again.

        Checkpoints of the step itself and before stay, and so does what workers find in storage.
        """
        if command.number <= self.commits.rewinds:
            return Done(), []
        pending = self.commits.pending.values()
        generation = self.membership.generation
        # Whoever has begun in this generation did so without the rewind.
        has_begun = self._restored is not None or self.ledger.is_dealt()
        has_begun |= any(each.generation == generation for each in pending)
        aborted = [each.step for each in pending if each.step > command.to_step]
        self.commits.rewind(command.number, command.to_step, until=generation + has_begun)
        self._say(now_s, None, "rewound", command.reason, Cause.REWOUND)
        to, reason = self.membership.ids(), "the job was rewound"
        effects: list[Effect] = [
            CheckpointAborted(job_id=self.job_id, to=to, step=step, reason=reason) for step in sorted(aborted)
        ]
        if not has_begun:
            return Done(), effects
        self.membership.begin_anew()
        return Done(), effects + self._new_generation(now_s, reason, Cause.REWOUND)

    def adopt_checkpoints(self, command: c.AdoptCheckpoints, now_s: float) -> Answer:
        """Take what a listing of storage shows into the index.

        The listing may be older than a deletion, which never takes the newest: so what is not newer than all that is
        known is either known too, or gone. A manifest of a step whose manifest is wanted is adopted if it holds the
        data position that was wanted; if not, whoever was asked finds out that the step is taken.
        """
        wanted = {p.step: p.cursors for p in self.commits.pending.values() if not p.is_collecting}
        adopted = [found for found in command.checkpoints if wanted.get(found.step, found.cursors) == found.cursors]
        return self.adopt_checkpoints_unfenced(replace(command, checkpoints=tuple(adopted)), now_s)

    def adopt_checkpoints_unfenced(self, command: c.AdoptCheckpoints, now_s: float) -> Answer:
        """Do the same with any data position, as rules 0 did."""
        latest = self.commits.latest()
        found = [record for record in command.checkpoints if record.step not in self.commits.rejected]
        new = [checkpoint for checkpoint in found if latest is None or checkpoint.step > latest.step]
        effects = [effect for checkpoint in new for effect in self._commit(checkpoint, now_s)]
        return Done(), effects

    def forget_checkpoints(self, command: c.ForgetCheckpoints, now_s: float) -> Answer:
        """Take deleted checkpoints out of the index; what the present generation goes on from stays."""
        if command.even_newest:
            return Done(), self._forget_even_newest(command, now_s)
        kept = self._restored_step()
        for step in self.commits.forget(tuple(step for step in command.steps if step != kept)):
            self._say(now_s, None, "checkpoint removed", f"step {step}")
        return Done(), []

    def _forget_even_newest(self, command: c.ForgetCheckpoints, now_s: float) -> list[Effect]:
        """Take checkpoints out of the index because an operator says so; whoever goes on from one restores again."""
        self.commits.drop_suspects(command.steps)
        for step in self.commits.committed.keys() & set(command.steps):
            self.commits.reject(step, "removed by an operator", until=self.membership.generation + 1)
            self._say(now_s, None, "checkpoint removed", f"step {step}, by an operator")
        if self._restored_step() in command.steps:
            self.membership.begin_anew()
            return self._new_generation(now_s, "an operator removed its checkpoint", Cause.REJECTED)
        return []

    def ask_checkpoints(self, command: c.AskCheckpoints, now_s: float) -> Answer:
        """Say which checkpoints the index has."""
        return CommittedSteps(steps=tuple(sorted(self.commits.committed))), []

    def drop_checkpoints(self, command: c.DropCheckpoints, now_s: float) -> Answer:
        """Take checkpoints that are gone from storage out of the index, also the newest.

        The last one stays, because a worker that sees none may look at another storage: then nobody begins anew by
        mistake. Workers that restored one of them have its state and train on.
        """
        for step in self.commits.drop_deleted(command.steps, until=self.membership.generation + 1):
            self._say(now_s, None, "checkpoint removed", f"step {step}")
        return Done(), []

    def abort_checkpoint(self, command: c.AbortCheckpoint, now_s: float) -> Answer:
        """Give up a checkpoint that still misses parts."""
        return Done(), self._abort(command.step, command.reason, now_s)

    def _due_checkpoints(self, now_s: float) -> list[c.JobCommand]:
        """Return what time alone demands of the checkpoints under way."""
        demands: list[c.JobCommand] = []
        for pending in self.commits.pending.values():
            if pending.is_collecting and pending.begun_s + self._limits.collect_s < now_s:
                reason = f"no part of {', '.join(pending.missing()[:5])} in {self._limits.collect_s:g} s"
                demands.append(c.AbortCheckpoint(job_id=self.job_id, step=pending.step, reason=reason))
            elif pending.is_repairing and pending.repair_began_s + self._limits.repair_s < now_s:
                demands.append(c.EndRepair(job_id=self.job_id, step=pending.step))
            elif pending.is_writing and pending.asked_at_s + self._limits.manifest_s < now_s:
                demands.append(c.AskForManifest(job_id=self.job_id, step=pending.step))
        return demands

    def _ask_again_of(self, worker_id: str) -> list[Effect]:
        """Return the wishes for manifests and repairs that a worker which joins again may have missed."""
        asked = [pending for pending in self.commits.pending.values() if pending.asked_of == worker_id]
        repairing = [pending for pending in self.commits.pending.values() if pending.is_repairing]
        return [
            *(self._wanted(pending, worker_id) for pending in asked),
            *(self._repair_wanted(pending, (worker_id,)) for pending in repairing if worker_id in pending.unrepaired()),
        ]

    def _leave_generation(self, generation: int, reason: str, now_s: float) -> list[Effect]:
        """Give up what older generations still collect; what is durable in full stays."""
        self._restored = None
        self.commits.change_generation()
        effects: list[Effect] = []
        for step in self.commits.of_older_generations(generation):
            effects += self._abort(step, reason, now_s)
        for pending in self.commits.pending.values():
            # Whoever was asked may be the one that went: the next one is due to be asked at once.
            pending.asked_at_s = float("-inf")
            if pending.is_repairing and not set(pending.unrepaired()) <= set(self.membership.ids()):
                # What its memory held is gone: the manifest is written with what was repaired until now.
                effects += self._end_repair(pending, now_s)
        return effects

    def _begin_repair(self, pending: Pending, now_s: float) -> list[Effect]:
        """Ask all workers to repair a checkpoint whose replicas differ."""
        pending.repairs, pending.is_repairing, pending.repair_began_s = {}, True, now_s
        self._say(now_s, None, "checkpoint repairing", f"step {pending.step}: replicas differ")
        return [self._repair_wanted(pending, pending.expected)]

    def _end_repair(self, pending: Pending, now_s: float) -> list[Effect]:
        pending.is_repairing = False
        return self._ask_for_manifest(pending, now_s)

    def _repair_wanted(self, pending: Pending, to: tuple[str, ...]) -> RepairWanted:
        reports = tuple(pending.reports[worker_id] for worker_id in pending.expected)
        return RepairWanted(
            job_id=self.job_id, to=to, step=pending.step, generation=pending.generation, reports=reports
        )

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
            reports=tuple(pending.reports[worker_id] for worker_id in pending.expected),
            cursors=pending.cursors,
            repairs=pending.ordered_repairs(),
        )

    def _commit(self, checkpoint: CommitRecord, now_s: float) -> list[Effect]:
        if not self.commits.commit(checkpoint):
            return []
        # Cuts of steps that still collect parts must stay possible.
        collecting = [p.step - 1 for p in self.commits.pending.values() if p.is_collecting]
        self.ledger.settle(min([checkpoint.step, *collecting]))
        self._say(now_s, None, "checkpoint committed", f"step {checkpoint.step}")
        if warning := self.tenant.warn_of_checkpoints():
            self._say(now_s, None, "quota warning", warning)
        if checkpoint.diverged is not None:
            self._say(now_s, None, "replicas diverged", f"step {checkpoint.step}: {checkpoint.diverged}")
        if checkpoint.is_suspect:
            reason = f"step {checkpoint.step}: a restart goes on from an older one, if there is one that is not suspect"
            self._say(now_s, None, "checkpoint suspect", reason)
        to = self.membership.ids()
        return [CheckpointCommitted(job_id=self.job_id, to=to, step=checkpoint.step, manifest=checkpoint.manifest)]

    def _abort(self, step: int, reason: str, now_s: float, *, even_writing: bool = False) -> list[Effect]:
        if not self.commits.abort(step, reason, even_writing=even_writing):
            return []
        self._say(now_s, None, "checkpoint aborted", f"step {step}: {reason}")
        return [CheckpointAborted(job_id=self.job_id, to=self.membership.ids(), step=step, reason=reason)]

    @abstractmethod
    def _check(self, command: c.GenerationCommand) -> None: ...

    @abstractmethod
    def _check_running(self, command: c.GenerationCommand) -> None: ...

    @abstractmethod
    def _new_generation(self, now_s: float, reason: str, cause: Cause) -> list[Effect]: ...

    @abstractmethod
    def _say(self, now_s: float, worker_id: str | None, kind: str, reason: str, cause: Cause | None = None) -> None: ...
