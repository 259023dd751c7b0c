"""Requests: each is asked until it is answered, in its order, and its answer counts once."""

from __future__ import annotations

import pytest

from strata.client.worker import actions as a
from strata.client.worker.requests import FIRST_RETRY_S, MAX_RETRY_S
from strata.cluster import commands as c
from strata.cluster.replies import Done
from strata.errors import (
    CoordinatorLostError,
    OutOfOrderError,
    Recovery,
    StrataError,
    UnknownDatasetError,
)
from tests.unit.client.protocol_worker import REFUSED, Worker, report
from tests.unit.test_errors import SAMPLES


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_as_an_answer_is_passed_on_or_asked_again(worker: Worker, error: StrataError) -> None:
    number = worker.ask(c.GetKey(key="x"))
    worker.reply(number, error)
    assert worker.is_answered(number) == (error.recovery is not Recovery.RETRY)


def test_what_was_not_answered_is_asked_again_on_the_next_connection_in_its_order(worker: Worker) -> None:
    numbers = [worker.ask(c.GetKey(key=str(n))) for n in range(3)]
    worker.reply(numbers[1], Done())
    worker.take(worker.protocol.lost(worker.now_s))
    worker.actions.clear()
    worker.join()
    assert [sent.number for sent in worker.sent(c.GetKey)] == [numbers[0], numbers[2]]


def test_a_question_that_the_journal_refuses_is_asked_until_it_is_answered(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="x"))
    for _ in range(5):
        worker.reply(number, REFUSED)
        assert not worker.is_answered(number)
        again = [sent.number for sent in worker.pass_time(3.0) if isinstance(sent, a.Send)]
        assert number in again
        worker.answer_heartbeats()
    worker.reply(number, Done())
    assert worker.answer(number) == Done()


def test_pauses_of_a_question_that_is_refused_grow_and_are_bounded(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="x"))
    pauses_s = []
    for _ in range(7):
        refused_s = worker.now_s
        worker.reply(number, REFUSED)
        while not any(isinstance(each, a.Send) and each.number == number for each in worker.pass_time(0.05)):
            worker.answer_heartbeats()
        pauses_s.append(worker.now_s - refused_s)
    assert pauses_s == pytest.approx([0.2, 0.4, 0.8, 1.6, MAX_RETRY_S, MAX_RETRY_S, MAX_RETRY_S], abs=0.051)


def test_a_pause_begins_with_the_refusal_and_not_with_the_last_tick(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="x"))
    worker.now_s += 1.5
    worker.reply(number, REFUSED)
    assert worker.pass_time(0.0) == []
    assert worker.protocol.next_tick_s() == pytest.approx(worker.now_s + 2 * FIRST_RETRY_S)


def test_a_refused_question_waits_for_the_next_connection_when_its_pause_ends_without_one(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="x"))
    worker.reply(number, REFUSED)
    worker.take(worker.protocol.lost(worker.now_s))
    worker.actions.clear()
    worker.pass_time(1.0)
    assert worker.sent(c.GetKey) == []
    worker.join()
    assert [sent.number for sent in worker.sent(c.GetKey)] == [number]


def test_a_refused_question_that_times_out_is_not_asked_again(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="x"), timeout_s=FIRST_RETRY_S)
    worker.reply(number, REFUSED)
    worker.actions.clear()
    worker.pass_time(1.0)
    assert worker.answer(number) is REFUSED
    assert worker.sent(c.GetKey) == []


def test_nothing_is_asked_before_the_worker_has_joined() -> None:
    worker = Worker(joins=False)
    number = worker.ask(c.GetKey(key="x"))
    worker.take(worker.protocol.connected(worker.now_s))
    assert worker.sent(c.GetKey) == []
    worker.join()
    assert [sent.number for sent in worker.sent(c.GetKey)] == [number]


def test_a_question_with_a_timeout_ends_with_a_lost_coordinator() -> None:
    worker = Worker(joins=False)
    number = worker.ask(c.GetKey(key="x"), timeout_s=5.0)
    worker.pass_time(5.1)
    assert isinstance(worker.answer(number), CoordinatorLostError)


def test_an_answer_that_comes_twice_counts_once(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="x"))
    worker.reply(number, Done())
    assert worker.reply(number, UnknownDatasetError("d", known=[])) == []


def test_reports_are_numbered_by_generation(worker: Worker) -> None:
    for generation in (1, 1, 2):
        report(worker, generation)
    sent = [action.command for action in worker.sent(c.ReportProgress)]
    assert [(command.generation, command.sequence) for command in sent] == [(1, 1), (1, 2), (2, 1)]


def test_a_report_that_came_before_a_refused_one_is_repeated_after_it(worker: Worker) -> None:
    first, second = report(worker), report(worker)
    worker.reply(first, REFUSED)
    worker.reply(second, OutOfOrderError("a", what="report", expected=1, sent=2))
    assert not worker.is_answered(second)
    worker.pass_time(1.0)
    worker.reply(first, Done())
    worker.reply(second, Done())
    assert worker.answer(second) == Done()


def test_a_report_out_of_order_with_none_before_it_is_an_error(worker: Worker) -> None:
    number = report(worker)
    error = OutOfOrderError("a", what="report", expected=4, sent=1)
    worker.reply(number, error)
    assert worker.answer(number) is error
