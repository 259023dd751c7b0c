"""Which coordinator is tried next: hints first, then all in turn, with pauses that grow and never end a search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.client.worker.leader_search import (
    ATTEMPT_S,
    FIRST_ATTEMPT_OF_SEVERAL_S,
    FIRST_PAUSE_S,
    MAX_ATTEMPT_OF_SEVERAL_S,
    MAX_HINTS,
    MAX_PAUSE_OF_SEVERAL_S,
    MAX_PAUSE_S,
    LeaderSearch,
)

ABC = ("a:1", "b:1", "c:1")


def search(*addresses: str) -> LeaderSearch:
    return LeaderSearch(addresses or ABC, lambda: 1.0)


def test_the_replicas_are_tried_in_turn() -> None:
    looking = search()
    first = looking.start()
    assert (first.address, first.delay_s) == ("a:1", 0.0)
    assert [looking.next().address for _ in range(5)] == ["b:1", "c:1", "a:1", "b:1", "c:1"]


def test_a_hint_is_tried_first_and_at_once_and_then_the_turn_goes_on() -> None:
    looking = search()
    looking.start()
    looking.hear("c:1", term=3)
    hinted = looking.next()
    assert (hinted.address, hinted.delay_s) == ("c:1", 0.0)
    assert looking.next().address == "b:1"


def test_a_hint_may_name_an_address_that_was_not_configured() -> None:
    looking = search()
    looking.start()
    looking.hear("d:1", term=3)
    assert looking.next().address == "d:1"
    looking.found()
    # It led last, so it is tried first when it is lost, and then it is forgotten.
    assert [looking.next().address for _ in range(5)] == ["d:1", "a:1", "b:1", "c:1", "a:1"]


def test_two_replicas_that_name_each_other_do_not_make_a_loop() -> None:
    looking = search()
    tried, pauses = [looking.start().address], 0.0
    for _ in range(60):
        looking.hear({"a:1": "b:1", "b:1": "a:1", "c:1": "a:1"}[tried[-1]], term=7)
        attempt = looking.next()
        tried.append(attempt.address)
        pauses += attempt.delay_s
    assert tried.count("c:1") >= 15
    assert pauses > 60 / len(ABC) / 2 * MAX_PAUSE_OF_SEVERAL_S


def test_terms_that_grow_for_ever_do_not_make_a_loop() -> None:
    looking = search()
    tried = [looking.start().address]
    for term in range(1, 61):
        looking.hear("b:1" if tried[-1] == "a:1" else "a:1", term=term)
        tried.append(looking.next().address)
    assert tried.count("c:1") >= 60 // (len(ABC) + MAX_HINTS) - 1


def test_an_older_hint_is_ignored() -> None:
    looking = search()
    looking.start()
    looking.hear("c:1", term=9)
    assert looking.next().address == "c:1"
    looking.hear("b:1", term=8)
    assert looking.next().delay_s > 0


def test_a_hint_of_a_new_term_is_followed_to_one_that_was_tried_before() -> None:
    looking = search()
    looking.start()
    looking.hear("", term=1)
    assert looking.next().address == "b:1"
    looking.hear("a:1", term=2)
    assert looking.next().address == "a:1"


def test_in_each_round_a_hint_is_followed_also_to_one_that_was_tried_in_the_last() -> None:
    looking = search()
    looking.start()
    for _ in range(MAX_HINTS + 1):
        looking.hear("c:1", term=7)
        hinted = looking.next()
        assert (hinted.address, hinted.delay_s) == ("c:1", 0.0)
        assert [looking.next().address for _ in range(3)] == ["b:1", "c:1", "a:1"]


def test_a_replica_that_names_itself_is_not_asked_again_at_once() -> None:
    looking = search()
    looking.start()
    looking.hear("a:1", term=2)
    assert looking.next().address == "b:1"


def test_a_lost_leader_is_tried_first_and_a_silent_one_last() -> None:
    looking = search()
    looking.start()
    looking.next()
    looking.found()
    assert looking.next().address == "b:1"
    looking.found()
    looking.suspect()
    assert [looking.next().address for _ in range(3)] == ["c:1", "a:1", "b:1"]


def test_pauses_grow_with_each_round_and_are_bounded() -> None:
    looking = search("a:1")
    looking.start()
    pauses = [looking.next().delay_s for _ in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_PAUSE_S
    several = search()
    several.start()
    later = [several.next().delay_s for _ in range(36)]
    assert max(later) == MAX_PAUSE_OF_SEVERAL_S
    assert min(later) == FIRST_PAUSE_S


def test_the_search_begins_with_short_pauses_after_a_leader_was_found() -> None:
    looking = search("a:1")
    looking.start()
    for _ in range(10):
        looking.next()
    looking.found()
    assert looking.next().delay_s == FIRST_PAUSE_S


def test_an_attempt_at_one_of_several_is_short_at_first() -> None:
    looking = search()
    assert looking.start().timeout_s == FIRST_ATTEMPT_OF_SEVERAL_S
    for _ in range(30):
        last = looking.next()
    assert last.timeout_s == MAX_ATTEMPT_OF_SEVERAL_S
    assert search("a:1").start().timeout_s == ATTEMPT_S


def test_each_record_of_a_name_has_its_turn_and_the_name_is_looked_up_again() -> None:
    looking = search("replicas:1")
    assert looking.start().address == "replicas:1"
    looking.resolve("replicas:1", ("10.0.0.1:1", "10.0.0.2:1"))
    records = [looking.next(), looking.next()]
    assert [record.address for record in records] == ["10.0.0.1:1", "10.0.0.2:1"]
    # What stands on the certificate.
    assert {record.name for record in records} == {"replicas:1"}
    assert looking.next().address == "replicas:1"


@given(
    replicas=st.integers(1, 5),
    leader=st.integers(0, 4),
    says=st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 3)), min_size=1, max_size=40),
)
def test_whatever_the_replicas_say_the_leader_is_tried_within_a_round(
    replicas: int, leader: int, says: list[tuple[int, int]]
) -> None:
    addresses = tuple(f"r{number}:1" for number in range(replicas))
    looking = LeaderSearch(addresses, lambda: 0.5)
    tried = [looking.start().address]
    for named, term in says * 5:
        looking.hear("" if named < 0 else f"r{named}:1", term)
        tried.append(looking.next().address)
    span = 2 * (replicas + MAX_HINTS)
    for start in range(len(tried) - span):
        assert addresses[leader % replicas] in tried[start : start + span]
