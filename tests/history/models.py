"""What one copy of the data does: the sequential models that histories are compared with."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Protocol


class Model(Protocol):
    """A kind of object: its first state, and what an operation does to it."""

    initial: Hashable

    def step(self, state: Any, operation: tuple[Any, ...], outcome: tuple[Any, ...] | None) -> tuple[bool, Hashable]:
        """Return whether the operation can have had this outcome in this state, and the state after it.

        An outcome of None is unknown: every one is possible.
        """
        ...


class Register:
    """One value: ``("write", value)`` is answered with ``("ok",)``, and ``("read",)`` with the value."""

    initial = None

    def step(self, state: Any, operation: tuple[Any, ...], outcome: tuple[Any, ...] | None) -> tuple[bool, Hashable]:
        """Write or read."""
        if operation[0] == "write":
            return True, operation[1]
        return outcome is None or outcome == (state,), state


class Key:
    """A key of the coordinator: a value, and a token that is new, and higher, whenever it is set.

    ``("set", value, token)`` is answered with ``(is_set, value, token)`` and ``("get",)`` with ``(value, token)``. An
    empty value removes the key, which has token 0 then. A token that no answer told is UNSEEN, so there may be several
    states: each is a value, its token, and the highest token so far.
    """

    UNSEEN = -1
    initial = frozenset({("", 0, 0)})

    def step(self, state: Any, operation: tuple[Any, ...], outcome: tuple[Any, ...] | None) -> tuple[bool, Hashable]:
        """Set the key if its token is the one given, or read it."""
        after = frozenset(next_one for each in state for next_one in self._follow(each, operation, outcome))
        return bool(after), after

    def _follow(self, state: Any, operation: tuple[Any, ...], outcome: tuple[Any, ...] | None) -> Iterator[Any]:
        _, token, highest = state
        if operation[0] == "get":
            yield from self._see(state, outcome)
            return
        _, wanted, given = operation
        if token != given and (outcome is None or not outcome[0]):
            yield from self._see(state, None if outcome is None else outcome[1:])
        if token != given and not (token == self.UNSEEN and given > highest):
            return
        highest = max(highest, given)
        if not wanted:
            if outcome in (None, (True, "", 0)):
                yield "", 0, highest
        elif outcome is None:
            yield wanted, self.UNSEEN, highest
        elif outcome[:2] == (True, wanted) and outcome[2] > highest:
            yield wanted, outcome[2], outcome[2]

    def _see(self, state: Any, seen: tuple[Any, ...] | None) -> Iterator[Any]:
        """Yield the state once a client has seen this value and token, if it can."""
        value, token, highest = state
        if seen is None or seen == (value, token):
            yield state
        elif token == self.UNSEEN and seen[0] == value and seen[1] > highest:
            yield value, seen[1], seen[1]


class Commits:
    """The newest committed step of a job: ``("commit", step)`` is answered ``("ok",)``, ``("latest",)`` with it."""

    initial = 0

    def step(self, state: Any, operation: tuple[Any, ...], outcome: tuple[Any, ...] | None) -> tuple[bool, Hashable]:
        """Commit a step, which many workers may report, or read the newest one."""
        if operation[0] == "commit":
            return True, max(state, operation[1])
        return outcome is None or outcome == (state,), state
