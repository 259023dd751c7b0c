"""The random state of each worker in a checkpoint: an entry of its own, which is no part of the state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.format.kinds import remake
from strata.checkpoint.format.tree import Node, is_tensor
from strata.errors import UnsavableStateError

if TYPE_CHECKING:
    from strata.checkpoint.format.manifest import Manifest

# Under this key, beside those of the state, the bytes of each part's random state are a tensor, by the part's number.
RANDOM_STATE = "strata.random"


@dataclass(frozen=True, slots=True)
class RandomStateOf:
    """Stands in ``like`` under RANDOM_STATE: the random state of this part is wanted, if the checkpoint has it."""

    part: int


@dataclass(frozen=True, slots=True)
class SavedRandomState:
    """The random state that a checkpoint has of one part, None if it has none; and of how many parts it has one."""

    data: bytes | None
    parts: int


def with_random_state(data: Any, random_state: bytes | None, *, part: int) -> Any:
    """Return the state with the random state of a part beside it; raise UnsavableStateError if the key is taken."""
    if isinstance(data, dict) and RANDOM_STATE in data:
        raise UnsavableStateError(RANDOM_STATE, type(data[RANDOM_STATE]).__name__, "has a key that is Strata's own")
    if random_state is None:
        return data
    assert isinstance(data, dict), "only a dict has room for more"
    return remake(data, {**data, RANDOM_STATE: {part: np.frombuffer(random_state, np.uint8)}})


def without_random_state(structure: Node) -> Node:
    """Return the structure of the state alone."""
    if not isinstance(structure, dict) or "dict" not in structure:
        return structure
    return {**structure, "dict": [[key, node] for key, node in structure["dict"] if key != RANDOM_STATE]}


def find_random_states(structure: Node) -> dict[int, str]:
    """Return the names of the tensors that hold random states, by part."""
    fields = structure.get("dict", ()) if isinstance(structure, dict) else ()
    node = next((node for key, node in fields if key == RANDOM_STATE), None)
    parts = node.get("dict", ()) if isinstance(node, dict) else ()
    return {part: child["tensor"] for part, child in parts if is_tensor(child)}


def list_state_tensors(manifest: Manifest) -> list[str]:
    """Return the names of the tensors that are the state, in their order."""
    others = set(find_random_states(manifest.structure).values())
    return [name for name in manifest.tensors if name not in others]
