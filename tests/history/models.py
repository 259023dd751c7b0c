"""What one copy of the data does: the sequential models that histories are compared with."""

from __future__ import annotations

from collections.abc import Hashable
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
    """A key of the coordinator: a value and how often it was set.

    ``("set", value, token)`` is answered with ``(is_set, value, token)`` and ``("get",)`` with ``(value, token)``.
    """

    initial = ("", 0)

    def step(self, state: Any, operation: tuple[Any, ...], outcome: tuple[Any, ...] | None) -> tuple[bool, Hashable]:
        """Set the key if its token is the one given, or read it."""
        if operation[0] == "get":
            return outcome is None or outcome == state, state
        _, value, token = operation
        after = (value, token + 1) if state[1] == token else state
        is_set = state[1] == token
        return outcome is None or outcome == (is_set, *after), after


class Commits:
    """The newest committed step of a job: ``("commit", step)`` is answered ``("ok",)``, ``("latest",)`` with it."""

    initial = 0

    def step(self, state: Any, operation: tuple[Any, ...], outcome: tuple[Any, ...] | None) -> tuple[bool, Hashable]:
        """Commit a step, which many workers may report, or read the newest one."""
        if operation[0] == "commit":
            return True, max(state, operation[1])
        return outcome is None or outcome == (state,), state
