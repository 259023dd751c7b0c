"""Fitting a checkpoint into a given state: structure, element types, devices and slices are those of ``like``."""

from __future__ import annotations

import copy
import dataclasses
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.dtypes import torch_dtype
from strata.checkpoint.placement import Wanted
from strata.checkpoint.tensors import RefusedError, Slice, find_tensor, view_source, view_tensor
from strata.checkpoint.tree import Node, Path, children_of, is_namedtuple, rebuild, show_path
from strata.errors import StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from strata.checkpoint.manifest import Manifest, StoredTensor
    from strata.checkpoint.tensors import Kind

DROPPED = object()


def select(structure: Node, patterns: Sequence[str], path: Path = ()) -> Any:
    """Keep the leaves whose dotted path matches a pattern; in lists and tuples the others become None."""
    if isinstance(structure, dict):
        if "dict" in structure:
            kept = [[key, select(node, patterns, (*path, key))] for key, node in structure["dict"]]
            kept = [pair for pair in kept if pair[1] is not DROPPED]
            return {"dict": kept} if kept else DROPPED
        for tag in ("list", "tuple"):
            if tag in structure:
                items = [select(node, patterns, (*path, index)) for index, node in enumerate(structure[tag])]
                if all(item is DROPPED for item in items):
                    return DROPPED
                return {tag: [None if item is DROPPED else item for item in items]}
    return structure if any(fnmatchcase(show_path(path), pattern) for pattern in patterns) else DROPPED


