"""Events that are followed through a change of leaders: which of those that come again were shown."""

from __future__ import annotations

import pytest

from strata.cli.watch import followed_events
from strata.cli.watch.followed_events import ShownEvents
from strata.wire._generated import coordinator_pb2 as pb


def event(at_s: float, reason: str = "", by: str = "") -> pb.Event:
    return pb.Event(time_s=at_s, job_id="j", kind="generation changed", reason=reason, by=by)


def show(shown: ShownEvents, *events: pb.Event) -> list[float]:
    return [each.time_s for each in events if shown.is_new(each)]


def test_the_next_leader_tells_only_what_was_not_told() -> None:
    shown = ShownEvents()
    shown.begin_stream()
    # The journal does not keep whose token it was.
    assert show(shown, event(1, by="alice"), event(2), event(3, "only the first leader knows")) == [1, 2, 3]
    shown.begin_stream()
    assert shown.may_miss
    assert show(shown, event(1), event(2), event(2.5), event(4)) == [2.5, 4]
    assert not shown.may_miss
    shown.begin_stream()
    assert show(shown, event(1), event(2), event(2.5), event(4), event(5)) == [5]


def test_two_events_that_are_equal_are_told_twice_and_not_more() -> None:
    shown = ShownEvents()
    shown.begin_stream()
    assert show(shown, event(1), event(1)) == [1, 1]
    shown.begin_stream()
    assert show(shown, event(1), event(1), event(1)) == [1]


def test_a_leader_that_knows_nothing_of_what_was_told_may_miss_something() -> None:
    shown = ShownEvents()
    shown.begin_stream()
    assert not shown.may_miss, "nothing was told yet"
    assert show(shown, event(1)) == [1]
    shown.begin_stream()
    assert show(shown, event(9)) == [9]
    assert shown.may_miss


def test_what_was_told_and_forgotten_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_events, "MAX_KEPT", 3)
    shown = ShownEvents()
    shown.begin_stream()
    assert show(shown, *map(event, range(1, 7))) == [1, 2, 3, 4, 5, 6]
    shown.begin_stream()
    assert show(shown, *map(event, range(9))) == [7, 8]
