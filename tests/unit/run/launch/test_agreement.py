"""Launchers of several machines agree on each start of their workers, and on how it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strata.run.launch.group.agreement import Agreement, Begun, Node, Outcome

LIVING = {0: "a", 1: "b"}


def prepared(agreement: Agreement, *node_ranks: int, min_workers: int | None = None, **fields: Any) -> Agreement:
    """Let launchers of two workers each be ready, with a port that tells the round and the machine."""
    for rank in node_ranks:
        node = Node(
            process=agreement.nodes[rank].process,
            **{"workers": 2, "address": f"10.0.0.{rank}", "port": 100 * (agreement.number + 1) + rank, **fields},
        )
        agreement = agreement.prepare(rank, node, nnodes=2, min_workers=min_workers)
    return agreement


def joined() -> Agreement:
    return Agreement().join(0, LIVING).join(1, LIVING)


def test_a_round_begins_when_the_last_launcher_is_ready() -> None:
    agreement = prepared(joined(), 1)
    assert agreement.begun is None
    assert prepared(agreement, 0).begun == Begun(
        master_addr="10.0.0.0", master_port=100, first_ranks={0: 0, 1: 2}, world_size=4
    )


def test_the_first_launcher_waits_for_one_that_lives_and_has_not_joined() -> None:
    assert prepared(Agreement().join(0, LIVING), 0, min_workers=1).begun is None


def test_a_round_ends_once_whoever_sees_it_and_the_next_has_another_port() -> None:
    first = prepared(joined(), 0, 1)
    ended = first.end_round(0, cause="rank 3 died", recent_restarts=1)
    assert ended.end_round(0, cause="rank 0 lost its connection", recent_restarts=1) == ended
    assert (ended.number, ended.restarts, ended.cause, ended.begun) == (1, 1, "rank 3 died", None)
    begun = prepared(ended, 0, 1).begun
    assert begun is not None
    assert begun.master_port == 200


def test_what_was_ready_for_the_last_round_is_not_ready_for_the_next() -> None:
    ended = prepared(joined(), 0, 1).end_round(0, cause="x", recent_restarts=1)
    assert prepared(ended, 0).begun is None


def test_a_launcher_that_is_replaced_ends_the_round_which_is_no_failure() -> None:
    agreement = prepared(joined(), 0, 1).join(1, {0: "a", 1: "c"})
    assert (agreement.number, agreement.restarts) == (1, 0)
    assert agreement.cause == "the launcher of node rank 1 was started"
    begun = prepared(agreement, 0, 1).begun
    assert begun is not None
    assert begun.world_size == 4


def test_a_lost_launcher_is_waited_for() -> None:
    agreement = prepared(joined(), 0, 1).remove(1, "b", nnodes=2, min_workers=None)
    assert agreement.lost == [1]
    ended = agreement.end_round(0, cause="node rank 1 is lost")
    assert prepared(ended, 0).begun is None
    back = ended.join(1, {0: "a", 1: "c"})
    assert back.number == ended.number, "the round that is gathered is the one that it comes into"
    assert prepared(back, 0, 1).begun is not None


def test_with_enough_workers_the_others_go_on_without_a_lost_launcher() -> None:
    agreement = prepared(joined(), 0, 1).remove(0, "a", nnodes=2, min_workers=2).end_round(0, cause="x")
    begun = prepared(agreement, 1, min_workers=2).begun
    assert begun == Begun(master_addr="10.0.0.1", master_port=201, first_ranks={1: 0}, world_size=2)


def test_a_launcher_that_is_lost_while_others_wait_for_it_lets_them_begin_if_they_are_enough() -> None:
    waiting = prepared(joined(), 0, min_workers=2)
    assert waiting.begun is None
    assert waiting.remove(1, "b", nnodes=2, min_workers=2).begun is not None
    assert waiting.remove(1, "another", nnodes=2, min_workers=2) == waiting


def test_the_launchers_of_an_earlier_run_that_were_killed_do_not_count() -> None:
    old = prepared(joined(), 0, 1).end_round(0, cause="x", recent_restarts=7)
    new = old.join(0, {0: "c", 1: "d"})
    assert new == Agreement(nodes={0: Node(process="c"), 1: Node(process="d")})
    assert new.join(1, {0: "c", 1: "d"}) == new


def test_a_launcher_waits_until_those_of_a_run_that_is_over_have_left() -> None:
    over = prepared(joined(), 0, 1).give_up(0, Outcome(code=1, reason="x")).remove(0, "a", nnodes=2, min_workers=None)
    assert over.join(0, {0: "c", 1: "b"}) == over
    left = over.remove(1, "b", nnodes=2, min_workers=None)
    assert left.to_bytes() == b""
    assert left.join(0, {0: "c", 1: "d"}).outcome is None


def test_a_launcher_that_comes_late_learns_that_the_others_gave_up() -> None:
    agreement = Agreement().join(0, LIVING).give_up(0, Outcome(code=3, reason="x"))
    assert agreement.join(1, LIVING).outcome == Outcome(code=3, reason="x")


def test_the_job_is_finished_when_all_machines_are() -> None:
    agreement = prepared(joined(), 0, 1).finish(0, 0)
    assert agreement.outcome is None
    again = prepared(agreement.end_round(0, cause="x", recent_restarts=1), 0, 1)
    assert again.finish(1, 0) == again, "the workers of that round started again"
    assert again.finish(1, 1).outcome is None
    assert again.finish(1, 1).finish(0, 1).outcome == Outcome(code=0)


def test_a_failure_in_a_round_that_is_over_gives_nothing_up() -> None:
    ended = prepared(joined(), 0, 1).end_round(0, cause="x", recent_restarts=1)
    assert ended.give_up(0, Outcome(code=1)) == ended


def test_an_address_that_others_cannot_reach_is_given_to_one_machine_only() -> None:
    here = {"address": "127.0.0.1", "outer_address": "10.9.9.9"}
    begun = prepared(joined(), 0, 1, **here).begun
    assert begun is not None
    assert begun.master_addr == "127.0.0.1"
    begun = prepared(prepared(joined(), 0, **here), 1).begun
    assert begun is not None
    assert begun.master_addr == "10.9.9.9"


def test_it_is_read_as_it_was_written() -> None:
    agreement = prepared(joined(), 0, 1).finish(0, 0)
    assert Agreement.from_bytes(agreement.to_bytes()) == agreement
    over = replace(agreement, outcome=Outcome(code=1, reason="x"), begun=None)
    assert Agreement.from_bytes(over.to_bytes()) == over
    for other in (b"", b"[]", b"{}", b'{"nodes": 1, "begun": null, "outcome": null}'):
        assert Agreement.from_bytes(other) == Agreement()


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=6), order=st.randoms())
def test_every_rank_is_given_once_in_whatever_order_launchers_come(counts: list[int], order: Any) -> None:
    living = {rank: f"p{rank}" for rank in range(len(counts))}
    agreement, coming = Agreement(), list(living)
    order.shuffle(coming)
    for rank in coming:
        agreement = agreement.join(rank, living)
        node = Node(process=living[rank], workers=counts[rank], address="h", port=rank + 1)
        agreement = agreement.prepare(rank, node, nnodes=len(counts), min_workers=None)
    assert agreement.begun is not None
    ranks = [first + i for rank, first in agreement.begun.first_ranks.items() for i in range(counts[rank])]
    assert ranks == list(range(agreement.begun.world_size)) == list(range(sum(counts)))
    assert agreement.begun.master_port == 1
