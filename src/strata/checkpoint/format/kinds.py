"""Which kinds of values a checkpoint keeps as what they are; every other kind is refused with a reason. Pure.

A value comes back with the type and the value that it had, or it is refused before anything is written. The few
kinds that come back as another one are listed in docs/checkpoints.md, and nowhere else.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint.format.dtypes import DTYPES
from strata.checkpoint.format.tensors import RefusedError, Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

# What the tags of sequences in a structure stand for; "size" is torch's, and a tuple where torch is not imported.
SEQUENCES = ("list", "tuple", "size", "deque")
# NumPy's limit, less one: a type without a name in NumPy gets one dimension more.
MAX_DIMS = 63
# Other languages read JSON integers of 64 bits; larger ones are kept as hexadecimal text, up to this length.
MAX_INT_BITS = 1 << 20
# What a manifest counts with: steps, epochs, sizes.
MAX_COUNT = (1 << 63) - 1
_FACTORIES: dict[str, Any] = {
    each.__name__: each for each in (bool, int, float, complex, str, bytes, list, dict, set, tuple)
}


# Two halves of one character. Python keeps them apart, and whoever reads JSON joins them.
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
# Types that torch has, and has no kernels for.
_UNCOPIED = {"torch.float4_e2m1fn_x2", *(f"torch.{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))}


def is_json_int(value: int) -> bool:
    """Whether every reader of JSON takes this integer exactly."""
    return -(1 << 63) <= value < 1 << 64


def name_dict(value: dict[Any, Any]) -> str:
    """What a structure calls a dict of another class than dict; RefusedError if it cannot come back."""
    kind = type(value)
    if kind in (OrderedDict, Counter):
        return kind.__name__
    if isinstance(value, defaultdict) and kind is defaultdict:
        factory = value.default_factory
        if factory is None:
            return "defaultdict"
        name = getattr(factory, "__name__", "")
        if _FACTORIES.get(name) is factory:
            return f"defaultdict:{name}"
        raise RefusedError("has a default_factory of its own, which a file cannot hold: save dict(value)")
    raise RefusedError("is a dict of another class, which would come back as a plain one: save dict(value)")


def make_dict(name: str | None, items: dict[Any, Any]) -> dict[Any, Any]:
    """Make the kind of dict that a structure names; ValueError if it names none."""
    if name is None:
        return items
    if name == "OrderedDict":
        return OrderedDict(items)
    if name == "Counter":
        return Counter(items)
    kind, _, factory = name.partition(":")
    if kind != "defaultdict" or (factory and factory not in _FACTORIES):
        raise ValueError(f"an unknown kind of dict: {name!r:.40}")
    return defaultdict(_FACTORIES.get(factory), items)


def name_sequence(value: Any) -> str | None:
    """The tag of a sequence; None if this is no sequence, RefusedError if it cannot come back as what it is."""
    kind = type(value)
    if kind in (list, tuple, deque):
        return kind.__name__
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Size:
        return "size"
    for known in (list, tuple, deque):
        if isinstance(value, known):
            name = known.__name__
            raise RefusedError(
                f"is a {name} of another class, which would come back as a plain one: save {name}(value)"
            )
    return None


def make_sequence(tag: str, items: list[Any], maxlen: int | None = None) -> Any:
    """Make the kind of sequence that a tag stands for."""
    if tag == "list":
        return items
    if tag == "deque":
        return deque(items, maxlen)
    torch = sys.modules.get("torch")
    return torch.Size(items) if tag == "size" and torch is not None else tuple(items)


def remake(like: Any, items: Any) -> Any:
    """Put restored items into the kind of container that ``like`` is; an unknown class becomes its plain base."""
    if isinstance(like, defaultdict):
        return defaultdict(like.default_factory, items)
    if isinstance(like, dict):
        return type(like)(items) if type(like) in (OrderedDict, Counter) else items
    if isinstance(like, deque):
        return deque(items, like.maxlen)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Size):
        return torch.Size(items)
    return list(items) if isinstance(like, list) else tuple(items)


def replace_fields(like: Any, fields: dict[str, Any]) -> Any:
    """Return a copy of a dataclass with these values."""
    made = copy.copy(like)
    for each in dataclasses.fields(like):
        # Frozen dataclasses refuse the plain way.
        object.__setattr__(made, each.name, fields[each.name])
    return made


def check_plain(value: Any) -> None:
    """Refuse what looks like a plain value and would come back as another one: enums, and classes of one's own."""
    if isinstance(value, Enum):
        raise RefusedError("is an enum member, which would come back as something else: save its .value")
    if isinstance(value, str | int | float | complex) and not isinstance(value, np.generic):
        base = next(each for each in (str, int, float, complex) if isinstance(value, each)).__name__
        raise RefusedError(f"is of a class made of {base}, and would come back as a plain {base}: save {base}(value)")


def check_text(value: str) -> None:
    """Refuse text that JSON reads as another one."""
    if _HALVES.search(value):
        raise RefusedError("has two surrogates side by side, which would come back as one character")


def check_fields(value: Any) -> None:
    """Refuse a dataclass that has more in it than its fields, or less."""
    torch = sys.modules.get("torch")
    others = (list, tuple, set, frozenset, deque, bytes, bytearray, np.ndarray)
    for known in others if torch is None else (*others, torch.Tensor, torch.nn.Module):
        if isinstance(value, known):
            raise RefusedError(f"is a dataclass and a {known.__name__}, and would lose what it has as one")
    for each in dataclasses.fields(value):
        if not hasattr(value, each.name):
            raise RefusedError(f"has a field {each.name} that was never set")


