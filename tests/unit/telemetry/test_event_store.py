"""Events from a position on: none is missed, none comes twice, and a position of another life is no error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.events import MAX_EVENTS, Event
from strata.coordinator.telemetry.event_store import EventStore


def event(number: int, *, job: str = "a", kind: str = "k") -> Event:
    return Event(float(number), job, None, kind, "")


@given(sizes=st.lists(st.integers(0, 20), max_size=10), limit=st.integers(1, 7))
def test_paging_gives_every_event_once_in_order(sizes: list[int], limit: int) -> None:
    store, count, after = EventStore("life"), 0, None
    got: list[float] = []
    for size in sizes:
        store.extend(event(count + number) for number in range(size))
        count += size
        while True:
            found = store.find(after=after, job_id=None, kind=None, limit=limit)
            got += [each.at_s for _, each in found.events]
            after = found.next
            if not found.has_more:
                break
    assert got == [float(number) for number in range(count)]


def test_events_are_filtered_by_job_and_kind_and_the_position_passes_the_others() -> None:
    store = EventStore("life")
    store.extend([event(0), event(1, job="b"), event(2, kind="x"), event(3, job="b", kind="x")])
    found = store.find(after=None, job_id="b", kind=None, limit=10)
    assert [each.at_s for _, each in found.events] == [1.0, 3.0]
    assert store.find(after=found.next, job_id=None, kind=None, limit=10).events == []
    assert [e.at_s for _, e in store.find(after=None, job_id=None, kind="x", limit=10).events] == [2.0, 3.0]


def test_the_newest_are_the_last_ones_in_order() -> None:
    store = EventStore("life")
    store.extend(map(event, range(10)))
    found = store.find(after=None, job_id=None, kind=None, limit=3, newest=True)
    assert [each.at_s for _, each in found.events] == [7.0, 8.0, 9.0]
    assert found.has_more
    assert store.find(after=found.next, job_id=None, kind=None, limit=3).events == []


def test_a_position_of_another_life_begins_anew_and_says_so() -> None:
    store = EventStore("life")
    store.extend([event(0)])
    found = store.find(after="other-77", job_id=None, kind=None, limit=10)
    assert found.is_lost
    assert len(found.events) == 1


def test_events_that_are_forgotten_are_said_to_be_lost() -> None:
    store = EventStore("life")
    store.extend(map(event, range(MAX_EVENTS + 5)))
    found = store.find(after="life-1", job_id=None, kind=None, limit=1)
    assert found.is_lost
    assert found.events[0][1].at_s == 5.0


@pytest.mark.parametrize(
    "after", ["x", "-", "life-", "life-x", "life-9", "life--1", "li fe-1", "life-\u0661", "9" * 40]
)
def test_a_position_that_cannot_be_is_refused_with_words(after: str) -> None:
    with pytest.raises(ValueError, match="after="):
        EventStore("life").find(after=after, job_id=None, kind=None, limit=1)
