"""Parts and manifests: reported in the order of their saves, and asked after until the outcome is known."""

from __future__ import annotations

import pytest

from strata.client.worker import actions as a
from strata.client.worker.commits import ASK_AGAIN_S
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.commits import CommitProgress
from strata.cluster.replies import Done
from strata.cluster.values import CommitRecord, Meeting, PartReport
from strata.errors import (
    CheckpointAbortedError,
    CheckpointTimeoutError,
    CommitRefusedError,
    DuplicateWorkerError,
    StaleGenerationError,
    StrataError,
    UnknownWorkerError,
)
from tests.unit.client.protocol_worker import REFUSED, Worker, released, report


def part(worker: Worker, step: int, *, is_durable: bool = True, timeout_s: float = 100.0) -> int:
    number = worker.protocol.begin_part(step, 1)
    if is_durable:
        make_durable(worker, number, step, timeout_s=timeout_s)
    return number


def make_durable(worker: Worker, number: int, step: int, *, timeout_s: float = 100.0) -> None:
    sent = PartReport(f"step_{step}/a", 1, "00")
    worker.take(worker.protocol.commit_part(number, worker.now_s, epoch=0, report=sent, timeout_s=timeout_s))


def test_a_part_is_reported_then_asked_after_until_it_is_committed(worker: Worker) -> None:
    number = part(worker, 5)
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    worker.reply(worker.sent(c.AskCommit)[-1].number, CommitProgress(phase="collecting", missing=("b",)))
    assert a.Waiting(number, ("b",)) in worker.actions
    worker.pass_time(ASK_AGAIN_S + 0.1)
    worker.reply(worker.sent(c.AskCommit)[-1].number, CommitProgress(phase="committed"))
    assert worker.answer(number) == Done()


def test_a_worker_whose_checkpoint_waits_for_others_offers_the_releases_that_those_may_have_missed(
    worker: Worker,
) -> None:
    """A release that got lost is not known to a coordinator whose journal refused a write, and so nobody saves."""
    worker.meet("step")
    worker.effect(released("step"))
    part(worker, 5)
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    assert worker.sent(c.OfferReleases) == []
    worker.reply(worker.sent(c.AskCommit)[-1].number, CommitProgress(phase="collecting", missing=("b",)))
    (offer,) = worker.sent(c.OfferReleases)
    assert offer.command.meetings == (Meeting("step", 1),)


def test_an_announcement_makes_the_worker_ask_at_once(worker: Worker) -> None:
    number = part(worker, 5)
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    asked = worker.sent(c.AskCommit)[-1].number
    # It overtakes the reply to the question.
    worker.effect(e.CheckpointCommitted(job_id="default", to=("a",), step=5, manifest="m"))
    worker.reply(asked, CommitProgress(phase="collecting", missing=("b",)))
    worker.reply(worker.sent(c.AskCommit)[-1].number, CommitProgress(phase="committed"))
    assert worker.answer(number) == Done()


def test_parts_are_reported_in_the_order_in_which_their_saves_began(worker: Worker) -> None:
    slow, fast = part(worker, 5, is_durable=False), part(worker, 6)
    assert worker.sent(c.ReportPart) == []
    make_durable(worker, slow, 5)
    (first,) = worker.sent(c.ReportPart)
    assert first.command.step == 5
    worker.reply(first.number, Done())
    assert worker.sent(c.ReportPart)[-1].command.step == 6
    assert not worker.is_answered(fast)


def test_a_save_that_failed_is_given_up_for_all_and_lets_the_next_part_through(worker: Worker) -> None:
    failed = part(worker, 5, is_durable=False)
    part(worker, 6)
    worker.take(worker.protocol.drop_part(failed, "disk full", worker.now_s))
    assert worker.sent(c.GiveUpCheckpoint)[-1].command.step == 5
    assert worker.sent(c.ReportPart)[-1].command.step == 6


