"""Barriers are released once, for everyone, or end with a reason; never with silence."""

from __future__ import annotations

from typing import Any

import pytest

from strata.cluster import Limits, barriers
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.barriers import MAX_PAYLOAD_BYTES, MAX_RELEASED, MAX_RELEASED_BYTES
from strata.cluster.values import Meeting
from strata.errors import (
    BarrierCancelledError,
    BarrierTimeoutError,
    GenerationChangedError,
    PayloadTooLargeError,
    QuotaExceededError,
    StaleGenerationError,
)
from tests.unit.cluster.conftest import Bench


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.join("a", "b", "c")
    return bench


def arrive(bench: Bench, worker: str, name: str = "epoch", **fields: Any) -> list[e.Effect]:
    effects: list[e.Effect] = bench.say(c.ArriveAtBarrier, worker, name=name, **fields)[1]
    return effects


def test_the_last_arrival_releases_everyone_once(bench: Bench) -> None:
    assert arrive(bench, "b") == arrive(bench, "a") == []
    (released,) = arrive(bench, "c")
    assert isinstance(released, e.BarrierReleased)
    assert released.to == ("a", "b", "c")
    assert bench.job.barriers.open() == []


def test_arriving_again_while_waiting_counts_once(bench: Bench) -> None:
    arrive(bench, "a")
    arrive(bench, "a")
    assert arrive(bench, "b") == []


def test_who_did_not_hear_the_release_is_told_again_alone(bench: Bench) -> None:
    for worker in "abc":
        arrive(bench, worker, payload=worker.encode())
    (again,) = arrive(bench, "b", payload=b"b")
    assert isinstance(again, e.BarrierReleased)
    assert (again.to, again.payloads) == (("b",), (b"a", b"b", b"c"))


def test_an_exchange_gives_everyone_all_payloads_in_the_order_of_ranks(bench: Bench) -> None:
    arrive(bench, "c", payload=b"from c")
    arrive(bench, "a", payload=b"from a")
    (released,) = arrive(bench, "b", payload=b"")
    assert isinstance(released, e.BarrierReleased)
    assert released.payloads == (b"from a", b"", b"from c")


def test_a_payload_has_a_limit(bench: Bench) -> None:
    arrive(bench, "a", payload=bytes(MAX_PAYLOAD_BYTES))
    with pytest.raises(PayloadTooLargeError, match="1048577 bytes are too many for exchange 'big'"):
        arrive(bench, "b", name="big", payload=bytes(MAX_PAYLOAD_BYTES + 1))


def test_a_meeting_that_brings_more_together_than_a_frame_carries_fails_for_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barriers, "MAX_MEETING_BYTES", 10)
    arrive(bench, "a", payload=bytes(5))
    (failed,) = arrive(bench, "b", payload=bytes(6))
    assert isinstance(failed, e.BarrierFailed)
    assert failed.to == ("a", "b")
    assert "11 bytes are too many for exchange 'epoch', which allows 10 in all" in str(failed.error)
    assert bench.job.barriers.open() == []


def test_what_waits_at_all_barriers_has_a_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barriers, "MAX_WAITING_BYTES", 10)
    for name in ("x", "y"):
        arrive(bench, "a", name=name, payload=bytes(5))
    for name in ("x", "z"):
        with pytest.raises(QuotaExceededError, match="no more than 10 bytes that wait at the open barriers"):
            arrive(bench, "b", name=name, payload=bytes(1))
    for worker_id in "bc":
        arrive(bench, worker_id, name="x")
    arrive(bench, "a", name="z", payload=bytes(5))


@pytest.mark.parametrize("how", ["time", "cancelled", "generation", "too much"])
def test_what_a_barrier_that_failed_had_brought_counts_no_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(barriers, "MAX_WAITING_BYTES", 10)
    monkeypatch.setattr(barriers, "MAX_MEETING_BYTES", 8)
    arrive(bench, "a", payload=bytes(5), timeout_s=5.0)
    match how:
        case "time":
            bench.pass_time(6.0)
        case "cancelled":
            bench.apply(c.CancelBarrier(name="epoch", reason="enough"))
        case "generation":
            bench.join("d")
        case "too much":
            arrive(bench, "b", payload=bytes(5))
    for name in ("x", "y"):
        arrive(bench, "a", name=name, payload=bytes(5))
    assert len(bench.job.barriers.open()) == 2


def test_fewer_participants_can_be_expected(bench: Bench) -> None:
    arrive(bench, "a", expected=2)
    (released,) = arrive(bench, "c", expected=2)
    assert released.to == ("a", "c")


