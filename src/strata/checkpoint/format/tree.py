"""State trees: from dicts, lists, tuples and dataclasses to named tensors and a JSON structure, and back.

Pure. The structure holds the shape of the tree and all its plain leaves; a tensor stands in it by name. A node is
a JSON scalar (None, a bool, a number, a string: itself) or an object with one tag:

    {"dict": [[key, node], ...]}    keys are strings, integers or booleans, in their order; "as" names another kind
    {"list": [node, ...]}           {"tuple": [...]}, {"size": [...]}, {"deque": [...], "maxlen": number or null}
    {"float": "nan" | "inf" | "-inf"}    {"int": hexadecimal}    {"complex": text}
    {"tensor": name, "as": kind}
"""

from __future__ import annotations

import dataclasses
import math
import operator
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strata.checkpoint.format import kinds
from strata.checkpoint.format.kinds import SEQUENCES
from strata.checkpoint.format.sharded import Replica, Sharded, find_sharded
from strata.checkpoint.format.tensors import Kind, RefusedError, Slice, Tensor, find_tensor, find_torch
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


# Not frozen, for the same reason as Tensor.
@dataclass(slots=True, eq=False)
class Leaf:
    """A tensor of the state and where it lies in the whole tensor, which is larger if it is a slice."""

    tensor: Tensor
    shape: tuple[int, ...]
    start: tuple[int, ...]


@dataclass(slots=True)
class FlatState:
    """A state taken apart: its structure, and its tensors by name, in the order of the tree.

    Those that are spread over ranks are apart: which of their bytes this one writes depends on all of them.
    """

    structure: Node
    leaves: dict[str, Leaf]
    sharded: dict[str, Sharded] = field(default_factory=dict)


def show_path(path: Path) -> str:
    """Join a path for people and for tensor names: dots between, whatever the keys contain."""
    return ".".join(map(str, path))


def flatten(state: Any) -> FlatState:
    """Take a state apart, or raise UnsavableStateError naming the leaf that no checkpoint can keep."""
    flattening = _Flattening()
    return FlatState(flattening.visit(state, ()), flattening.leaves, flattening.sharded)


