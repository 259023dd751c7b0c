"""What a training loop calls its state, as a tree that a checkpoint can keep, and back into the same objects.

A state is a dict. Its leaves are tensors, arrays and plain values; what has ``state_dict`` and ``load_state_dict`` (a
module, an optimizer, a scheduler) may stand in it as it is.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, MutableSequence
from typing import Any

from strata.checkpoint import Slice
from strata.checkpoint.tensors import RefusedError, find_tensor

# Tensors smaller than this are written by every worker: to cut them up would cost more than it saves.
SPREAD_BYTES = 64 << 10

State = MutableMapping[str, Any]


def is_stateful(value: Any) -> bool:
    """Whether a value keeps its own state, as modules and optimizers do."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def to_tree(state: Any) -> Any:
    """Return the state with every module and optimizer replaced by what it keeps."""
    if is_stateful(state):
        return to_tree(state.state_dict())
    if isinstance(state, MutableMapping):
        return {key: to_tree(value) for key, value in state.items()}
    if isinstance(state, list):
        return [to_tree(value) for value in state]
    return state


def to_like(state: Any) -> Any:
    """Return the form to restore into: arrays and the tensors of modules are filled in place.

    An optimizer that has not stepped has no tensors yet, so what keeps its own state, and is no module, takes what the
    checkpoint has.
    """
    if is_stateful(state):
        return to_tree(state.state_dict()) if callable(getattr(state, "named_parameters", None)) else None
    if isinstance(state, MutableMapping):
        return {key: to_like(value) for key, value in state.items()}
    if isinstance(state, list):
        return [to_like(value) for value in state]
    return state


def put_back(state: Any, restored: Any) -> Any:
    """Put restored values into the objects of the state; return what stands in their place."""
    if is_stateful(state):
        state.load_state_dict(restored)
        return state
    if isinstance(state, MutableMapping):
        for key in list(state):
            state[key] = put_back(state[key], restored[key])
        return state
    if isinstance(state, MutableSequence) and isinstance(restored, list):
        for index, value in enumerate(restored):
            state[index] = put_back(state[index], value)
        return state
    return restored


def has_slices(tree: Any) -> bool:
    """Whether the workers hold different pieces of the state, and not each all of it."""
    if isinstance(tree, Slice):
        return True
    if isinstance(tree, dict):
        return any(map(has_slices, tree.values()))
    return isinstance(tree, list | tuple) and any(map(has_slices, tree))


def spread(tree: Any, *, rank: int, world_size: int) -> Any:
    """Return this worker's share of a state that all workers hold alike: of each large tensor some of its rows.

    Together the shares are the whole, so that n workers write it once and not n times.
    """
    if isinstance(tree, dict):
        return {key: spread(value, rank=rank, world_size=world_size) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return type(tree)(spread(value, rank=rank, world_size=world_size) for value in tree)
    if world_size == 1 or isinstance(tree, Slice | bytes | bytearray):
        return tree
    try:
        tensor = find_tensor(tree)
    except RefusedError:
        return tree  # the checkpoint says what is wrong with it, and where it is
    if tensor is None or not tensor.shape or tensor.shape[0] < world_size or tensor.nbytes < SPREAD_BYTES:
        return tree
    rows = tensor.shape[0]
    start, stop = (math.ceil(rows * each / world_size) for each in (rank, rank + 1))
    return Slice(tree[start:stop], tensor.shape, (start, *(0 for _ in tensor.shape[1:])))