def test_who_was_not_at_a_meeting_of_fewer_is_not_released_from_it(bench: Bench) -> None:
    for worker in "ac":
        arrive(bench, worker, expected=2, payload=b"x")
    assert arrive(bench, "b", expected=2, payload=b"y") == []
    assert [sorted(barrier.arrivals) for barrier in bench.job.barriers.open()] == [["b"]]


def test_a_timeout_names_who_is_missing_and_what_they_were_doing(bench: Bench) -> None:
    bench.beat("b", state=c.WorkerState.CHECKPOINTING, step=120)
    arrive(bench, "a", timeout_s=5.0)
    assert bench.pass_time(4.9) == []
    (failed,) = bench.pass_time(0.2)
    assert isinstance(failed, e.BarrierFailed)
    assert failed.to == ("a",)
    assert isinstance(failed.error, BarrierTimeoutError)
    assert str(failed.error) == (
        "barrier 'epoch' timed out with 1 of 3: missing b (rank 1, checkpointing, step 120, silent for 5.1 s), "
        "c (rank 2, initializing, step 0, silent for 5.1 s); look at their logs"
    )
    assert bench.job.barriers.open() == []


def test_a_change_of_generation_sends_everyone_away(bench: Bench) -> None:
    arrive(bench, "a")
    arrive(bench, "b", name="other")
    effects = bench.say(c.Goodbye, "c")[1]
    failed = [effect for effect in effects if isinstance(effect, e.BarrierFailed)]
    assert {(effect.name, effect.to) for effect in failed} == {("epoch", ("a",)), ("other", ("b",))}
    assert all(isinstance(effect.error, GenerationChangedError) for effect in failed)


def test_a_name_can_be_used_again_in_a_new_generation(bench: Bench) -> None:
    for worker in "abc":
        arrive(bench, worker)
    bench.join("c", incarnation="2")
    assert arrive(bench, "a") == []


def test_a_release_of_the_last_generation_is_told_to_nobody_and_takes_no_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barriers, "MAX_RELEASED_BYTES", 10)
    monkeypatch.setattr(barriers, "MIN_RELEASED", 1)
    for worker in "abc":
        arrive(bench, worker, payload=bytes(2))
    bench.say(c.Goodbye, "c")
    assert arrive(bench, "a", payload=bytes(2)) == []
    (released,) = arrive(bench, "b", payload=bytes(2))
    assert (released.to, released.generation) == (("a", "b"), bench.generation)
    for worker in "ab":
        arrive(bench, worker, name="next", payload=bytes(3))
    (again,) = arrive(bench, "a", payload=bytes(2))
    assert again.to == ("a",), "ten bytes are kept, and all of this generation"


def test_a_worker_that_left_is_not_asked_for_a_release(bench: Bench) -> None:
    again = bench.restarted()
    again.say(c.OfferReleases, "c", meetings=(Meeting("epoch", 1),))
    again.say(c.Goodbye, "c")
    assert arrive(again, "a") == []


def test_cancelling_sends_everyone_away_with_the_reason(bench: Bench) -> None:
    arrive(bench, "a")
    (failed,) = bench.apply(c.CancelBarrier(name="epoch", reason="operator"))[1]
    assert isinstance(failed, e.BarrierFailed)
    assert isinstance(failed.error, BarrierCancelledError)
    assert "operator" in str(failed.error)
    assert bench.apply(c.CancelBarrier(name="nobody is here"))[1] == []


def test_the_order_of_arrival_and_the_wait_are_kept(bench: Bench) -> None:
    arrive(bench, "c")
    bench.now_s += 2.5
    arrive(bench, "a")
    bench.now_s += 1.0
    arrive(bench, "b")
    (release,) = bench.job.barriers.history
    assert (release.arrivals, release.waited_s) == (("c", "a", "b"), 3.5)


def test_open_barriers_are_bounded() -> None:
    small = Bench(Limits(max_barriers_per_job=1))
    small.join("a", "b")
    arrive(small, "a", name="first")
    with pytest.raises(QuotaExceededError, match="open barriers"):
        arrive(small, "a", name="second")
    (released,) = arrive(small, "b", name="first")
    assert released.to == ("a", "b")


def test_a_small_release_is_remembered_until_many_others_have_followed(bench: Bench) -> None:
    for number in range(MAX_RELEASED):
        for worker in "abc":
            arrive(bench, worker, str(number))
    (again,) = arrive(bench, "a", "0")
    assert isinstance(again, e.BarrierReleased)


