"""Tenants take turns: one that floods waits for itself, and a tenant that is alone does not wait at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata.coordinator.sharing.turns import LONE_SLICE_S, MAX_HELD_BYTES, MAX_WAITING, SLICE_S, Share, Turns


class Loop:
    """A loop whose turns are taken one by one, and whose clock moves with each request."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Callable[[], None]] = []
        self.served: list[str] = []
        self.turns = Turns(self.soon.append, lambda: self.now_s)
        self.shares: dict[str, Share] = {}

    def ask(self, tenant: str, *, takes_s: float = SLICE_S / 8) -> None:
        def serve() -> None:
            self.now_s += takes_s
            self.served.append(tenant)

        self.turns.add(tenant, serve)

    def turn(self) -> None:
        calls, self.soon[:] = list(self.soon), []
        for call in calls:
            call()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_tenant_that_is_alone_takes_no_turns(loop: Loop) -> None:
    loop.turns.enter("a")
    loop.turns.enter("a")
    assert not loop.turns.must_wait
    loop.turns.enter("b")
    assert loop.turns.must_wait
    loop.turns.leave("b")
    assert not loop.turns.must_wait


def test_a_quiet_tenant_waits_for_one_request_of_each_other(loop: Loop) -> None:
    for _ in range(100):
        loop.ask("flood")
    loop.ask("quiet")
    loop.turn()
    assert loop.served[:3] == ["flood", "quiet", "flood"]


def test_after_a_slice_the_sockets_are_looked_at(loop: Loop) -> None:
    loop.turns.enter("flood")
    loop.turns.enter("quiet")
    for _ in range(20):
        loop.ask("flood")
    loop.turn()
    assert len(loop.served) == 8
    loop.ask("quiet")
    loop.turn()
    assert "quiet" in loop.served[8:10]
    while loop.soon:
        loop.turn()
    assert loop.served.count("flood") == 20


def test_what_waits_of_a_tenant_that_is_alone_is_done_in_long_slices(loop: Loop) -> None:
    loop.turns.enter("a")
    for _ in range(20):
        loop.ask("a", takes_s=LONE_SLICE_S / 10)
    loop.turn()
    assert loop.served == ["a"] * 10


def test_what_waits_keeps_its_order_when_the_others_are_gone(loop: Loop) -> None:
    loop.turns.enter("a")
    loop.turns.enter("b")
    loop.ask("a")
    loop.turns.leave("b")
    # Served at once now, the next request would overtake the one that waits.
    assert loop.turns.must_wait
    loop.turn()
    assert not loop.turns.must_wait


def test_the_rest_of_a_request_goes_before_those_that_had_no_turn(loop: Loop) -> None:
    loop.ask("a")
    loop.turns.add_rest("a", lambda: loop.served.append("first answer"))
    loop.turns.add_rest("a", lambda: loop.served.append("second answer"))
    loop.turn()
    assert loop.served == ["first answer", "second answer", "a"]


def test_a_coordinator_that_ends_answers_what_had_its_turn_and_nothing_else(loop: Loop) -> None:
    loop.ask("a")
    loop.turns.add_rest("a", lambda: loop.served.append("answer"))
    loop.turns.finish()
    assert loop.served == ["answer"]


def share(loop: Loop) -> None:
    loop.shares = {tenant: loop.turns.enter(tenant) for tenant in ("flood", "quiet")}


def test_a_tenant_with_much_waiting_is_not_read_from_until_it_has_little(loop: Loop) -> None:
    share(loop)
    for _ in range(MAX_WAITING - 1):
        loop.ask("flood")
    assert not loop.turns.is_busy("flood")
    loop.ask("flood")
    assert loop.turns.is_busy("flood")
    assert not loop.turns.is_busy("quiet")
    loop.turns.when_read("flood", lambda: loop.served.append("read"))
    while "read" not in loop.served:
        loop.turn()
    assert MAX_WAITING // 2 <= len(loop.served) < MAX_WAITING


def test_connections_are_read_from_again_one_after_the_other(loop: Loop) -> None:
    share(loop)
    for number in range(3):
        loop.turns.when_read("flood", lambda number=number: loop.served.append(f"read {number}"))
    loop.turn()
    assert loop.served == ["read 0"]
    # Nobody asks for anything, and still all of them are read from in the end.
    loop.turn()
    loop.turn()
    assert loop.served == ["read 0", "read 1", "read 2"]
    assert not loop.soon


def test_bytes_without_an_answer_hold_a_tenant_back_until_they_are_answered(loop: Loop) -> None:
    share(loop)
    loop.shares["flood"].held_bytes += MAX_HELD_BYTES
    assert loop.turns.is_busy("flood")
    loop.turns.when_read("flood", lambda: loop.served.append("read"))
    loop.turn()
    assert not loop.soon, "a loop that waits for the disk must not be busy"
    assert not loop.served
    loop.shares["flood"].held_bytes -= MAX_HELD_BYTES
    loop.turns.look_again()
    loop.turn()
    assert loop.served == ["read"]


def test_a_tenant_that_is_alone_is_always_read_from(loop: Loop) -> None:
    loop.turns.enter("flood").held_bytes += MAX_HELD_BYTES
    assert not loop.turns.is_busy("flood")
