"""What a training loop calls its state, as a tree that a checkpoint can keep, and back into the same objects.

A state is a dict. Its leaves are tensors, arrays and plain values; what has ``state_dict`` and ``load_state_dict`` (a
module, an optimizer, a scheduler) may stand in it as it is, and so may a generator of random numbers.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator, MutableMapping, MutableSequence
from typing import Any

from strata.checkpoint import Slice
from strata.checkpoint.format.kinds import remake
from strata.checkpoint.format.sharded import Replica, Sharding, count_processes, is_sharded
from strata.checkpoint.format.tensors import RefusedError, find_tensor
from strata.checkpoint.format.tree import Path, show_path
from strata.run.randomness.generators import is_generator

State = MutableMapping[str, Any]


def find_generators(state: Any, path: Path = ()) -> dict[str, Any]:
    """Return the random number generators that stand in a state as they are, by path; each worker has its own."""
    if is_generator(state):
        return {show_path(path): state}
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(state, MutableMapping) and not is_stateful(state):
        items = state.items()
    elif isinstance(state, list):
        items = enumerate(state)
    return {name: found for key, value in items for name, found in find_generators(value, (*path, key)).items()}


def is_stateful(value: Any) -> bool:
    """Whether a value keeps its own state, as modules and optimizers do."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def to_tree(state: Any) -> Any:
    """Return the state with every module and optimizer replaced by what it keeps."""
    if is_stateful(state):
        return to_tree(state.state_dict())
    if is_generator(state):
        return None  # it is not the same on all workers: saved as part of each one's random state
    if isinstance(state, MutableMapping):
        tree = {key: to_tree(value) for key, value in state.items()}
        return remake(state, tree) if isinstance(state, dict) else tree
    if isinstance(state, list):
        return [to_tree(value) for value in state]
    return state


def to_like(state: Any) -> Any:
    """Return the form to restore into: arrays and the tensors of modules are filled in place.

    An optimizer that has not stepped has no tensors yet, so what keeps its own state, and is no module, takes what the
    checkpoint has: sharded as its parameters are, if they are.
    """
    if is_stateful(state):
        if callable(getattr(state, "named_parameters", None)):
            return to_tree(state.state_dict())
        if isinstance(groups := getattr(state, "param_groups", None), list):
            return _like_optimizer(groups)
        # A wrapper that makes its tensors beforehand says with them how they are sharded.
        tree = to_tree(state.state_dict())
        return tree if any(map(is_sharded, tensors_of(tree))) else None
    if isinstance(state, MutableMapping):
        return {key: to_like(value) for key, value in state.items()}
    if isinstance(state, list):
        return [to_like(value) for value in state]
    return None if is_generator(state) else state


def _like_optimizer(groups: list[dict[str, Any]]) -> Any:
    """The state of torch's optimizers is numbered as their parameters are, over all groups."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    if not any(map(is_sharded, parameters)):
        return None
    return {"state": Sharding(dict(enumerate(parameters))), "param_groups": None}


def tensors_of(tree: Any) -> Iterator[Any]:
    """Yield every leaf of a tree that is no container."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from tensors_of(value)
    elif isinstance(tree, list | tuple | deque):
        for value in tree:
            yield from tensors_of(value)
    else:
        yield tree


def put_back(state: Any, restored: Any) -> Any:
    """Put restored values into the objects of the state; return what stands in their place."""
    if is_stateful(state):
        state.load_state_dict(restored)
        return state
    if is_generator(state):
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


def find_optimizers(state: Any) -> list[Any]:
    """The torch optimizers that stand in a state as they are.

    Where there is one, a save may be lazy: its tensors change in its step() alone, and everything else is staged at
    once anyway.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    if isinstance(state, torch.optim.Optimizer):
        return [state]
    values = state.values() if isinstance(state, MutableMapping) else state if isinstance(state, list) else ()
    return [optimizer for value in values for optimizer in find_optimizers(value)]


def is_spread(tree: Any) -> bool:
    """Whether the workers hold different pieces of the state, and not each all of it."""
    return any(isinstance(leaf, Slice) or count_processes(leaf) > 1 for leaf in tensors_of(tree))


def find_own_buffers(state: Any) -> set[int]:
    """The addresses of the buffers of DDP models: between two forward passes each rank has its own (BatchNorm).

    DDP takes rank 0's at the next one.
    """
    parallel = sys.modules.get("torch.nn.parallel")
    if parallel is None:
        return set()
    if isinstance(state, parallel.DistributedDataParallel):
        return {buffer.data_ptr() for buffer in state.buffers() if buffer.numel()}
    values = state.values() if isinstance(state, MutableMapping) else state if isinstance(state, list) else ()
    return {address for value in values for address in find_own_buffers(value)}


def share_of(state: Any, *, rank: int, world_size: int) -> Any:
    """Return the tree of a state as this worker saves it: see :func:`spread`."""
    return spread(to_tree(state), rank=rank, world_size=world_size, own=find_own_buffers(state))


def spread(tree: Any, *, rank: int, world_size: int, own: Container[int] = ()) -> Any:
    """Return a state that all workers hold alike such that each tensor is written once, and by all about equally much.

    Where workers hold pieces of their own (Slice), or a mesh leaves some of them out, nothing is known to be held by
    all, and the tree stays as it is. Tensors at the addresses in ``own`` are not expected to be the same on all.
    """
    if world_size == 1 or not _is_held_by_all(tree, world_size):
        return tree
    return _mark(tree, rank, world_size, own)


def _is_held_by_all(tree: Any, world_size: int) -> bool:
    return not any(isinstance(leaf, Slice) or count_processes(leaf) not in (1, world_size) for leaf in tensors_of(tree))


def _mark(tree: Any, rank: int, world_size: int, own: Container[int]) -> Any:
    if isinstance(tree, dict):
        return remake(tree, {key: _mark(value, rank, world_size, own) for key, value in tree.items()})
    if isinstance(tree, list | tuple | deque) and not hasattr(tree, "_fields"):
        return remake(tree, [_mark(value, rank, world_size, own) for value in tree])
    if isinstance(tree, bytes | bytearray | memoryview) or count_processes(tree) > 1:
        return tree
    try:
        tensor = find_tensor(tree)
    except RefusedError:
        return tree  # the checkpoint says what is wrong with it, and where it is
    if tensor is None:
        return tree
    is_compared = tensor.kind != "torch" or tree.data_ptr() not in own
    return Replica(tree, rank, world_size, is_compared=is_compared)
