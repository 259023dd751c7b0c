"""Fitting a checkpoint into a given state: structure, element types, devices and slices are those of ``like``."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.format import kinds
from strata.checkpoint.format.dtypes import numpy_dtype, torch_dtype
from strata.checkpoint.format.kinds import SEQUENCES
from strata.checkpoint.format.random_state import RandomStateOf, SavedRandomState, find_random_states
from strata.checkpoint.format.sharded import Sharded, Sharding, find_sharded, is_sharded, new_dtensor, new_jax_array
from strata.checkpoint.format.tensors import (
    RefusedError,
    Slice,
    bring_to_host,
    find_tensor,
    make_jax,
    name_dtype,
    view_source,
    view_tensor,
)
from strata.checkpoint.format.tree import (
    Node,
    Path,
    children_of,
    is_namedtuple,
    is_tensor,
    read_slice,
    rebuild,
    show_path,
    walk,
)
from strata.checkpoint.load.conversion import check_cast, check_values, make_numpy, make_torch
from strata.checkpoint.load.shared_memory import Shared, Target, find_shared
from strata.checkpoint.load.slicing import Wanted
from strata.errors import StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from strata.checkpoint.format.manifest import Manifest, StoredTensor
    from strata.checkpoint.format.tensors import Kind

DROPPED = object()


def select(structure: Node, patterns: Sequence[str], path: Path = ()) -> Any:
    """Keep the leaves whose dotted path matches a pattern; in lists and tuples the others become None."""
    if isinstance(structure, dict):
        if "dict" in structure:
            kept = [[key, select(node, patterns, (*path, key))] for key, node in structure["dict"]]
            kept = [pair for pair in kept if pair[1] is not DROPPED]
            return {**structure, "dict": kept} if kept else DROPPED
        for tag in SEQUENCES:
            if tag in structure:
                items = [select(node, patterns, (*path, index)) for index, node in enumerate(structure[tag])]
                if all(item is DROPPED for item in items):
                    return DROPPED
                return {**structure, tag: [None if item is DROPPED else item for item in items]}
    return structure if any(fnmatchcase(show_path(path), pattern) for pattern in patterns) else DROPPED


@dataclass(slots=True)
class Fitting:
    """Collects what is wanted from a checkpoint; when that is there, :meth:`build` makes the state of it."""

    manifest: Manifest
    wanted: list[Wanted] = field(default_factory=list)
    memories: Sequence[memoryview] = ()
    taken: set[Path] = field(default_factory=set)
    """The paths whose leaves are wanted, all that is below them included."""
    targets: list[Target] = field(default_factory=list)
    shared: dict[int, Shared] = field(default_factory=dict)

    def part_shared(self) -> None:
        """Have what shares memory in ``like`` read apart; call it before anything is read."""
        for each in find_shared(self.targets):
            index = each.target.index
            self.shared[index] = each
            self.wanted[index] = replace(self.wanted[index], target=None)

    def check_shared(self) -> None:
        """Raise StateMismatchError if memory that tensors share cannot have the values of all of them."""
        for index, each in self.shared.items():
            name, (target, other) = self.wanted[index].name, (each.target, each.other)
            wanted = self._make(target.data, self.manifest.tensors[name], tuple(target.data.shape), index, target.path)
            found = [find_tensor(value) for value in (target.data, wanted)]
            assert found[0] is not None and found[1] is not None
            if not np.array_equal(bring_to_host(found[0]), bring_to_host(found[1])):
                problem = f"it shares memory with {show_path(other.path)}, and the checkpoint has other values for it"
                raise self._mismatch(target.path, f"{problem}: give it memory of its own, with clone() or copy()")

    def take(self, structure: Node) -> Callable[[], Any]:
        """Want everything in the structure, each tensor as what it was saved from."""
        found = {node["tensor"]: self._want(node["tensor"]) for _, node in walk(structure) if is_tensor(node)}
        return lambda: rebuild(structure, lambda name, kind: self._view(name, kind, found[name]))

    def _fit_shardings(self, like: Sharding, node: Node, path: Path) -> Callable[[], Any]:
        if not isinstance(node, dict) or "dict" not in node:
            raise self._mismatch(path, "the checkpoint has no dict there")
        builders = {
            key: self._take_sharded(child, like.templates[key], (*path, key))
            if is_sharded(like.templates.get(key))
            else self.take(child)
            for key, child in node["dict"]
        }
        self.taken.add(path)
        return lambda: kinds.make_dict(node.get("as"), {key: build() for key, build in builders.items()})

    def _take_sharded(self, structure: Node, template: Any, path: Path) -> Callable[[], Any]:
        """As :meth:`take`, but tensors of the template's shape are sharded as it is, with the type that they have."""
        found: dict[str, Callable[[], Any]] = {}
        shape = tuple(map(int, template.shape))

        for name, kind in [(node["tensor"], node["as"]) for _, node in walk(structure) if is_tensor(node)]:
            stored = self.manifest.tensors[name]
            if stored.shape == shape and (like := _new_sharded(template, stored)) is not None:
                found[name] = self._fit_sharded(like, name, path)
            else:
                found[name] = self.take({"tensor": name, "as": kind})
        return lambda: rebuild(structure, lambda name, kind: found[name]())

    def fit(self, like: Any, node: Node, path: Path = ()) -> Callable[[], Any]:
        """Want what ``like`` has, in its form; raise StateMismatchError where the checkpoint has it not."""
        if like is None:
            self.taken.add(path)
            return self.take(node)
        if isinstance(like, Sharding):
            return self._fit_shardings(like, node, path)
        # An optimizer that has not stepped has an empty state: it takes what there is, as None does.
        if isinstance(like, dict) and not like and isinstance(node, dict) and "dict" in node:
            self.taken.add(path)
            build = self.take(node)
            return lambda: kinds.remake(like, build())
        tag = next(iter(node)) if isinstance(node, dict) else None
        try:
            children = children_of(like)
        except RefusedError as error:
            raise self._mismatch(path, f"what is given {error}") from None
        if children is not None:
            return self._fit_fields(like, children, node, path)
        if isinstance(like, list | tuple | deque):
            return self._fit_items(like, node, path)
        self.taken.add(path)
        if isinstance(like, bool | int | float | complex | str) and not isinstance(like, np.generic):
            if tag not in (None, "float", "int", "complex"):
                raise self._mismatch(path, f"the checkpoint has a {tag} where a plain value is expected")
            return lambda: rebuild(node, lambda name, kind: None)
        if tag != "tensor":
            raise self._mismatch(path, f"the checkpoint has a {tag or 'plain value'} where a tensor is expected")
        return self._fit_tensor(like, node["tensor"], node["as"], path)

    def unused(self, structure: Node) -> list[str]:
        """The leaves that ``like`` did not ask for, by path."""
        return [
            show_path(path)
            for path, _ in walk(structure)
            if not any(path[:depth] in self.taken for depth in range(len(path) + 1))
        ]

    def _fit_fields(self, like: Any, children: list[tuple[Any, Any]], node: Node, path: Path) -> Callable[[], Any]:
        if not isinstance(node, dict) or "dict" not in node:
            raise self._mismatch(path, "the checkpoint has no dict there")
        stored = {(type(key), key): child for key, child in node["dict"]}
        builders = {}
        for key, child in children:
            if isinstance(child, RandomStateOf):
                builders[key] = self._fit_random_state(child, find_random_states(node), (*path, key))
                continue
            if (type(key), key) not in stored:
                raise self._mismatch((*path, key), "the checkpoint does not have it")
            builders[key] = self.fit(child, stored[type(key), key], (*path, key))
        if isinstance(like, dict):
            return lambda: kinds.remake(like, {key: build() for key, build in builders.items()})
        if is_namedtuple(like):
            return lambda: type(like)._make(build() for build in builders.values())
        return lambda: kinds.replace_fields(like, {name: build() for name, build in builders.items()})

    def _fit_random_state(
        self, like: RandomStateOf, saved: dict[int, str], path: Path
    ) -> Callable[[], SavedRandomState]:
        """Want one part's random state and no other's: there may be thousands, and each worker reads its own."""
        self.taken.add(path)
        if like.part not in saved:
            return lambda: SavedRandomState(None, len(saved))
        index = self._want(saved[like.part])
        return lambda: SavedRandomState(bytes(self.memories[index]), len(saved))

    def _fit_items(self, like: Any, node: Node, path: Path) -> Callable[[], Any]:
        items = next((node[tag] for tag in SEQUENCES if tag in node), None) if isinstance(node, dict) else None
        if items is None or len(items) != len(like):
            there = "nothing of the kind" if items is None else f"{len(items)} items"
            raise self._mismatch(path, f"{len(like)} items are expected, and the checkpoint has {there}")
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(like, torch.Size) and not all(type(item) is int for item in items):
            raise self._mismatch(path, "a torch.Size is expected, and the checkpoint has more than whole numbers there")
        builders = [self.fit(each, items[index], (*path, index)) for index, each in enumerate(like)]
        return lambda: kinds.remake(like, [build() for build in builders])

    def _fit_tensor(self, like: Any, name: str, kind: Kind, path: Path) -> Callable[[], Any]:
        if is_sharded(like):
            return self._fit_sharded(like, name, path)
        stored = self.manifest.tensors[name]
        data = like
        if isinstance(like, Slice):
            if is_sharded(like.data):
                raise self._mismatch(path, "it is spread over ranks already: give it as it is, without Slice")
            data = like.data
        if isinstance(data, bytes | bytearray | np.generic):
            fits = stored.shape == () if isinstance(data, np.generic) else kinds.READ_AS.get(kind, kind) == "bytes"
            if not fits:
                there = f"a tensor of shape {stored.shape}"
                raise self._mismatch(path, f"a {type(data).__name__} is expected, and the checkpoint has {there}")
            return self.take({"tensor": name, "as": kind})
        try:
            kinds.check_target(data)
        except RefusedError as error:
            raise self._mismatch(path, f"what is given {error}") from None
        shape = tuple(map(int, getattr(data, "shape", ())))
        whole, start = shape, (0,) * len(shape)
        if isinstance(like, Slice):
            try:
                whole, start = read_slice(like, shape)
            except RefusedError as error:
                raise self._mismatch(path, f"the Slice {error}") from None
        if whole != stored.shape:
            raise self._mismatch(path, f"shape {whole} is expected, and the checkpoint has {stored.shape}")
        self._check_cast(data, stored, path)
        index = self._want(name, start, shape, _memory_of(data, stored.dtype))
        self.targets.append(Target(index, path, data))
        return lambda: self._convert(data, stored, shape, index, path)

    def _fit_sharded(self, like: Any, name: str, path: Path) -> Callable[[], Any]:
        """Want the blocks of a DTensor or a sharded jax.Array that are in this process, and no others."""
        stored = self.manifest.tensors[name]
        if tuple(like.shape) != stored.shape:
            raise self._mismatch(path, f"shape {tuple(like.shape)} is expected, and the checkpoint has {stored.shape}")
        if getattr(getattr(like, "device", None), "type", None) == "meta":
            like = new_dtensor(like, like.dtype, stored.shape)
        try:
            sharded = find_sharded(like)
        except RefusedError as error:
            raise self._mismatch(path, f"a {type(like).__name__} that {error}") from None
        assert sharded is not None
        self._check_cast(like, stored, path)
        if sharded.kind == "jax":
            return self._fit_jax(like, sharded, name, path)
        fills = []
        for local in sharded.locals:
            source, block = local.source, local.block
            index = self._want(name, block.start, block.shape, _memory_of(source, stored.dtype))
            self.targets.append(Target(index, path, source))
            fills.append((source, block.shape, index))

        def build() -> Any:
            for source, shape, index in fills:
                self._convert(source, stored, shape, index, path)
            return like

        return build

    def _fit_jax(self, like: Any, sharded: Sharded, name: str, path: Path) -> Callable[[], Any]:
        stored = self.manifest.tensors[name]
        wanted = {local.block.start: self._want(name, local.block.start, local.block.shape) for local in sharded.locals}

        def find(start: tuple[int, ...], shape: tuple[int, ...]) -> Any:
            if 0 in shape:
                return np.empty(shape, like.dtype)
            return self._make(like, stored, shape, wanted[start], path)

        return lambda: new_jax_array(like, find)

    def _convert(self, data: Any, stored: StoredTensor, shape: tuple[int, ...], index: int, path: Path) -> Any:
        """Bring values into memory that they were not read into: another type, device or order, or shared."""
        if self.wanted[index].target is not None:
            return data
        shared = self.shared.get(index)
        if shared is not None and shared.is_alias:
            return data
        torch = sys.modules.get("torch")
        values = self._make(data, stored, shape, index, path)
        if torch is not None and isinstance(data, torch.Tensor) and not data.is_meta:
            data.detach().copy_(values)
            return data
        if isinstance(data, np.ndarray) and data.flags.writeable:
            np.copyto(data, values)
            return data
        if isinstance(data, np.ndarray) or (torch is not None and isinstance(data, torch.Tensor)):
            return values
        return make_jax(values, getattr(data, "sharding", None))

    def _make(self, data: Any, stored: StoredTensor, shape: tuple[int, ...], index: int, path: Path) -> Any:
        """What was read, with the element type of ``data``, as a tensor of its library; as NumPy's for JAX."""
        memory, torch = self.memories[index], sys.modules.get("torch")
        try:
            check_values(stored.dtype, name_dtype(data.dtype), memory)
            if torch is not None and isinstance(data, torch.Tensor):
                return make_torch(stored.dtype, shape, memory, data.dtype)
            return make_numpy(stored.dtype, shape, memory, data.dtype)
        except RefusedError as error:
            raise self._mismatch(path, f"what is given {error}") from None

    def _check_cast(self, data: Any, stored: StoredTensor, path: Path) -> None:
        torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
        is_torch = torch is not None and isinstance(data, torch.Tensor)
        if not is_torch and not isinstance(data, np.ndarray) and (jax is None or not hasattr(data, "dtype")):
            raise self._mismatch(path, f"a {type(data).__name__} cannot receive a tensor")
        if is_torch and torch_dtype(torch, stored.dtype) is None:
            raise self._mismatch(path, f"torch has no type {stored.dtype}")
        try:
            check_cast(stored.dtype, name_dtype(data.dtype))
        except RefusedError as error:
            raise self._mismatch(path, f"what is given {error}") from None

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


def _new_sharded(template: Any, stored: StoredTensor) -> Any:
    """Something sharded as the template is, of the stored tensor's type; None if its library has no such type."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(template, torch.Tensor):
        dtype = torch_dtype(torch, stored.dtype)
        return None if dtype is None else new_dtensor(template, dtype, stored.shape)
    found = numpy_dtype(stored.dtype)
    if jax is None or found is None:
        return None
    return jax.ShapeDtypeStruct(stored.shape, found, sharding=template.sharding)


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
