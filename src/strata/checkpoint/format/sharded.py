"""Sharded tensors as their libraries hold them: torch's DTensor and jax.Array with a sharding, by public APIs only.

torch and JAX are never imported here: whoever has a tensor of theirs has imported them already.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strata.checkpoint.format.blocks import Block, Cut, Held, Mesh, find_all_blocks, find_blocks, find_repeated_blocks
from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.tensors import Kind, RefusedError, Tensor, find_tensor, make_jax, name_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Local:
    """A block of a sharded tensor that is in this process; ``source`` is None if it has no values yet."""

    block: Block
    source: Any


@dataclass(frozen=True, slots=True)
class Sharded:
    """A tensor that is spread over ranks: the whole, and what of it is here.

    ``held`` is the layout that all ranks see alike, if blocks are held more than once, and ``me`` is this one's number
    in it. Without ``is_compared`` ranks may hold different values. ``mesh`` is torch's, and ``rank`` this one's in it.
    """

    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    locals: tuple[Local, ...]
    held: Held | None = None
    me: int = 0
    is_compared: bool = True
    mesh: Mesh | None = None
    rank: int = -1


class Replica:
    """A leaf of a state: a tensor that every one of ``world_size`` ranks holds, and that is written once.

    All hold the same values, unless ``is_compared`` is false: then rank 0's are taken if it is small.
    """

    def __init__(self, data: Any, rank: int, world_size: int, *, is_compared: bool = True) -> None:
        self.data = data
        self.rank = rank
        self.world_size = world_size
        self.is_compared = is_compared


class Sharding:
    """A dict of ``like`` that takes what the checkpoint has, sharded by example.

    Below a key that has a template, every tensor of the template's shape is sharded as the template is.
    """

    def __init__(self, templates: Mapping[Any, Any]) -> None:
        self.templates = templates


def is_sharded(value: Any) -> bool:
    """Whether a tensor is spread over ranks or devices."""
    return _is_dtensor(value) or _is_sharded_jax(value)


def count_processes(value: Any) -> int:
    """How many processes hold blocks of a tensor; 1 for what is all in this one."""
    if _is_dtensor(value):
        return int(value.device_mesh.size())
    if _is_sharded_jax(value):
        return len({device.process_index for device in value.sharding.device_set})
    return 1


def find_sharded(value: Any) -> Sharded | None:
    """See ``value`` as a sharded tensor; None if it is not one, RefusedError if it cannot be kept."""
    if isinstance(value, Replica):
        return _find_replica(value)
    if _is_dtensor(value):
        return _find_dtensor(value)
    if _is_sharded_jax(value):
        return _find_jax(value)
    return None


def _find_replica(value: Replica) -> Sharded | None:
    tensor = find_tensor(value.data)
    if tensor is None:
        return None
    return replicate(tensor, value.rank, value.world_size, is_compared=value.is_compared)


def replicate(tensor: Tensor, rank: int, world_size: int, *, is_compared: bool = True) -> Sharded:
    """A tensor that every one of ``world_size`` ranks holds."""
    holders = tuple(range(world_size))
    block = Block((0,) * len(tensor.shape), tensor.shape, holders)
    blocks = () if 0 in tensor.shape else (block,)
    held = Held(holders, DTYPES[tensor.dtype].itemsize, blocks, first_writes=True)
    here = tuple(Local(each, tensor.source) for each in blocks)
    return Sharded(tensor.kind, tensor.dtype, tensor.shape, here, held, rank, is_compared)


def widen(sharded: Sharded, rank: int, world_size: int) -> Sharded:
    """A tensor on a mesh of some ranks, of which there are several alike; as it is where that cannot be so."""
    mesh = sharded.mesh
    if mesh is None or len(mesh.ranks) == world_size or sharded.rank != rank:
        return sharded
    blocks = find_repeated_blocks(sharded.shape, mesh, world_size)
    if blocks is None:
        return sharded
    held = Held(tuple(range(world_size)), DTYPES[sharded.dtype].itemsize, blocks)
    return replace(sharded, locals=_name_holders(sharded.locals, held), held=held, me=rank)


def _name_holders(found: tuple[Local, ...], held: Held | None) -> tuple[Local, ...]:
    """Say of each local block who else holds it, so that its values can be compared with theirs."""
    if held is None:
        return found
    blocks = {block.start: block for block in held.blocks}
    return tuple(Local(blocks[local.block.start], local.source) for local in found)


# torch


def _is_dtensor(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _find_dtensor(value: Any) -> Sharded:
    dtype, shape = name_dtype(value.dtype), tuple(value.shape)
    if dtype not in DTYPES:
        raise RefusedError(f"has elements of type {dtype}, which a file cannot hold")
    mesh, coordinate = value.device_mesh, value.device_mesh.get_coordinate()
    cuts = tuple(_read_placement(placement, len(shape)) for placement in value.placements)
    sizes = tuple(mesh.shape)
    held, me = None, 0
    ranks = tuple(mesh.mesh.flatten().tolist())
    if None in cuts and mesh.size() > 1:
        held = Held(ranks, DTYPES[dtype].itemsize, find_all_blocks(shape, sizes, cuts))
        me = ranks.index(mesh.get_rank()) if coordinate is not None else -1
    if coordinate is None:
        return Sharded("torch", dtype, shape, (), held, me)
    blocks = find_blocks(shape, sizes, cuts, tuple(coordinate))
    local = value.detach().to_local()
    find_tensor(local)  # refuses what a plain tensor would be refused for
    if local.is_conj() or local.is_neg():
        raise RefusedError("is a conjugate or negative view: call resolve_conj() and resolve_neg() first")
    expected = sum(_elements(block) for block in blocks)
    if local.numel() != expected:
        raise RefusedError(f"has {local.numel()} elements here, and its placements {value.placements} say {expected}")
    here = _name_holders(tuple(_cut_local(local, blocks)), held)
    on = Mesh(ranks, sizes, cuts)
    return Sharded("torch", dtype, shape, here, held, me, mesh=on, rank=mesh.get_rank())


def _read_placement(placement: Any, dimensions: int) -> Cut:
    if placement.is_replicate():
        return None
    if placement.is_partial():
        raise RefusedError("is a partial sum on each rank: redistribute it to Replicate() or Shard() first")
    # A split factor has the placement that FSDP makes on top of tensor parallel.
    return placement.dim % dimensions, int(getattr(placement, "split_factor", 1))


def _cut_local(local: Any, blocks: Sequence[Block]) -> list[Local]:
    """Give every block its part of the local tensor, in which they lie in the order of their indices."""
    if len(blocks) == 1:
        return [Local(blocks[0], local)]
    firsts = [sorted({(block.start[axis], block.shape[axis]) for block in blocks}) for axis in range(local.ndim)]
    offsets = [_offsets(runs) for runs in firsts]
    found = []
    for block in blocks:
        piece = local
        for axis, (start, length) in enumerate(zip(block.start, block.shape, strict=True)):
            piece = piece.narrow(axis, offsets[axis][start], length)
        found.append(Local(block, piece))
    return found


def _offsets(runs: Sequence[tuple[int, int]]) -> dict[int, int]:
    offsets, position = {}, 0
    for start, length in runs:
        offsets[start] = position
        position += length
    return offsets


def _elements(block: Block) -> int:
    count = 1
    for length in block.shape:
        count *= length
    return count


def new_dtensor(template: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A DTensor without values, sharded as the template of this shape is, on the mesh's device."""
    torch = sys.modules["torch"]
    module = sys.modules["torch.distributed.tensor"]
    local = template.detach().to_local()
    device = template.device_mesh.device_type if local.device.type == "meta" else local.device
    made = torch.empty(local.shape, dtype=dtype, device=device)
    stride = torch.empty(shape, device="meta").stride()
    return module.DTensor.from_local(
        made, template.device_mesh, template.placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


# JAX


def _is_sharded_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return False
    sharding = getattr(value, "sharding", None)
    return sharding is not None and len(sharding.device_set) > 1


def _find_jax(value: Any) -> Sharded:
    jax = sys.modules["jax"]
    dtype, shape = name_dtype(value.dtype), tuple(map(int, value.shape))
    if dtype not in DTYPES:
        raise RefusedError(f"has elements of type {dtype}, which a file cannot hold")
    holders: dict[tuple[tuple[int, ...], tuple[int, ...]], set[int]] = {}
    for device, index in value.sharding.devices_indices_map(shape).items():
        holders.setdefault(_read_index(index, shape), set()).add(device.process_index)
    processes = tuple(sorted({device.process_index for device in value.sharding.device_set}))
    numbers = {process: number for number, process in enumerate(processes)}
    blocks = tuple(
        Block(start, extent, tuple(sorted(numbers[process] for process in found)))
        for (start, extent), found in sorted(holders.items())
        if 0 not in extent
    )
    here = {(block.start, block.shape): block for block in blocks}
    found_here: dict[tuple[int, ...], Local] = {}
    if isinstance(value, jax.Array):
        for shard in value.addressable_shards:
            start, extent = _read_index(shard.index, shape)
            if 0 not in extent:
                found_here.setdefault(start, Local(here[start, extent], shard.data))
    else:
        for index in value.sharding.addressable_devices_indices_map(shape).values():
            start, extent = _read_index(index, shape)
            if 0 not in extent:
                found_here.setdefault(start, Local(here[start, extent], None))
    held = Held(processes, DTYPES[dtype].itemsize, blocks) if len(processes) > 1 else None
    return Sharded("jax", dtype, shape, tuple(found_here.values()), held, numbers.get(jax.process_index(), -1))


def _read_index(index: Sequence[slice], shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    bounds = [each.indices(size) for each, size in zip(index, shape, strict=True)]
    return tuple(low for low, _, _ in bounds), tuple(high - low for low, high, _ in bounds)


def new_jax_array(like: Any, find: Callable[[tuple[int, ...], tuple[int, ...]], Any]) -> Any:
    """An array with the sharding of ``like``; ``find`` returns the values of a block of it, by start and shape."""
    jax = sys.modules["jax"]
    shape = tuple(map(int, like.shape))
    pieces = [
        make_jax(find(*_read_index(index, shape)), device)
        for device, index in like.sharding.addressable_devices_indices_map(shape).items()
    ]
    return jax.make_array_from_single_device_arrays(shape, like.sharding, pieces)


def cut_rows(kind: Kind, dtype: str, local: Local, row: int, rows: int) -> tuple[Tensor, tuple[int, ...]]:
    """Some rows of a local block as a tensor, and where it begins in the whole."""
    block = local.block
    if not block.shape or rows == block.shape[0]:
        return Tensor(kind, dtype, block.shape, local.source), block.start
    source = local.source[row : row + rows]
    return Tensor(kind, dtype, (rows, *block.shape[1:]), source), (block.start[0] + row, *block.start[1:])
