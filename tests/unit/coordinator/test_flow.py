"""The bytes that wait for all clients together are bounded, at the cost of those who read least."""

from __future__ import annotations

from strata.coordinator.flow import UnsentBudget

LIMIT_BYTES = 100


class Held:
    """A connection with bytes that its client does not read."""

    def __init__(self, budget: UnsentBudget) -> None:
        self._budget = budget
        self.waiting_bytes = 0
        self.reasons: list[str] = []

    def hold(self, size_bytes: int) -> None:
        self.waiting_bytes = size_bytes
        self._budget.note(self, size_bytes)

    def unsent_bytes(self) -> int:
        return self.waiting_bytes

    def hang_up(self, reason: str) -> None:
        self.reasons.append(reason)


def test_above_the_limit_those_that_hold_most_are_disconnected_down_to_three_quarters() -> None:
    budget = UnsentBudget(LIMIT_BYTES)
    small, large, larger = Held(budget), Held(budget), Held(budget)
    small.hold(10)
    large.hold(30)
    larger.hold(60)
    assert larger.reasons == [], "the limit itself is allowed"
    small.hold(50)
    assert larger.reasons == ["100 bytes wait for clients, and most of them for this one"]
    # 80 bytes are still more than three quarters.
    assert len(small.reasons) == 1
    assert large.reasons == []
    # They are counted no more: 30 and 70 are within the limit.
    other = Held(budget)
    other.hold(70)
    assert (large.reasons, other.reasons) == ([], [])


def test_what_was_sent_meanwhile_disconnects_nobody() -> None:
    budget = UnsentBudget(LIMIT_BYTES)
    read, unread = Held(budget), Held(budget)
    read.hold(60)
    read.waiting_bytes = 0  # the socket has sent it, and told nobody
    unread.hold(90)
    assert (read.reasons, unread.reasons) == ([], [])
    # What is gone is forgotten, and what waits is not.
    read.hold(20)
    assert len(unread.reasons) == 1


def test_a_connection_counts_with_what_waits_in_it_now_and_not_once_it_is_closed() -> None:
    budget = UnsentBudget(LIMIT_BYTES)
    slow, other = Held(budget), Held(budget)
    for size_bytes in (10, 90, 20, 90):
        slow.hold(size_bytes)
    slow.hold(0)
    other.hold(100)
    assert (slow.reasons, other.reasons) == ([], [])
