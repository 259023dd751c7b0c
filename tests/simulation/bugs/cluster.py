"""Bugs in the coordinator's state machine."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from strata.client.worker.meetings import Meetings
from strata.client.worker.protocol import WorkerProtocol
from strata.cluster import cluster as cluster_module
from strata.cluster import commands as c
from strata.cluster import commits, keys, membership
from strata.cluster.barriers import Barriers
from strata.cluster.cluster import _HANDLERS, Cluster
from strata.cluster.commits import NOTHING, CommitProgress, Commits, Pending
from strata.cluster.events import ManifestWanted
from strata.cluster.job import Job
from strata.cluster.keys import Keys
from strata.cluster.ledger.deals import LeasedDeal
from strata.cluster.ledger.epoch_ledger import EpochLedger
from strata.cluster.ledger.ledger import Ledger
from strata.cluster.membership import Membership
from strata.cluster.replies import Done, KeyValue, Registered
from strata.errors import StrataError
from tests.simulation.bugs.planting import bug, none_of, nothing, wrap

# Who is a member.


@bug
def accept_any_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "check_generation", nothing)


@bug
def keep_the_generation_when_a_worker_fails(patch: pytest.MonkeyPatch) -> None:
    def lazy(change: Any, self: Membership) -> None:
        change(self)
        self.generation -= self.generation > 3

    wrap(patch, Membership, "_change", lazy)


@bug
def call_a_job_ended_that_has_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "judge", lambda self: self.ending.verdict)


@bug
def give_two_workers_one_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "deal_ranks", lambda wishes: dict.fromkeys(wishes, 0))


@bug
def let_a_replaced_process_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "check_successor", nothing)


@bug
def let_an_older_process_take_the_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "_is_older", lambda *_: False)


@bug
def order_processes_by_their_wall_clocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "_is_older", membership._is_older_by_wall_clock)


@bug
def forget_that_a_process_is_older_than_one_that_was_replaced(patch: pytest.MonkeyPatch) -> None:
    def forgetful(check: Any, command: c.RegisterWorker, known: Any, **fields: Any) -> Any:
        others = tuple(
            process for process in known.replaced if process == membership.split_incarnation(command.incarnation)[0]
        )
        return check(command, replace(known, replaced=others), **fields)

    check_successor = membership.check_successor
    patch.setattr(membership, "check_successor", partial(forgetful, check_successor))


@bug
def accept_any_incarnation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "check", lambda self, command: self._members[command.worker_id])


@bug
def judge_by_time_in_which_the_coordinator_was_stopped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_module, "MAX_PAUSE_S", float("inf"))


@bug
def judge_at_once_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    def hasty(due: Any, self: Cluster, now_s: float) -> Any:
        # The second time there was no pause.
        return due(self, now_s) or due(self, now_s)

    wrap(patch, Cluster, "due", hasty)


@bug
def keep_leases_through_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "restart_leases", nothing)


@bug
def fail_dead_workers_late(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, Membership, "expired", lambda expired, self, now_s: expired(self, now_s=now_s - 10.0))


@bug
def renew_no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "hear", nothing)
    patch.setattr(Membership, "_renew", lambda self, member, now_s: setattr(member, "lease_until_s", now_s + 3.0))


@bug
def ignore_keep_alives(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "keep_alive", nothing)


@bug
def keep_an_old_heartbeat_reply(patch: pytest.MonkeyPatch) -> None:
    class Sticky(dict[Any, Any]):
        def clear(self) -> None:
            """Keep everything."""

    def build(init: Any, self: Job, *args: Any) -> None:
        init(self, *args)
        self._heartbeat_replies = Sticky()

    wrap(patch, Job, "__init__", build)


# Barriers.


@bug
def keep_barriers_in_a_new_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Barriers, "change_generation", none_of)


@bug
def keep_releases_of_workers_that_left(patch: pytest.MonkeyPatch) -> None:
    def keeping(change: Any, self: Barriers, generation: int) -> Any:
        kept = dict(self._released), self._released_bytes, dict(self._holders)
        effects = change(self, generation)
        self._released, self._released_bytes, self._holders = kept
        return effects

    wrap(patch, Barriers, "change_generation", keeping)


@bug
def count_the_bytes_of_barriers_that_failed(patch: pytest.MonkeyPatch) -> None:
    def leaking(fail: Any, self: Barriers, *args: Any) -> Any:
        waiting_bytes = self._waiting_bytes
        effect = fail(self, *args)
        self._waiting_bytes = waiting_bytes
        return effect

    wrap(patch, Barriers, "_fail", leaking)


@bug
def count_the_bytes_of_releases_that_are_kept_no_more(patch: pytest.MonkeyPatch) -> None:
    def leaking(change: Any, self: Barriers, generation: int) -> Any:
        kept_bytes = self._released_bytes
        effects = change(self, generation)
        self._released_bytes = kept_bytes
        return effects

    wrap(patch, Barriers, "change_generation", leaking)


@bug
def release_one_too_early(patch: pytest.MonkeyPatch) -> None:
    def early(arrive: Any, self: Barriers, command: c.ArriveAtBarrier, *args: Any, **fields: Any) -> Any:
        fewer = replace(command, expected=max(1, (command.expected or 2) - 1))
        return arrive(self, fewer, *args, **fields)

    wrap(patch, Barriers, "arrive", early)


@bug
def ignore_offered_releases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Barriers, "offer", none_of)


@bug
def keep_a_brought_release_to_oneself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Barriers, "bring", none_of)


@bug
def forget_releases_at_once(patch: pytest.MonkeyPatch) -> None:
    # Workers would mend it, if they did not offer theirs only when they join.
    offer = Meetings.offer

    def join_and_offer(join: Any, self: WorkerProtocol, registered: Registered) -> None:
        join(self, registered)
        offer(self.meetings)

    patch.setattr(Barriers, "_keep", nothing)
    patch.setattr(Meetings, "offer", nothing)
    wrap(patch, WorkerProtocol, "_join", join_and_offer)


@bug
def meet_once_under_a_name(patch: pytest.MonkeyPatch) -> None:
    wrap(
        patch,
        Barriers,
        "arrive",
        lambda arrive, self, command, *a, **f: arrive(self, replace(command, round=1), *a, **f),
    )


# Checkpoints.


@bug
def commit_without_the_last_part(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, Pending, "missing", lambda missing, self: missing(self)[1:])


@bug
def announce_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(c.ConfirmCommit, "durable", False)


@bug
def mix_parts_of_two_generations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "of_older_generations", none_of)


@bug
def wait_for_parts_that_never_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "passed_by", none_of)


@bug
def take_a_confirmation_of_another_generation(patch: pytest.MonkeyPatch) -> None:
    def trusting(check: Any, self: Commits, command: c.ConfirmCommit) -> Any:
        pending = self.pending.get(command.step)
        return check(self, command if pending is None else replace(command, generation=pending.generation))

    wrap(patch, Commits, "check_confirmed", trusting)


@bug
def take_repairs_that_come_late(patch: pytest.MonkeyPatch) -> None:
    def patient(report: Any, job: Job, command: c.ReportRepair, now_s: float) -> Any:
        pending = job.commits.pending.get(command.step)
        answer = report(job, command, now_s)
        if pending is not None and pending.repairs is not None and pending.generation == command.generation:
            pending.repairs[command.worker_id] = command.repair or NOTHING
        return answer

    handler = _HANDLERS[c.ReportRepair]
    patch.setitem(_HANDLERS, c.ReportRepair, partial(patient, handler))


@bug
def take_repairs_of_another_generation(patch: pytest.MonkeyPatch) -> None:
    def trusting(report: Any, job: Job, command: c.ReportRepair, now_s: float) -> Any:
        pending = job.commits.pending.get(command.step)
        generation = command.generation if pending is None else pending.generation
        return report(job, replace(command, generation=generation), now_s)

    handler = _HANDLERS[c.ReportRepair]
    patch.setitem(_HANDLERS, c.ReportRepair, partial(trusting, handler))


@bug
def wait_for_the_repairs_of_workers_that_left(patch: pytest.MonkeyPatch) -> None:
    def waiting(leave: Any, self: Job, *args: Any) -> Any:
        repairing = [pending for pending in self.commits.pending.values() if pending.is_repairing]
        effects = leave(self, *args)
        for pending in repairing:
            pending.is_repairing = pending.step in self.commits.pending
        return [each for each in effects if not isinstance(each, ManifestWanted)]

    wrap(patch, Job, "_leave_generation", waiting)


@bug
def write_the_manifest_before_the_repairs(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, Pending, "unrepaired", lambda unrepaired, self: unrepaired(self)[1:])


@bug
def forget_repairs_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commits, "_record_repairs", lambda _: {})


@bug
def forget_that_a_step_was_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "give_up", nothing)


@bug
def give_up_what_is_durable(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Commits, generation: int) -> list[int]:
        return [p.step for p in self.pending.values() if p.generation < generation]

    patch.setattr(Commits, "of_older_generations", hasty)
    wrap(patch, Job, "_abort", lambda abort, self, *args, **_: abort(self, *args, even_writing=True))


@bug
def forget_what_was_committed(patch: pytest.MonkeyPatch) -> None:
    def forgetful(commit: Any, self: Commits, checkpoint: Any) -> bool:
        is_new: bool = commit(self, checkpoint)
        self._reports_of.clear()
        return is_new

    wrap(patch, Commits, "commit", forgetful)


@bug
def say_committed_too_early(patch: pytest.MonkeyPatch) -> None:
    def hopeful(progress: Any, self: Commits, step: int, path: str) -> CommitProgress:
        said: CommitProgress = progress(self, step, path)
        return CommitProgress(phase="committed") if said.phase == "writing" else said

    wrap(patch, Commits, "progress", hopeful)


@bug
def restore_before_a_commit_that_is_under_way(patch: pytest.MonkeyPatch) -> None:
    def hasty(ask: Any, self: Job, command: Any, now_s: float) -> Any:
        pending, self.commits.pending = self.commits.pending, {}
        try:
            return ask(self, command, now_s)
        finally:
            self.commits.pending = pending

    handler = _HANDLERS[c.AskRestorePoint]
    patch.setitem(_HANDLERS, c.AskRestorePoint, lambda job, command, now_s: hasty(handler, job, command, now_s))


@bug
def keep_the_restore_point_of_the_last_generation(patch: pytest.MonkeyPatch) -> None:
    def sticky(leave: Any, self: Job, *args: Any) -> Any:
        before = self._restored
        effects = leave(self, *args)
        self._restored = before
        return effects

    wrap(patch, Job, "_leave_generation", sticky)


@bug
def ask_nobody_else_for_a_manifest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "_due_checkpoints", none_of)


@bug
def take_a_rejected_checkpoint_in_again(patch: pytest.MonkeyPatch) -> None:
    def trusting(self: Job, command: c.AdoptCheckpoints, now_s: float) -> Any:
        return Done(), [effect for record in command.checkpoints for effect in self._commit(record, now_s)]

    patch.setitem(_HANDLERS, c.AdoptCheckpoints, trusting)


@bug
def reject_the_only_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Job, command: c.RejectCheckpoint, now_s: float) -> Any:
        self._check(command)
        if self._restored != (command.step,):
            return Done(), []
        self.membership.begin_anew()
        self.commits.reject(command.step, command.reason, until=self.membership.generation)
        return Done(), self._new_generation(now_s, "rejected")

    patch.setitem(_HANDLERS, c.RejectCheckpoint, hasty)


@bug
def forget_the_newest_checkpoint(patch: pytest.MonkeyPatch) -> None:
    def thorough(commit: Any, self: Job, *args: Any) -> Any:
        effects = commit(self, *args)
        if len(self.commits.committed) > 2:
            del self.commits.committed[max(self.commits.committed)]
        return effects

    wrap(patch, Job, "_commit", thorough)


# Data.


@bug
def cut_at_the_present(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, EpochLedger, "cursor", lambda cursor, self, step: cursor(self, 10**9))


@bug
def cut_before_the_step(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, EpochLedger, "cursor", lambda cursor, self, step: cursor(self, step - 1))


@bug
def forget_to_roll_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EpochLedger, "roll_back", nothing)


@bug
def count_reports_twice(patch: pytest.MonkeyPatch) -> None:
    def forgetful(report: Any, self: Ledger, command: Any) -> None:
        self._sequences[command.worker_id] = command.incarnation, command.sequence - 1
        report(self, command)

    wrap(patch, Ledger, "report", forgetful)


@bug
def keep_shard_leases_in_a_new_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "change_generation", nothing)


@bug
def lease_a_shard_twice(patch: pytest.MonkeyPatch) -> None:
    def careless(take: Any, self: LeasedDeal, worker_id: str, sequence: int) -> Any:
        self._next = 0 if worker_id == "w1" and sequence == 1 else self._next
        return take(self, worker_id, sequence)

    wrap(patch, LeasedDeal, "take", careless)


@bug
def forget_leases_in_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeasedDeal, "restore", nothing)


@bug
def forget_what_was_skipped(patch: pytest.MonkeyPatch) -> None:
    def thorough(roll_back: Any, self: Ledger, cursors: str) -> None:
        roll_back(self, cursors)
        self._skipped.clear()

    wrap(patch, Ledger, "roll_back", thorough)


@bug
def change_something_and_refuse(patch: pytest.MonkeyPatch) -> None:
    def careless(check: Any, self: Job, command: Any) -> None:
        try:
            check(self, command)
        except StrataError:
            self.commits.give_up(1, 1, "by mistake")
            raise

    wrap(patch, Job, "_check", careless)


# Keys.


@bug
def set_a_key_again_when_that_is_repeated(patch: pytest.MonkeyPatch) -> None:
    def careless(once: Any, self: Keys, command: c.SetKey) -> KeyValue:
        found: KeyValue = once(self, replace(command, token=self.get(command.key).token))
        return found

    wrap(patch, Keys, "set", careless)


@bug
def count_tokens_of_a_key_anew_after_its_removal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keys, "set", Keys.set_by_count)


@bug
def forget_who_set_a_key_that_was_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys, "MAX_REMOVED", 0)


@bug
def forget_who_set_a_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys, "MAX_WRITERS", 1)