@dataclass(slots=True)
class Fitting:
    """Collects what is wanted from a checkpoint; when that is there, :meth:`build` makes the state of it."""

    manifest: Manifest
    wanted: list[Wanted] = field(default_factory=list)
    memories: Sequence[memoryview] = ()

    def take(self, structure: Node) -> Callable[[], Any]:
        """Want everything in the structure, each tensor as what it was saved from."""
        found: dict[str, int] = {}
        rebuild(structure, lambda name, kind: found.setdefault(name, self._want(name)))
        return lambda: rebuild(structure, lambda name, kind: self._view(name, kind, found[name]))

    def fit(self, like: Any, node: Node, path: Path = ()) -> Callable[[], Any]:
        """Want what ``like`` has, in its form; raise StateMismatchError where the checkpoint has it not."""
        if like is None:
            return self.take(node)
        tag = next(iter(node)) if isinstance(node, dict) else None
        if (children := children_of(like)) is not None:
            return self._fit_fields(like, children, node, path)
        if isinstance(like, list | tuple):
            return self._fit_items(like, node, path)
        if isinstance(like, bool | int | float | str) and not isinstance(like, np.generic):
            if tag not in (None, "float"):
                raise self._mismatch(path, f"the checkpoint has a {tag} where a plain value is expected")
            return lambda: rebuild(node, lambda name, kind: None)
        if tag != "tensor":
            raise self._mismatch(path, f"the checkpoint has a {tag or 'plain value'} where a tensor is expected")
        return self._fit_tensor(like, node["tensor"], node["as"], path)

    def _fit_fields(self, like: Any, children: list[tuple[Any, Any]], node: Node, path: Path) -> Callable[[], Any]:
        if not isinstance(node, dict) or "dict" not in node:
            raise self._mismatch(path, "the checkpoint has no dict there")
        stored = {(type(key), key): child for key, child in node["dict"]}
        builders = {}
        for key, child in children:
            if (type(key), key) not in stored:
                raise self._mismatch((*path, key), "the checkpoint does not have it")
            builders[key] = self.fit(child, stored[type(key), key], (*path, key))
        if isinstance(like, dict):
            return lambda: {key: build() for key, build in builders.items()}
        if is_namedtuple(like):
            return lambda: type(like)._make(build() for build in builders.values())
        return lambda: _replace_fields(like, {name: build() for name, build in builders.items()})

    def _fit_items(self, like: Any, node: Node, path: Path) -> Callable[[], Any]:
        items = (node.get("list") or node.get("tuple") or []) if isinstance(node, dict) else None
        if items is None or len(items) != len(like):
            there = "nothing of the kind" if items is None else f"{len(items)} items"
            raise self._mismatch(path, f"{len(like)} items are expected, and the checkpoint has {there}")
        builders = [self.fit(each, items[index], (*path, index)) for index, each in enumerate(like)]
        kind = list if isinstance(like, list) else tuple
        return lambda: kind(build() for build in builders)

    def _fit_tensor(self, like: Any, name: str, kind: Kind, path: Path) -> Callable[[], Any]:
        stored = self.manifest.tensors[name]
        data, start, whole = like, None, None
        if isinstance(like, Slice):
            data, start, whole = like.data, tuple(map(int, like.start)), tuple(map(int, like.shape))
        if isinstance(data, bytes | bytearray | np.generic):
            return self.take({"tensor": name, "as": kind})
        shape = tuple(map(int, getattr(data, "shape", ())))
        start = start or (0,) * len(shape)
        if (whole or shape) != stored.shape:
            raise self._mismatch(path, f"shape {whole or shape} is expected, and the checkpoint has {stored.shape}")
        if any(a + n > size for a, n, size in zip(start, shape, stored.shape, strict=True)):
            raise self._mismatch(path, f"a slice of {shape} from {start} is not inside {stored.shape}")
        target = _memory_of(data, stored.dtype)
        index = self._want(name, start, shape, target)
        if target is not None:
            return lambda: data
        return lambda: self._convert(data, stored, shape, index, path)

    def _convert(self, data: Any, stored: StoredTensor, shape: tuple[int, ...], index: int, path: Path) -> Any:
        """Bring values into memory that could not be read into: another type, device or order."""
        memory = self.memories[index]
        torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
        if torch is not None and isinstance(data, torch.Tensor):
            if torch_dtype(torch, stored.dtype) is None:
                raise self._mismatch(path, f"torch has no type {stored.dtype}")
            values = view_tensor("torch", stored.dtype, shape, memory)
            if data.device.type == "meta":
                return values.to(data.dtype)
            data.detach().copy_(values)
            return data
        values = view_tensor("numpy", stored.dtype, shape, memory)
        if isinstance(data, np.ndarray):
            if not data.flags.writeable:
                return values.astype(data.dtype)
            np.copyto(data, values, casting="unsafe")
            return data
        if jax is not None and hasattr(data, "dtype"):
            made = jax.numpy.asarray(np.array(values).astype(data.dtype))
            sharding = getattr(data, "sharding", None)
            return made if sharding is None else jax.device_put(made, sharding)
        raise self._mismatch(path, f"a {type(data).__name__} cannot receive a tensor")

    def _want(
        self,
        name: str,
        start: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
        target: memoryview | None = None,
    ) -> int:
        stored = self.manifest.tensors[name]
        self.wanted.append(
            Wanted(name, start or (0,) * len(stored.shape), stored.shape if shape is None else shape, target)
        )
        return len(self.wanted) - 1

    def _view(self, name: str, kind: Kind, index: int) -> Any:
        stored = self.manifest.tensors[name]
        return view_tensor(kind, stored.dtype, stored.shape, self.memories[index])

    def _mismatch(self, path: Path, problem: str) -> StateMismatchError:
        return StateMismatchError(self.manifest.step, show_path(path), problem)


def _memory_of(data: Any, dtype: str) -> memoryview | None:
    """The memory of a tensor that stored bytes can be read into as they are, or None."""
    try:
        tensor = find_tensor(data)
    except RefusedError:
        return None
    if tensor is None or tensor.kind not in ("torch", "numpy") or tensor.dtype != dtype or tensor.nbytes == 0:
        return None
    if tensor.kind == "torch" and (data.is_conj() or data.is_neg()):
        return None
    view = view_source(tensor)
    return view.data if view is not None and view.flags.writeable else None


def _replace_fields(like: Any, fields: dict[str, Any]) -> Any:
    made = copy.copy(like)
    for each in dataclasses.fields(like):
        # Frozen dataclasses refuse the plain way.
        object.__setattr__(made, each.name, fields[each.name])
    return made
