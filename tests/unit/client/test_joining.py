"""Joining and heartbeats: when a worker registers, and in which life, and when it leaves a connection."""

from __future__ import annotations

import pytest

from strata.client.worker import actions as a
from strata.client.worker.heartbeats import DEAD_AFTER_LEASES
from strata.client.worker.states import State
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.replies import Done, HeartbeatReply, Registered
from strata.cluster.values import PartReport, RankInfo
from strata.errors import (
    DuplicateWorkerError,
    JobFullError,
    StaleIncarnationError,
    StrataError,
    UnknownJobError,
    UnknownWorkerError,
    WorkerActiveError,
)
from tests.unit.client.protocol_worker import LEASE_S, REFUSED, Worker, report


def test_a_refused_heartbeat_does_not_end_the_heartbeats(worker: Worker) -> None:
    first = worker.sent(c.Heartbeat)
    worker.reply(first[-1].number, REFUSED)
    worker.pass_time(LEASE_S / 2)
    assert len(worker.sent(c.Heartbeat)) > len(first)


def test_a_connection_on_which_no_heartbeat_is_answered_is_left(worker: Worker) -> None:
    actions = worker.pass_time(LEASE_S * DEAD_AFTER_LEASES + 0.1)
    kinds = [type(action) for action in actions if not isinstance(action, a.Send)]
    assert kinds == [a.Disconnect, a.Connect]
    assert worker.protocol.state is State.DISCONNECTED


def test_heartbeats_that_are_answered_keep_the_connection(worker: Worker) -> None:
    for _ in range(20):
        worker.answer_heartbeats()
        worker.pass_time(LEASE_S / 4)
    assert worker.protocol.state is State.JOINED


def test_a_registration_without_an_answer_is_tried_on_another_connection() -> None:
    worker = Worker(joins=False)
    worker.take(worker.protocol.connected(worker.now_s))
    assert [type(action) for action in worker.pass_time(11.0)] == [a.Disconnect, a.Connect]


def replace(worker: Worker) -> DuplicateWorkerError:
    """Let the worker learn that another process has its name."""
    stale = StaleIncarnationError("a", worker.protocol.worker.incarnation, state="training")
    (again,) = worker.reply(worker.sent(c.Heartbeat)[-1].number, stale)
    assert isinstance(again, a.Send)
    error = DuplicateWorkerError("default", "a")
    worker.reply(again.number, error)
    return error


def test_a_worker_that_was_replaced_is_refused_whatever_it_asks_and_waits_for_nothing(worker: Worker) -> None:
    waiting, asking = worker.meet("step", generation=1), worker.ask(c.GetKey(key="k"))
    part = worker.protocol.begin_part(5, 1)
    assert worker.protocol.check(1) is None
    error = replace(worker)
    assert [worker.answer(number) for number in (waiting, asking)] == [error] * 2
    for generation in (1, 2):
        assert worker.protocol.check(generation) is error
    later = [worker.meet("again", generation=1), worker.ask(c.GetKey(key="k")), report(worker)]
    committed = PartReport("p", 1, "d")
    worker.take(worker.protocol.commit_part(part, worker.now_s, epoch=0, report=committed, timeout_s=100.0))
    assert [worker.answer(number) for number in (*later, part)] == [error] * 4


def test_a_worker_that_was_replaced_while_the_coordinator_was_away_is_refused_when_it_is_back(worker: Worker) -> None:
    worker.take(worker.protocol.lost(worker.now_s))
    assert worker.protocol.check(1) is None, "the outage of a coordinator ends no training"
    sent = worker.take(worker.protocol.connected(worker.now_s))
    worker.reply(sent[-1].number, DuplicateWorkerError("default", "a"))
    assert isinstance(worker.protocol.check(1), DuplicateWorkerError)