def test_a_part_says_which_reports_came_before_it(worker: Worker) -> None:
    report(worker)
    report(worker)
    part(worker, 5)
    assert worker.sent(c.ReportPart)[-1].command.progress == 2


@pytest.mark.parametrize(
    "error", [StaleGenerationError("a", sent=1, current=2), UnknownWorkerError("a", known=[])], ids=repr
)
def test_a_part_of_a_generation_that_is_over_is_an_aborted_checkpoint(worker: Worker, error: StrataError) -> None:
    number = part(worker, 5)
    worker.reply(worker.sent(c.ReportPart)[-1].number, error)
    assert isinstance(worker.answer(number), CheckpointAbortedError)


def test_an_error_that_names_a_newer_generation_makes_it_known_before_the_error_is_answered(worker: Worker) -> None:
    worker.effect(e.GenerationChanged(job_id="default", to=("a",), generation=1, reason="a joined"))
    number = part(worker, 5)
    worker.reply(worker.sent(c.ReportPart)[-1].number, StaleGenerationError("a", sent=1, current=2))
    assert worker.protocol.generation == 2
    given_up = worker.answer(number)
    assert isinstance(given_up, CheckpointAbortedError)
    assert "is in generation 2" in str(given_up)
    assert "a joined" not in str(given_up)
    worker.effect(e.GenerationChanged(job_id="default", to=("a",), generation=2, reason="b joined"))
    assert worker.protocol.why_changed == "b joined"


def test_a_part_that_the_coordinator_forgot_is_reported_again(worker: Worker) -> None:
    part(worker, 5)
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    worker.reply(worker.sent(c.AskCommit)[-1].number, CommitProgress(phase="unknown"))
    assert len(worker.sent(c.ReportPart)) == 2
    part(worker, 10)
    assert len(worker.sent(c.ReportPart)) == 2, "its turn comes when the one before is reported"
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    commands = [sent.command for sent in worker.sent(c.ReportPart)]
    assert [command.step for command in commands if isinstance(command, c.ReportPart)] == [5, 5, 10]


def test_a_commit_that_takes_too_long_names_whom_it_waits_for(worker: Worker) -> None:
    number = part(worker, 5, timeout_s=3.0)
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    worker.reply(worker.sent(c.AskCommit)[-1].number, CommitProgress(phase="collecting", missing=("b",)))
    worker.pass_time(3.1)
    error = worker.answer(number)
    assert isinstance(error, CheckpointTimeoutError)
    assert "b" in str(error)


def test_the_next_question_after_an_announcement_counts_from_it_and_not_from_the_last_tick(worker: Worker) -> None:
    part(worker, 5)
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    worker.now_s += ASK_AGAIN_S / 2
    worker.effect(e.CheckpointCommitted(job_id="default", to=("a",), step=5, manifest="m"))
    # The question before the announcement is repeated in its turn, that of the announcement later.
    worker.pass_time(ASK_AGAIN_S - 0.1)
    assert len(worker.sent(c.AskCommit)) == 3
    worker.pass_time(0.2)
    assert len(worker.sent(c.AskCommit)) == 4


def test_a_refused_worker_waits_for_no_commit(worker: Worker) -> None:
    committing = part(worker, 4)
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    reporting, saving, queued = part(worker, 5), part(worker, 6, is_durable=False), part(worker, 7)
    error = DuplicateWorkerError("default", "a")
    worker.take(worker.protocol.refuse(error, worker.now_s))
    assert [worker.answer(number) for number in (committing, reporting, queued)] == [error] * 3
    assert not worker.is_answered(saving), "whoever writes it has not asked yet"


WANTED = e.ManifestWanted(job_id="default", to=("a",), step=5, epoch=0, generation=1, reports=(), cursors="[]")


