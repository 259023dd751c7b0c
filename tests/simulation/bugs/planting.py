"""How a bug is planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: list[Plant] = []
REPLICA_BUGS: list[Plant] = []
DISPATCHER_BUGS: list[Plant] = []


def bug(plant: Plant) -> Plant:
    """Add a bug to the list."""
    BUGS.append(plant)
    return plant


def replica_bug(plant: Plant) -> Plant:
    """Add a bug that worlds of replicas must show."""
    REPLICA_BUGS.append(plant)
    return plant


def dispatcher_bug(plant: Plant) -> Plant:
    """Add a bug that worlds of the dispatcher must show."""
    DISPATCHER_BUGS.append(plant)
    return plant


def nothing(*_: Any, **__: Any) -> None:
    return None


def none_of(*_: Any, **__: Any) -> list[Any]:
    return []


def wrap(patch: pytest.MonkeyPatch, kind: type[Any], name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method by one that is given the method as its first argument."""
    method = getattr(kind, name)
    patch.setattr(kind, name, lambda self, *args, **fields: wrapper(method, self, *args, **fields))
