"""Wing and Gong's search for an order of calls that one copy of the data explains, with Lowe's memory of dead ends.

Invocations and responses stand in one list in the order of time. The search takes the first invocation whose call can
be next, lifts it out of the list, and goes on from the start; at the response of a call that was not taken it must go
back. What was tried once, the same calls taken with the same state reached, is not tried again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from tests.history.calls import Call
from tests.history.models import Model

# A history that needs more than this is not refuted, but not understood either; the caller is told.
MAX_STEPS = 5_000_000
SHOWN_CALLS = 12


class UndecidedError(Exception):
    """The search was given up: neither an order nor a proof that there is none was found."""


class _Event:
    """An invocation or a response in the list; a call of unknown outcome has no response."""

    __slots__ = ("call", "following", "number", "preceding", "response")

    def __init__(self, number: int, call: Call | None) -> None:
        self.number = number
        self.call = call
        self.response: _Event | None = None
        self.preceding: _Event | None = None
        self.following: _Event | None = None

    def lift(self) -> None:
        """Take it out of the list; it keeps its place for when it comes back."""
        assert self.preceding is not None
        self.preceding.following = self.following
        if self.following is not None:
            self.following.preceding = self.preceding

    def put_back(self) -> None:
        """Put it where it was; what was lifted after it must be back already."""
        assert self.preceding is not None
        self.preceding.following = self
        if self.following is not None:
            self.following.preceding = self


@dataclass(frozen=True, slots=True)
class Refutation:
    """A history of one object that no order explains, and the longest part of it that one does."""

    what: str
    explained: tuple[Call, ...]
    stuck: tuple[Call, ...]
    """The calls that are the next to be answered where every order fails."""

    def __str__(self) -> str:
        lines = [
            f"no order of the calls on {self.what} explains their outcomes; {len(self.explained)} could be ordered:"
        ]
        lines += [f"  {_show(call)}" for call in self.explained[-SHOWN_CALLS:]]
        lines += ["none of these can be next:", *(f"  {_show(call)}" for call in self.stuck[:SHOWN_CALLS])]
        return "\n".join(lines)


def check(history: Iterable[Call], model_of: Callable[[str], Model], *, max_steps: int = MAX_STEPS) -> list[Refutation]:
    """Return the objects whose calls are not linearizable; an empty list says that all are."""
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in history:
        calls[call.what].append(call)
    found = (check_object(what, own, model_of(what), max_steps=max_steps) for what, own in sorted(calls.items()))
    return [refutation for refutation in found if refutation is not None]


def check_object(what: str, calls: list[Call], model: Model, *, max_steps: int = MAX_STEPS) -> Refutation | None:
    """Return None if the calls on one object are linearizable, or else why not."""
    head, unanswered = _make_list(calls)
    state: Hashable = model.initial
    taken: list[tuple[_Event, Hashable]] = []
    taken_bits = 0
    seen: set[tuple[int, Hashable]] = set()
    longest: tuple[Call, ...] = ()
    stuck: tuple[Call, ...] = tuple(calls[:SHOWN_CALLS])
    steps = 0
    event = head.following
    while unanswered:
        steps += 1
        if steps > max_steps:
            raise UndecidedError(f"{len(calls)} calls on {what}: no decision after {max_steps} steps")
        if event is not None and event.call is not None:
            fits, after = model.step(state, event.call.operation, event.call.outcome)
            bits = taken_bits | 1 << event.number
            # One of unknown outcome that would change nothing need not have happened: to try it only takes time.
            is_idle = not event.call.is_known and after == state
            if fits and not is_idle and (bits, after) not in seen:
                seen.add((bits, after))
                taken.append((event, state))
                state, taken_bits = after, bits
                unanswered -= event.call.is_known
                event.lift()
                if event.response is not None:
                    event.response.lift()
                event = head.following
            else:
                event = event.following
            continue
        # A response of a call that was not taken, or the end: what was taken last was wrong.
        if len(taken) >= len(longest):
            longest = tuple(each.call for each, _ in taken if each.call is not None)
            stuck = _candidates(head)
        if not taken:
            return Refutation(what, longest, stuck)
        event, state = taken.pop()
        assert event.call is not None
        taken_bits &= ~(1 << event.number)
        unanswered += event.call.is_known
        if event.response is not None:
            event.response.put_back()
        event.put_back()
        event = event.following
    return None


def _make_list(calls: list[Call]) -> tuple[_Event, int]:
    """Return the head of the list of events, and how many calls were answered."""
    moments: list[tuple[int, int, _Event]] = []
    for number, call in enumerate(calls):
        invocation = _Event(number, call)
        moments.append((call.invoked_ns, 0, invocation))
        if call.is_known:
            invocation.response = _Event(number, None)
            moments.append((call.returned_ns, 1, invocation.response))
    # At one moment invocations come first: calls that touch are concurrent.
    moments.sort(key=lambda moment: (moment[0], moment[1], moment[2].number))
    head = last = _Event(-1, None)
    for _, _, event in moments:
        last.following, event.preceding = event, last
        last = event
    return head, sum(call.is_known for call in calls)


def _candidates(head: _Event) -> tuple[Call, ...]:
    found = []
    event = head.following
    while event is not None and event.call is not None:
        found.append(event.call)
        event = event.following
    return tuple(found)


def _show(call: Call) -> str:
    outcome = "unknown" if call.outcome is None else call.outcome
    return f"{call.invoked_ns / 1e9:.4f} s {call.client}: {call.operation} -> {outcome}"