def check_tensor(value: Any) -> None:
    """Refuse what passes for a tensor and does not come back as what it is, before its memory is touched."""
    if isinstance(value, memoryview):
        raise RefusedError("is a view of memory that is not its own: save bytes(value)")
    if isinstance(value, bytes | bytearray):
        if type(value) not in (bytes, bytearray):
            raise RefusedError("is bytes of another class, which would come back as plain ones: save bytes(value)")
        return
    if isinstance(value, np.ndarray):
        _check_numpy(value)
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(value, torch.Tensor):
        check_torch(torch, value)
    elif jax is not None and isinstance(value, jax.Array):
        if isinstance(value, jax.core.Tracer):
            raise RefusedError("is traced and has no values yet: save outside of what is compiled")
        if value.is_deleted():
            raise RefusedError("was deleted or donated, so it has no values any more")
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise RefusedError("is a key of JAX's random numbers: save jax.random.key_data(value)")
    if len(getattr(value, "shape", ())) > MAX_DIMS:
        raise RefusedError(f"has more than {MAX_DIMS} dimensions")


def name_tensor(value: Any, kind: str) -> str:
    """What a structure calls a leaf: the kind of its tensor, or a kind of the same bytes that comes back as another."""
    if isinstance(value, bytearray):
        return "bytearray"
    torch = sys.modules.get("torch")
    if kind == "torch" and torch is not None and isinstance(value, torch.nn.Parameter):
        return "parameter" if value.requires_grad else "frozen"
    return kind


# The kinds of leaves that share another kind's bytes: the kind that the bytes are read as.
READ_AS = {"bytearray": "bytes", "parameter": "torch", "frozen": "torch"}


def make_leaf(kind: str, value: Any) -> Any:
    """Make a leaf of a kind in READ_AS of what was read as the other kind."""
    torch = sys.modules.get("torch")
    if kind == "bytearray":
        return bytearray(value)
    if kind in ("parameter", "frozen") and torch is not None and isinstance(value, torch.Tensor):
        return torch.nn.Parameter(value, requires_grad=kind == "parameter")
    return value


def _check_numpy(value: np.ndarray[Any, Any]) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise RefusedError("is a masked array: save its data and its mask")
    # A memory map is an array whose values happen to lie in a file.
    if type(value) not in (np.ndarray, np.memmap):
        raise RefusedError("is an array of another class, which would come back as a plain one: save np.asarray(value)")


def check_torch(torch: Any, value: Any) -> None:
    """As :func:`check_tensor`, for a tensor of torch. Training waits for this: each question is a cheap one."""
    kind = type(value)
    if kind.__name__ == "DTensor":
        return
    if kind not in (torch.Tensor, torch.nn.Parameter):
        raise RefusedError("is a tensor of another class: save its inner tensors, or a plain tensor made of it")
    if value.is_nested:
        raise RefusedError("is nested: save the tensors that it is made of")
    if value.dim() > MAX_DIMS:
        raise RefusedError(f"has more than {MAX_DIMS} dimensions")
    if value.layout is torch.strided and not value.is_quantized and not value.is_meta:
        if value._is_zerotensor():
            raise RefusedError("has no memory, because it stands for zeros: save value.clone()")
        try:
            storage = value.untyped_storage()
        except NotImplementedError:
            storage = None
        if storage is None or torch._is_functional_tensor(value):
            raise RefusedError("stands for another tensor inside of vmap, grad or functionalize: save outside of them")
        if value.numel() and storage.nbytes() < _needed_bytes(value):
            raise RefusedError("has not its memory: its storage was freed, as sharded training does between steps")
        if not value.is_contiguous() and str(value.dtype) in _UNCOPIED:
            raise RefusedError(f"is a view with gaps, and torch cannot copy elements of type {value.dtype}")


def _needed_bytes(value: Any) -> int:
    """How much of its storage a torch tensor uses, from the storage's beginning on."""
    last = value.numel() - 1
    if not value.is_contiguous():
        last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    needed_bytes: int = (value.storage_offset() + last + 1) * value.element_size()
    return needed_bytes


def check_target(value: Any) -> None:
    """Refuse a tensor of ``like`` that values cannot be put into; one on the meta device gets memory of its own."""
    check_tensor(value)
    data = value.data if isinstance(value, Slice) else value
    if not hasattr(data, "shape"):
        raise RefusedError(f"is a {type(data).__name__}, and the checkpoint has a tensor there")
    if isinstance(data, np.ndarray):
        if data.dtype.kind in "OSUVT" and data.dtype.name not in DTYPES:
            raise RefusedError(f"has elements of type {data.dtype.name}, which no tensor of a checkpoint has")
        # What cannot be written to gets memory of its own.
        if data.flags.writeable and _shares_elements(data.shape, data.strides):
            raise RefusedError("has elements that share memory: give value.copy()")
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(data, torch.Tensor) or type(data).__name__ == "DTensor":
        return
    if data.layout is not torch.strided or data.is_quantized:
        raise RefusedError("is sparse or quantized, and the checkpoint has it dense: give a dense tensor")
    if not data.is_meta and _shares_elements(data.shape, data.stride()):
        raise RefusedError("is expanded, or has elements that share memory otherwise: give value.contiguous()")


def _shares_elements(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements may share memory; also true of strides that interleave, which nobody lays out."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return any(stride == 0 and size > 1 for stride, size in zip(strides, shape, strict=True))