def is_namedtuple(value: Any) -> bool:
    """Whether this is a tuple whose items have names."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def children_of(value: Any) -> list[tuple[Any, Any]] | None:
    """The fields of what is kept as a dict: dicts, dataclasses and named tuples; None for anything else.

    RefusedError if the fields of a dataclass are not all that there is of it.
    """
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, Slice):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kinds.check_fields(value)
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    if is_namedtuple(value):
        return list(zip(value._fields, value, strict=True))
    return None


@dataclass(slots=True)
class _Flattening:
    leaves: dict[str, Leaf] = field(default_factory=dict)
    sharded: dict[str, Sharded] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    torch: Any = field(default_factory=lambda: sys.modules.get("torch"))
    plain_tensors: tuple[type, ...] = ()

    def __post_init__(self) -> None:
        if self.torch is not None:
            self.plain_tensors = self.torch.Tensor, self.torch.nn.Parameter

    def visit(self, value: Any, path: Path) -> Node:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value if value.isascii() else self._visit_text(value, path)
        if kind is int:
            return value if kinds.is_json_int(value) else self._visit_large(value, path)
        # NumPy's float64 is a float too, but comes back as what it was.
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is complex:
            return {"complex": repr(value)}
        if len(path) >= MAX_DEPTH:
            raise UnsavableStateError(
                show_path(path[:8]) + "…", kind.__name__, f"is more than {MAX_DEPTH} levels deep or contains itself"
            )
        try:
            # Most of a state by far, and nothing else that is asked below. Training waits for this.
            if kind in self.plain_tensors:
                return self._visit_plain_tensor(value, path)
            if kind is dict:
                return {"dict": [[self._key(key, path), self.visit(item, (*path, key))] for key, item in value.items()]}
            kinds.check_plain(value)
            if (children := children_of(value)) is not None:
                node = {"dict": [[self._key(key, path), self.visit(item, (*path, key))] for key, item in children]}
                name = kinds.name_dict(value) if isinstance(value, dict) else None
                return node if name is None else {**node, "as": name}
            if (tag := kinds.name_sequence(value)) is not None:
                items = [self.visit(item, (*path, index)) for index, item in enumerate(value)]
                return {tag: items, "maxlen": value.maxlen} if tag == "deque" else {tag: items}
            return self._visit_tensor(value, path)
        except RefusedError as error:
            data = value.data if isinstance(value, Slice | Replica) else value
            raise UnsavableStateError(show_path(path), type(data).__name__, str(error)) from None

    def _key(self, key: Any, path: Path) -> str | int:
        if type(key) is str:
            return key if key.isascii() else self._visit_text(key, (*path, key))
        if type(key) is bool or (type(key) is int and kinds.is_json_int(key)):
            return key
        shown = "…" if isinstance(key, int) else repr(key)[:80]
        raise UnsavableStateError(
            show_path((*path, shown)), type(key).__name__, "cannot be a key: keys are strings or integers of 64 bits"
        )

    def _visit_text(self, value: str, path: Path) -> str:
        try:
            kinds.check_text(value)
        except RefusedError as error:
            raise UnsavableStateError(show_path(path), "str", str(error)) from None
        return value

    def _visit_large(self, value: int, path: Path) -> Node:
        if value.bit_length() > kinds.MAX_INT_BITS:
            raise UnsavableStateError(show_path(path), "int", f"has more than {kinds.MAX_INT_BITS} bits")
        return {"int": hex(value)}

    def _visit_plain_tensor(self, value: Any, path: Path) -> Node:
        kinds.check_torch(self.torch, value)
        tensor = find_torch(self.torch, value)
        name = self._name(path)
        self.leaves[name] = Leaf(tensor, tensor.shape, (0,) * len(tensor.shape))
        if type(value) is self.torch.Tensor:
            return {"tensor": name, "as": "torch"}
        return {"tensor": name, "as": "parameter" if value.requires_grad else "frozen"}

    def _visit_tensor(self, value: Any, path: Path) -> Node:
        data = value.data if isinstance(value, Slice) else value
        inner = data.data if isinstance(data, Replica) else data
        kinds.check_tensor(inner)
        sharded = find_sharded(data)
        tensor = find_tensor(data) if sharded is None else None
        if sharded is not None:
            if any(local.source is None for local in sharded.locals):
                raise RefusedError("has no values")
            if isinstance(value, Slice):
                raise RefusedError("is spread over ranks already: save it as it is, without strata.checkpoint.Slice")
            name = self._name(path)
            self.sharded[name] = sharded
            return {"tensor": name, "as": kinds.name_tensor(inner, sharded.kind)}
        if tensor is None:
            raise RefusedError("a checkpoint cannot keep")
        leaf = Leaf(tensor, tensor.shape, (0,) * len(tensor.shape))
        if isinstance(value, Slice):
            leaf = Leaf(tensor, *_check_slice(value, tensor.shape, path))
        name = self._name(path)
        self.leaves[name] = leaf
        return {"tensor": name, "as": kinds.name_tensor(data, tensor.kind)}

    def _name(self, path: Path) -> str:
        name = unique_name(path, self.names)
        self.names.add(name)
        return name


def unique_name(path: Path, taken: Container[str]) -> str:
    """Name the tensor at a path: the path with dots, and a number where another path looks the same."""
    # A lone surrogate is no text, and other readers of the part file would refuse it.
    wanted = show_path(path) or ROOT_NAME
    if not wanted.isascii():
        wanted = wanted.encode("utf-8", "backslashreplace").decode()
    name, number = wanted, 2
    # "a.b" may be one key or two: the structure says which leaf is which, so names need only differ.
    while name in taken or name == RESERVED_NAME:
        name, number = f"{wanted}#{number}", number + 1
    return name


def read_slice(value: Slice, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the whole shape and the start of a slice of this shape that lies inside it, or raise RefusedError."""
    try:
        whole, start = tuple(map(operator.index, value.shape)), tuple(map(operator.index, value.start))
    except TypeError:
        raise RefusedError("has a shape or a start that is no sequence of whole numbers") from None
    fits = len(whole) == len(start) == len(shape) and all(
        low >= 0 and low + length <= size for low, length, size in zip(start, shape, whole, strict=True)
    )
    if not fits:
        raise RefusedError(f"does not fit: a piece of shape {shape} at {start} is not inside a tensor of shape {whole}")
    return whole, start


def _check_slice(value: Slice, shape: tuple[int, ...], path: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    try:
        return read_slice(value, shape)
    except RefusedError as error:
        raise UnsavableStateError(show_path(path), "Slice", str(error)) from None


def rebuild(structure: Node, find: Callable[[str, Kind], Any]) -> Any:
    """Put a state together again; ``find`` returns the tensor of a name and kind."""
    if not isinstance(structure, dict):
        return structure
    if "tensor" in structure:
        kind = structure["as"]
        found = find(structure["tensor"], kinds.READ_AS.get(kind, kind))  # type: ignore[arg-type]  # the reader checked it
        return kinds.make_leaf(kind, found)
    if "dict" in structure:
        items = {key: rebuild(node, find) for key, node in structure["dict"]}
        return kinds.make_dict(structure.get("as"), items)
    for tag in SEQUENCES:
        if tag in structure:
            sequence = [rebuild(node, find) for node in structure[tag]]
            return kinds.make_sequence(tag, sequence, structure.get("maxlen"))
    return _plain_value(structure)


def walk(structure: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield every leaf of a structure with its path: tensors as their node, plain leaves as their value."""
    if isinstance(structure, dict):
        if "dict" in structure:
            for key, node in structure["dict"]:
                yield from walk(node, (*path, key))
            return
        for tag in SEQUENCES:
            if tag in structure:
                for index, node in enumerate(structure[tag]):
                    yield from walk(node, (*path, index))
                return
        if "tensor" not in structure and "opaque" not in structure:
            yield path, _plain_value(structure)
            return
    yield path, structure


def is_tensor(node: Node) -> bool:
    """Whether a leaf of a structure stands for a tensor."""
    return isinstance(node, dict) and "tensor" in node


def _plain_value(node: dict[str, Any]) -> Any:
    """The value of a node that JSON has no form for."""
    if "float" in node:
        return float(node["float"])
    return int(node["int"], 16) if "int" in node else complex(node["complex"])