def test_a_manifest_is_written_once_confirmed_until_it_is_answered_and_then_cleaned_up(worker: Worker) -> None:
    assert a.WriteManifest(WANTED) not in worker.effect(WANTED), "nobody here can write it yet"
    assert worker.take(worker.protocol.serve_manifests(worker.now_s, is_serving=True)) == [a.WriteManifest(WANTED)]
    assert a.WriteManifest(WANTED) not in worker.effect(WANTED), "it is being written"
    worker.take(worker.protocol.manifest_written(5, CommitRecord(5, 0, "m", "[]"), worker.now_s))
    confirm = worker.sent(c.ConfirmCommit)[-1]
    worker.reply(confirm.number, REFUSED)
    worker.pass_time(1.0)
    assert a.CleanUp(WANTED) in worker.reply(confirm.number, Done())


def test_a_confirmation_that_is_refused_is_not_sent_again_and_cleans_nothing_up(worker: Worker) -> None:
    worker.take(worker.protocol.serve_manifests(worker.now_s, is_serving=True))
    worker.effect(WANTED)
    worker.take(worker.protocol.manifest_written(5, CommitRecord(5, 0, "m", "[]"), worker.now_s))
    confirm = worker.sent(c.ConfirmCommit)[-1]
    actions = worker.reply(confirm.number, CommitRefusedError("default", 5, generation=1, problem="it was aborted"))
    assert not any(isinstance(action, a.CleanUp) for action in actions)
    worker.pass_time(60.0)
    assert worker.sent(c.ConfirmCommit)[-1] is confirm


@pytest.mark.parametrize(("reason", "given_up"), [("it has another manifest", 1), (None, 0)])
def test_a_manifest_that_nobody_can_write_is_given_up_and_any_other_left_to_another_worker(
    worker: Worker, reason: str | None, given_up: int
) -> None:
    worker.take(worker.protocol.serve_manifests(worker.now_s, is_serving=True))
    worker.effect(WANTED)
    worker.take(worker.protocol.manifest_failed(5, reason, worker.now_s))
    assert len(worker.sent(c.GiveUpCheckpoint)) == given_up


def test_a_manifest_that_is_wanted_again_while_it_is_written_is_written_again_after_a_failure(worker: Worker) -> None:
    worker.take(worker.protocol.serve_manifests(worker.now_s, is_serving=True))
    worker.effect(WANTED)
    worker.effect(WANTED)
    assert worker.take(worker.protocol.manifest_failed(5, None, worker.now_s)) == [a.WriteManifest(WANTED)]


@pytest.mark.parametrize(
    "end",
    [
        e.CheckpointAborted(job_id="default", to=("a",), step=5, reason="another worker gave it up"),
        e.CheckpointCommitted(job_id="default", to=("a",), step=5, manifest="m"),
    ],
)
def test_a_manifest_is_not_written_any_more_when_its_checkpoint_has_ended(worker: Worker, end: e.Effect) -> None:
    worker.effect(WANTED)
    worker.effect(end)
    assert worker.take(worker.protocol.serve_manifests(worker.now_s, is_serving=True)) == []
    worker.effect(WANTED)
    worker.effect(WANTED)
    worker.effect(end)
    assert a.WriteManifest(WANTED) not in worker.take(worker.protocol.manifest_failed(5, None, worker.now_s))


def test_a_step_is_repaired_once_in_each_generation(worker: Worker) -> None:
    def asked(generation: int) -> bool:
        wanted = e.RepairWanted(job_id="default", to=("a",), step=5, generation=generation, reports=())
        return a.WriteRepair(wanted) in worker.effect(wanted)

    assert [asked(generation) for generation in (1, 1, 2, 2)] == [True, False, True, False]
    worker.effect(e.CheckpointAborted(job_id="default", to=("a",), step=5, reason="w left"))
    assert asked(2), "it is saved again"


def test_an_announcement_of_another_step_makes_nobody_ask(worker: Worker) -> None:
    part(worker, 5)
    worker.reply(worker.sent(c.ReportPart)[-1].number, Done())
    before = len(worker.sent(c.AskCommit))
    worker.effect(e.CheckpointCommitted(job_id="default", to=("a",), step=6, manifest="m"))
    assert len(worker.sent(c.AskCommit)) == before
