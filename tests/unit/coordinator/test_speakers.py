"""A worker's effects go where it was accepted last, and a closed connection means only the workers that speak there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster import commands as c
from strata.cluster.replies import Done, HeartbeatReply
from strata.coordinator.speakers import Speakers
from strata.errors import StaleIncarnationError

REPLY = HeartbeatReply(rank=0, world_size=1, generation=1, waits_for=0)


def beat(worker: str = "a", incarnation: str = "1") -> c.Heartbeat:
    return c.Heartbeat(worker_id=worker, incarnation=incarnation)


@pytest.fixture
def speakers() -> Speakers[str]:
    speakers: Speakers[str] = Speakers()
    speakers.answered(beat(), REPLY, "first")
    return speakers


def test_effects_go_to_the_connection_on_which_the_worker_was_accepted_last(speakers: Speakers[str]) -> None:
    assert speakers.find("default", "a") == "first"
    speakers.answered(beat(), REPLY, "second")
    assert speakers.find("default", "a") == "second"


def test_a_heartbeat_that_is_refused_takes_nothing_over(speakers: Speakers[str]) -> None:
    speakers.answered(beat(incarnation="0"), StaleIncarnationError("a", "0", state="training"), "other")
    assert speakers.find("default", "a") == "first"


def test_after_a_goodbye_nothing_is_sent_and_nothing_is_lost(speakers: Speakers[str]) -> None:
    speakers.answered(c.Goodbye(worker_id="a", incarnation="1"), Done(), "first")
    assert speakers.find("default", "a") is None
    assert speakers.lost("first") == []


def test_an_old_connection_that_closes_means_nothing_for_a_worker_that_speaks_on_another(
    speakers: Speakers[str],
) -> None:
    speakers.answered(beat("b"), REPLY, "first")
    speakers.answered(beat(), REPLY, "second")
    assert speakers.lost("first") == [c.ChannelLost(worker_id="b", incarnation="1")]
    assert speakers.find("default", "a") == "second"


def test_a_worker_that_asks_to_join_on_another_connection_is_not_lost_with_the_old_one(
    speakers: Speakers[str],
) -> None:
    """Its answer may wait for a slow journal for longer than the grace."""
    join = c.RegisterWorker(worker_id="a", incarnation="1")
    speakers.joins(join, "second")
    assert speakers.lost("first") == []
    assert speakers.find("default", "a") is None
    # If that one closes as well before it is answered, nobody is there.
    assert speakers.lost("second") == [c.ChannelLost(worker_id="a", incarnation="1")]
    assert speakers.lost("second") == []


def test_one_that_asked_and_was_refused_or_is_another_process_keeps_nobody(speakers: Speakers[str]) -> None:
    lost = [c.ChannelLost(worker_id="a", incarnation="1")]
    speakers.joins(c.RegisterWorker(worker_id="a", incarnation="2"), "second")
    assert speakers.lost("first") == lost
    speakers.answered(beat(), REPLY, "first")
    join = c.RegisterWorker(worker_id="a", incarnation="1")
    speakers.joins(join, "third")
    speakers.answered(join, StaleIncarnationError("a", "1", state="failed"), "third")
    assert speakers.lost("first") == lost


def test_who_asks_to_join_on_a_new_connection_and_gives_it_up_speaks_on_the_old_one(speakers: Speakers[str]) -> None:
    speakers.joins(c.RegisterWorker(worker_id="a", incarnation="1"), "second")
    assert speakers.lost("second") == []
    assert speakers.find("default", "a") == "first"


def test_losing_a_connection_looks_at_its_own_workers_alone() -> None:
    looked: list[tuple[str, str]] = []

    class Counted(dict[tuple[str, str], tuple[str, str]]):
        def __iter__(self) -> Iterator[tuple[str, str]]:
            raise AssertionError("all workers were looked through")

        def items(self) -> Any:
            raise AssertionError("all workers were looked through")

        def get(self, key: Any, default: Any = None) -> Any:
            looked.append(key)
            return super().get(key, default)

    speakers: Speakers[str] = Speakers()
    speakers._connections, speakers._joining = Counted(), Counted()
    connections = [f"connection {number}" for number in range(100)]
    for number, connection in enumerate(connections):
        speakers.answered(beat(f"w{number}"), REPLY, connection)
    looked.clear()
    assert speakers.lost(connections[7]) == [c.ChannelLost(worker_id="w7", incarnation="1")]
    assert set(looked) == {("default", "w7")}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "accept", "refuse", "beat", "goodbye", "lost"]),
            st.sampled_from("ab"),
            st.sampled_from("12"),
            st.sampled_from(["x", "y", "z"]),
        ),
        max_size=30,
    )
)
def test_the_index_by_connection_says_what_a_look_through_all_workers_would(steps: list[tuple[str, ...]]) -> None:
    speakers: Speakers[str] = Speakers()
    for kind, worker, incarnation, connection in steps:
        join = c.RegisterWorker(worker_id=worker, incarnation=incarnation)
        if kind == "join":
            speakers.joins(join, connection)
        elif kind == "accept":
            speakers.answered(join, REPLY, connection)
        elif kind == "refuse":
            speakers.answered(join, StaleIncarnationError(worker, incarnation, state="failed"), connection)
        elif kind == "beat":
            speakers.answered(beat(worker, incarnation), REPLY, connection)
        elif kind == "goodbye":
            speakers.answered(c.Goodbye(worker_id=worker, incarnation=incarnation), Done(), connection)
        else:
            speakers.lost(connection)
        tables = (speakers._connections, speakers._joining)
        dumb: dict[int, set[tuple[str, str]]] = {}
        for table in tables:
            for who, (_, where) in table.items():
                dumb.setdefault(id(where), set()).add(who)
        assert {where: set(workers) for where, workers in speakers._workers.items()} == dumb
