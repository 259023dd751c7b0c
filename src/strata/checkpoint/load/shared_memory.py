"""Tensors of ``like`` that share memory: tied weights, views of one tensor. Their saved values must agree.

If they are read into the same memory, whichever is read last wins, or a mix of both. So what shares memory is read
apart and compared with what the memory has in the end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from strata.checkpoint.format.tree import Path


@dataclass(frozen=True, slots=True)
class Target:
    """A tensor of ``like`` and the number of what is wanted for it."""

    index: int
    path: Path
    data: Any


@dataclass(frozen=True, slots=True)
class Shared:
    """A target whose memory another one has too. An ``alias`` is the same tensor once more, which is not filled."""

    target: Target
    other: Target
    is_alias: bool


@dataclass(frozen=True, slots=True)
class _Place:
    device: str
    start: int
    end: int
    layout: tuple[Any, ...]
    target: Target


def find_shared(targets: Sequence[Target]) -> Iterator[Shared]:
    """Return the targets that must be read apart; of those that are all the same tensor, one is read into place."""
    places = [place for target in targets if (place := _find_place(target)) is not None]
    places.sort(key=lambda place: (place.device, place.start))
    group: list[_Place] = []
    end = 0
    for place in places:
        if group and (place.device != group[0].device or place.start >= end):
            yield from _resolve(group)
            group = []
        end = max(end, place.end) if group else place.end
        group.append(place)
    yield from _resolve(group)


def _resolve(group: list[_Place]) -> Iterator[Shared]:
    if len(group) < 2:
        return
    group.sort(key=lambda place: place.target.index)
    are_aliases = len({place.layout for place in group}) == 1
    for number, place in enumerate(group):
        other = group[0 if number else 1].target
        if number or not are_aliases:
            yield Shared(place.target, other, is_alias=are_aliases)


def _find_place(target: Target) -> _Place | None:
    data = target.data
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        if data.is_meta or not data.numel():
            return None
        start, itemsize = data.data_ptr(), data.element_size()
        strides = tuple(stride * itemsize for stride in data.stride())
        device, shape, dtype = str(data.device), tuple(data.shape), str(data.dtype).removeprefix("torch.")
    elif isinstance(data, np.ndarray) and data.flags.writeable and data.size:
        start, strides, shape, itemsize = data.ctypes.data, data.strides, data.shape, data.itemsize
        device, dtype = "cpu", data.dtype.name
    else:
        return None
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    low, high = sum(each for each in reach if each < 0), sum(each for each in reach if each > 0)
    return _Place(device, start + low, start + high + itemsize, (start, shape, strides, dtype), target)