def test_what_was_exchanged_is_forgotten_before_it_fills_the_memory(bench: Bench) -> None:
    payload = b"x" * MAX_PAYLOAD_BYTES
    count = MAX_RELEASED_BYTES // (3 * MAX_PAYLOAD_BYTES) + 3
    for number in range(count):
        for worker in "abc":
            arrive(bench, worker, str(number), payload=payload)
    (again,) = arrive(bench, "a", str(count - 1), payload=payload)
    assert isinstance(again, e.BarrierReleased)
    assert arrive(bench, "a", "0", payload=payload) == [], "it is as new"
    bench.pass_time(10_000)
    assert bench.job.barriers.open() == []


def test_the_second_meeting_under_one_name_waits_for_everyone_again(bench: Bench) -> None:
    for worker in "abc":
        arrive(bench, worker)
    assert arrive(bench, "a", round=2) == []
    assert arrive(bench, "b", round=2) == []
    (released,) = arrive(bench, "c", round=2)
    assert isinstance(released, e.BarrierReleased)
    assert (released.name, released.round) == ("epoch", 2)


def bring(bench: Bench, worker: str, released: e.BarrierReleased) -> list[e.Effect]:
    fields = {"name": released.name, "round": released.round, "payloads": released.payloads, "waited_s": 0.0}
    effects: list[e.Effect] = bench.say(c.BringRelease, worker, **fields)[1]
    return effects


@pytest.mark.parametrize("offers_first", [True, False])
def test_a_release_that_one_worker_was_told_of_reaches_the_others_through_a_restart(
    bench: Bench, offers_first: bool
) -> None:
    """The coordinator died between telling a and telling the others: a is at the next meeting, they at the last one."""
    for worker in "abc":
        arrive(bench, worker, payload=worker.encode())
    (told,) = arrive(bench, "a", payload=b"a")
    assert isinstance(told, e.BarrierReleased)
    again = bench.restarted()

    def offer() -> list[e.Effect]:
        effects: list[e.Effect] = again.say(c.OfferReleases, "a", meetings=(Meeting("epoch", 1),))[1]
        return effects

    first = offer() if offers_first else arrive(again, "b", payload=b"b")
    assert first == []
    (wanted,) = arrive(again, "b", payload=b"b") if offers_first else offer()
    assert isinstance(wanted, e.ReleaseWanted)
    assert (wanted.to, wanted.name, wanted.round) == (("a",), "epoch", 1)
    (released,) = bring(again, "a", told)
    assert isinstance(released, e.BarrierReleased)
    assert (released.to, released.payloads) == (("b",), (b"a", b"b", b"c"))
    (late,) = arrive(again, "c", payload=b"c")
    assert isinstance(late, e.BarrierReleased)
    assert (late.to, late.payloads) == (("c",), (b"a", b"b", b"c"))
    assert bring(again, "a", told) == []


def test_a_wish_for_a_release_that_got_lost_is_repeated_with_the_next_arrival(bench: Bench) -> None:
    again = bench.restarted()
    again.say(c.OfferReleases, "a", meetings=(Meeting("epoch", 1),))
    for _ in range(2):
        (wanted,) = arrive(again, "b")
        assert isinstance(wanted, e.ReleaseWanted)


def test_however_much_is_offered_the_newest_offers_are_known(bench: Bench) -> None:
    again = bench.restarted()
    for number in range(MAX_RELEASED + 1):
        again.say(c.OfferReleases, "a", meetings=(Meeting("epoch", number + 1),))
    assert arrive(again, "b", round=1) == []
    (wanted,) = arrive(again, "b", round=MAX_RELEASED + 1)
    assert isinstance(wanted, e.ReleaseWanted)


def test_an_offer_of_another_generation_is_refused(bench: Bench) -> None:
    with pytest.raises(StaleGenerationError):
        bench.say(c.OfferReleases, "a", generation=bench.generation - 1, meetings=(Meeting("epoch", 1),))


def test_a_pause_of_the_coordinator_puts_the_end_of_a_barrier_off(bench: Bench) -> None:
    arrive(bench, "a", timeout_s=5.0)
    bench.pass_time(1.0)
    bench.now_s += 30.0
    assert bench.cluster.due(bench.now_s) == []
    for worker in "abc":
        bench.beat(worker)
    assert bench.pass_time(3.5) == []
    (failed,) = bench.pass_time(1.0)
    assert isinstance(failed, e.BarrierFailed)
