"""State trees: from dicts, lists, tuples and dataclasses to named tensors and a JSON structure, and back.

Pure. The structure holds the shape of the tree and all its plain leaves; a tensor stands in it by name. A node is
a JSON scalar (None, a bool, a number, a string: itself) or an object with one tag:

    {"dict": [[key, node], ...]}    keys are strings, integers or booleans, in their order
    {"list": [node, ...]}           {"tuple": [node, ...]}
    {"float": "nan" | "inf" | "-inf"}
    {"tensor": name, "as": kind}
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strata.checkpoint.tensors import Kind, RefusedError, Slice, Tensor, find_tensor
from strata.errors import UnsavableStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

# Deeper than any model, and far from Python's own limit; a tree that contains itself ends here too.
MAX_DEPTH = 200
# The name of a tensor that has no path: the state itself is one.
ROOT_NAME = "value"
# safetensors keeps this name for itself.
RESERVED_NAME = "__metadata__"

Node = Any
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor of the state and where it lies in the whole tensor, which is larger if it is a slice."""

    tensor: Tensor
    shape: tuple[int, ...]
    start: tuple[int, ...]


@dataclass(slots=True)
class FlatState:
    """A state taken apart: its structure, and its tensors by name, in the order of the tree."""

    structure: Node
    leaves: dict[str, Leaf]


def show_path(path: Path) -> str:
    """Join a path for people and for tensor names: dots between, whatever the keys contain."""
    return ".".join(map(str, path))


def flatten(state: Any) -> FlatState:
    """Take a state apart, or raise UnsavableStateError naming the leaf that no checkpoint can keep."""
    flattening = _Flattening()
    return FlatState(flattening.visit(state, ()), flattening.leaves)


def is_namedtuple(value: Any) -> bool:
    """Whether this is a tuple whose items have names."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def children_of(value: Any) -> list[tuple[Any, Any]] | None:
    """The fields of what is kept as a dict: dicts, dataclasses and named tuples; None for anything else."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, Slice):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    if is_namedtuple(value):
        return list(zip(value._fields, value, strict=True))
    return None


@dataclass(slots=True)
class _Flattening:
    leaves: dict[str, Leaf] = field(default_factory=dict)

    def visit(self, value: Any, path: Path) -> Node:
        if value is None or isinstance(value, bool | str):
            return value if type(value) in (bool, str, type(None)) else str(value)
        if isinstance(value, int):
            return int(value)
        # NumPy's float64 is a float too, but comes back as what it was.
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if len(path) >= MAX_DEPTH:
            raise UnsavableStateError(
                show_path(path[:8]) + "…",
                type(value).__name__,
                f"is more than {MAX_DEPTH} levels deep or contains itself",
            )
        if (children := children_of(value)) is not None:
            return {"dict": [[self._key(key, path), self.visit(item, (*path, key))] for key, item in children]}
        if isinstance(value, list | tuple):
            tag = "list" if isinstance(value, list) else "tuple"
            return {tag: [self.visit(item, (*path, index)) for index, item in enumerate(value)]}
        return self._visit_tensor(value, path)

    def _key(self, key: Any, path: Path) -> str | int:
        if type(key) in (str, int, bool):
            return key  # type: ignore[no-any-return]
        raise UnsavableStateError(
            show_path((*path, repr(key))), type(key).__name__, "cannot be a key: keys are strings or integers"
        )

    def _visit_tensor(self, value: Any, path: Path) -> Node:
        data = value.data if isinstance(value, Slice) else value
        try:
            tensor = find_tensor(data)
        except RefusedError as error:
            raise UnsavableStateError(show_path(path), type(data).__name__, str(error)) from None
        if tensor is None:
            raise UnsavableStateError(show_path(path), type(data).__name__, "a checkpoint cannot keep")
        leaf = Leaf(tensor, tensor.shape, (0,) * len(tensor.shape))
        if isinstance(value, Slice):
            leaf = Leaf(tensor, *check_slice(value, tensor.shape, path))
        name = unique_name(path, self.leaves)
        self.leaves[name] = leaf
        return {"tensor": name, "as": tensor.kind}


def unique_name(path: Path, taken: Container[str]) -> str:
    """Name the tensor at a path: the path with dots, and a number where another path looks the same."""
    # A lone surrogate is no text, and other readers of the part file would refuse it.
    wanted = show_path(path).encode("utf-8", "backslashreplace").decode() or ROOT_NAME
    name, number = wanted, 2
    # "a.b" may be one key or two: the structure says which leaf is which, so names need only differ.
    while name in taken or name == RESERVED_NAME:
        name, number = f"{wanted}#{number}", number + 1
    return name


def check_slice(value: Slice, shape: tuple[int, ...], path: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the whole shape and the start of a slice that lies inside it, or raise UnsavableStateError."""
    whole, start = tuple(map(int, value.shape)), tuple(map(int, value.start))
    fits = len(whole) == len(start) == len(shape) and all(
        low >= 0 and low + length <= size for low, length, size in zip(start, shape, whole, strict=True)
    )
    if not fits:
        problem = f"does not fit: a piece of shape {shape} at {start} is not inside a tensor of shape {whole}"
        raise UnsavableStateError(show_path(path), "Slice", problem)
    return whole, start


def rebuild(structure: Node, find: Callable[[str, Kind], Any]) -> Any:
    """Put a state together again; ``find`` returns the tensor of a name and kind."""
    if not isinstance(structure, dict):
        return structure
    if "tensor" in structure:
        return find(structure["tensor"], structure["as"])
    if "dict" in structure:
        return {key: rebuild(node, find) for key, node in structure["dict"]}
    if "list" in structure:
        return [rebuild(node, find) for node in structure["list"]]
    if "tuple" in structure:
        return tuple(rebuild(node, find) for node in structure["tuple"])
    return float(structure["float"])


def walk(structure: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield every leaf of a structure with its path: tensors as their node, plain leaves as their value."""
    if isinstance(structure, dict):
        if "dict" in structure:
            for key, node in structure["dict"]:
                yield from walk(node, (*path, key))
            return
        for tag in ("list", "tuple"):
            if tag in structure:
                for index, node in enumerate(structure[tag]):
                    yield from walk(node, (*path, index))
                return
        if "float" in structure:
            yield path, float(structure["float"])
            return
    yield path, structure