def test_a_member_whose_name_a_later_process_has_does_not_wait_for_its_end(worker: Worker) -> None:
    """The coordinator that knew both lost its journal."""
    worker.take(worker.protocol.lost(worker.now_s))
    sent = worker.take(worker.protocol.connected(worker.now_s))
    worker.reply(sent[-1].number, WorkerActiveError("default", "a"))
    assert isinstance(worker.protocol.check(1), DuplicateWorkerError)
    first = Worker(joins=False)
    sent = first.take(first.protocol.connected(first.now_s))
    first.reply(sent[-1].number, WorkerActiveError("default", "a"))
    assert first.protocol.check(0) is None, "it waits for the lease of the other one"


def test_who_asked_learns_of_a_refusal_when_it_is_known_whether_the_worker_was_replaced(worker: Worker) -> None:
    """Told at once that it is no member, a script that cannot recover ends, and would be started again into a fight."""
    reported = report(worker)
    stale = StaleIncarnationError("a", "1-p.1", state="training")
    (again,) = worker.reply(worker.sent(c.ReportProgress)[-1].number, stale)
    assert isinstance(again, a.Send)
    assert not worker.is_answered(reported)
    error = DuplicateWorkerError("default", "a")
    worker.reply(again.number, error)
    assert worker.answer(reported) is error


def test_who_asked_learns_that_the_worker_was_declared_dead_when_it_has_joined_again(worker: Worker) -> None:
    reported = report(worker)
    stale = StaleIncarnationError("a", "1-p.1", state="failed")
    (again,) = worker.reply(worker.sent(c.ReportProgress)[-1].number, stale)
    assert isinstance(again, a.Send)
    worker.reply(again.number, Registered(rank=0, world_size=1, generation=5, waits_for=0, lease_s=LEASE_S))
    assert not worker.is_answered(reported)
    worker.reply(worker.sent(c.ReportProgress)[-1].number, stale)
    assert worker.answer(reported) is stale


def test_a_worker_that_was_declared_dead_joins_in_its_next_life(worker: Worker) -> None:
    beat = worker.sent(c.Heartbeat)[-1]
    (again,) = worker.reply(beat.number, StaleIncarnationError("a", "1-p.1", state="failed"))
    assert isinstance(again, a.Send)
    assert again.command == c.RegisterWorker(worker_id="a", incarnation="1-p.2")
    worker.reply(again.number, Registered(rank=0, world_size=1, generation=5, waits_for=0, lease_s=LEASE_S))
    assert worker.sent(c.Heartbeat)[-1].command.incarnation == "1-p.2"


@pytest.mark.parametrize("error", [UnknownWorkerError("a", known=[]), UnknownJobError("default", known=[])])
def test_a_coordinator_that_lost_its_journal_is_joined_again_in_the_same_life(
    worker: Worker, error: StrataError
) -> None:
    (again,) = worker.reply(worker.sent(c.Heartbeat)[-1].number, error)
    assert isinstance(again, a.Send)
    assert again.command == c.RegisterWorker(worker_id="a", incarnation="1-p.1")


def test_an_error_of_an_earlier_life_does_not_begin_another_one(worker: Worker) -> None:
    number = worker.ask(c.GetKey(key="x"))
    worker.reply(number, StaleIncarnationError("a", "1-p.0", state="failed"))
    assert worker.protocol.worker.incarnation == "1-p.1"
    assert worker.protocol.state is State.JOINED


def test_a_worker_that_was_replaced_is_refused_and_so_is_everything_it_asked(worker: Worker) -> None:
    numbers = [worker.ask(c.GetKey(key="x")), worker.meet("epoch")]
    worker.take(worker.protocol.lost(worker.now_s))
    sent = worker.take(worker.protocol.connected(worker.now_s))
    error = DuplicateWorkerError("default", "a")
    worker.reply(sent[-1].number, error)
    assert worker.protocol.state is State.REFUSED
    assert [worker.answer(number) for number in numbers] == [error, error]
    assert worker.answer(worker.ask(c.GetKey(key="y"))) is error
    assert worker.take(worker.protocol.lost(worker.now_s)) == []


def test_a_registration_that_the_journal_refuses_is_repeated(worker: Worker) -> None:
    sent = worker.take(worker.protocol.connected(worker.now_s))
    worker.reply(sent[-1].number, REFUSED)
    again = worker.pass_time(3.0)
    assert [type(action.command) for action in again if isinstance(action, a.Send)] == [c.RegisterWorker]


def test_pauses_between_refused_registrations_grow_until_one_succeeds() -> None:
    worker = Worker(joins=False)
    worker.take(worker.protocol.connected(worker.now_s))
    pauses_s = []
    for _ in range(3):
        refused_s = worker.now_s
        worker.reply(worker.sent(c.RegisterWorker)[-1].number, REFUSED)
        while not worker.pass_time(0.05):
            pass
        pauses_s.append(worker.now_s - refused_s)
    assert pauses_s == pytest.approx([0.2, 0.4, 0.8], abs=0.051)


def test_a_job_that_is_full_refuses_for_good() -> None:
    worker = Worker(joins=False)
    sent = worker.take(worker.protocol.connected(worker.now_s))
    worker.reply(sent[-1].number, JobFullError("default", "a", max_workers=1))
    assert worker.protocol.state is State.REFUSED


def test_after_a_goodbye_nothing_makes_the_worker_join_again(worker: Worker) -> None:
    beat = worker.sent(c.Heartbeat)[-1].number
    number, actions = worker.protocol.leave("finished", worker.now_s, timeout_s=10.0)
    worker.take(actions)
    before = len(worker.sent(c.RegisterWorker))
    worker.reply(beat, StaleIncarnationError("a", "1-p.1", state="left"))
    worker.pass_time(5.0)
    assert len(worker.sent(c.RegisterWorker)) == before
    worker.take(worker.protocol.lost(worker.now_s))
    sent = worker.take(worker.protocol.connected(worker.now_s))
    worker.reply(sent[-1].number, StaleIncarnationError("a", "1-p.1", state="left"))
    assert worker.answer(number) == Done()


def test_after_a_goodbye_the_worker_sends_no_more_heartbeats(worker: Worker) -> None:
    _, actions = worker.protocol.leave("finished", worker.now_s, timeout_s=10.0)
    worker.take(actions)
    before = len(worker.sent(c.Heartbeat))
    worker.pass_time(2 * LEASE_S)
    assert len(worker.sent(c.Heartbeat)) == before
    assert worker.protocol.state is State.JOINED, "and does not leave the connection because they are not answered"


def test_after_news_of_a_generation_the_reply_to_a_heartbeat_says_which_rank_the_worker_has_in_it(
    worker: Worker,
) -> None:
    changed = e.GenerationChanged(job_id="default", to=("a",), generation=2, reason="b joined")
    (beat,) = (sent for sent in worker.effect(changed) if isinstance(sent, a.Send))
    assert (worker.protocol.generation, worker.protocol.rank_info.generation) == (2, 1)
    worker.reply(beat.number, HeartbeatReply(rank=1, world_size=2, generation=2, waits_for=0))
    assert worker.protocol.rank_info == RankInfo(rank=1, world_size=2, generation=2)


def test_an_older_reply_does_not_bring_an_older_generation_back(worker: Worker) -> None:
    beats = [worker.sent(c.Heartbeat)[-1].number]
    worker.pass_time(2.0)
    beats.append(worker.sent(c.Heartbeat)[-1].number)
    worker.reply(beats[1], HeartbeatReply(rank=1, world_size=2, generation=3, waits_for=0))
    worker.reply(beats[0], HeartbeatReply(rank=0, world_size=1, generation=2, waits_for=0))
    assert worker.protocol.rank_info.generation == worker.protocol.generation == 3
    assert worker.protocol.rank_info.rank == 1


def test_a_registration_that_is_answered_after_its_connection_was_lost_does_not_count() -> None:
    worker = Worker(joins=False)
    (sent,) = (each for each in worker.take(worker.protocol.connected(worker.now_s)) if isinstance(each, a.Send))
    worker.take(worker.protocol.lost(worker.now_s))
    registered = Registered(rank=0, world_size=1, generation=1, waits_for=0, lease_s=10.0)
    worker.reply(sent.number, registered)
    assert worker.protocol.state is State.DISCONNECTED
