"""Tensors of any library as bytes, and back, without a copy where the memory allows it.

torch and JAX are never imported here: whoever has a tensor of theirs has imported them already.
"""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from strata.checkpoint.format.dtypes import DTYPES, numpy_dtype, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

# The types that torch gives to NumPy as they are, which is the cheapest way to a tensor's bytes.
_SHARED_WITH_TORCH = {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"}
# What a tensor was, so that it comes back as that: "scalar" is NumPy's, "bytes" is a plain bytes object.
Kind = Literal["numpy", "torch", "jax", "scalar", "bytes"]


class RefusedError(Exception):
    """This is a tensor, but not one that a file can hold; the message says why, as in "which ..."."""


# Nobody changes one. It is not frozen because training waits for thousands of them, and each would take twice as long.
@dataclass(slots=True, eq=False)
class Tensor:
    """One tensor: what it is, and where its values are. A contiguous one is never copied here."""

    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    source: Any

    @property
    def nbytes(self) -> int:
        """How many bytes its values take in a file."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """A worker's piece of a tensor that is spread over workers: ``shape`` is of the whole, ``start`` of the piece.

    As a leaf of a state it says what is saved; as a leaf of ``like`` it says what is wanted.
    """

    data: Any
    shape: Sequence[int]
    start: Sequence[int]


def find_tensor(value: Any) -> Tensor | None:
    """See ``value`` as a tensor; None if it is not one, RefusedError if it cannot be kept."""
    if isinstance(value, np.ndarray):
        return _checked("numpy", name_dtype(value.dtype), value.shape, value)
    if isinstance(value, np.generic):
        return _checked("scalar", name_dtype(value.dtype), (), np.asarray(value))
    if isinstance(value, bytes | bytearray | memoryview):
        source = np.frombuffer(value, np.uint8)
        return Tensor("bytes", "uint8", source.shape, source)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return find_torch(torch, value)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        return _checked("jax", name_dtype(value.dtype), tuple(value.shape), value)
    return None


@lru_cache(maxsize=256)
def name_dtype(dtype: Any) -> str:
    """The name of a library's element type; remembered, because a state has few of them and many tensors."""
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


def _checked(kind: Kind, dtype: str, shape: tuple[int, ...], source: Any) -> Tensor:
    if dtype not in DTYPES:
        raise RefusedError(f"has elements of type {dtype}, which a file cannot hold")
    return Tensor(kind, dtype, shape, source)


def find_torch(torch: Any, value: Any) -> Tensor:
    """As :func:`find_tensor`, for a tensor of torch. Training waits for this: each question is a cheap one."""
    if value.layout is not torch.strided or value.is_quantized:
        raise RefusedError("is sparse or quantized: save its dense pieces")
    if value.is_meta:
        raise RefusedError("is on the meta device and has no values")
    if type(value) is not torch.Tensor and hasattr(value, "device_mesh"):
        raise RefusedError("is a DTensor: give it as it is")
    plain = value.detach()  # shares memory
    if plain.is_conj() or plain.is_neg():
        # They are flags on a view, and a file has no place for them.
        plain = plain.resolve_conj().resolve_neg()
    return _checked("torch", name_dtype(value.dtype), tuple(value.shape), plain)


class _TorchMemory:
    """The memory of a contiguous tensor on the CPU, for NumPy. It keeps the tensor, and changes nothing about it.

    ``Tensor.numpy()`` would: torch never again resizes or frees memory that it gave to NumPy, and FSDP does both.
    """

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        data = tensor.data_ptr(), False
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (tensor.nbytes,), "data": data}


def view_source(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """The tensor's bytes as they lie in memory, or None if they do not lie there as a file has them."""
    source = tensor.source
    if tensor.kind == "torch":
        if not source.is_cpu or not source.is_contiguous():
            return None
        return np.asarray(_TorchMemory(source)) if source.numel() else np.empty(0, np.uint8)
    if tensor.kind == "jax":
        source = np.asarray(source)
    if not source.flags.c_contiguous or source.dtype.byteorder == ">":
        return None
    found: np.ndarray[Any, np.dtype[np.uint8]] = source.reshape(-1).view(np.uint8)
    return found


def hold_source(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """As :func:`view_source`, of a torch tensor that is read while others run: torch will not free its memory."""
    source = tensor.source
    if not source.is_cpu or not source.is_contiguous():
        return None
    if tensor.dtype in _SHARED_WITH_TORCH:
        shared: np.ndarray[Any, np.dtype[np.uint8]] = source.numpy().reshape(-1).view(np.uint8)
        return shared
    # Not reshape(): of a single element it keeps a stride that view() refuses.
    flat = source.as_strided((source.numel(),), (1,))
    view: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(sys.modules["torch"].uint8).numpy()
    return view


def copy_values(tensor: Tensor, target: memoryview) -> None:
    """Copy values that do not lie contiguous on the CPU; on an accelerator the copy is only begun.

    :func:`wait_for_copies` ends such copies.
    """
    if tensor.kind == "torch":
        torch = sys.modules["torch"]
        into = torch.frombuffer(target, dtype=torch_dtype(torch, tensor.dtype)).reshape(tensor.shape)
        into.copy_(tensor.source, non_blocking=is_on_cuda(tensor))
        return
    source = np.asarray(tensor.source)
    dtype = source.dtype.newbyteorder("<") if source.dtype.byteorder == ">" else source.dtype
    np.copyto(np.frombuffer(target, dtype).reshape(tensor.shape), source)


def is_on_host(tensor: Tensor) -> bool:
    """Whether the processor can read the values where they lie."""
    return tensor.kind != "torch" or tensor.source.device.type == "cpu"


def bring_to_host(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The tensor's bytes as a file has them: where they lie, if they lie there so, or a copy."""
    view = view_source(tensor)
    if view is None:
        view = np.empty(tensor.nbytes, np.uint8)
        if tensor.nbytes:
            copy_values(tensor, view.data)
            wait_for_copies([tensor])
    return view


def is_on_cuda(tensor: Tensor) -> bool:
    """Whether the values lie in the memory of a CUDA device."""
    return tensor.kind == "torch" and tensor.source.device.type == "cuda"


def pin_memory(address: int, size_bytes: int) -> None:
    """Register memory with the CUDA driver; where that is refused, copies are slower and no less right."""
    sys.modules["torch"].cuda.cudart().cudaHostRegister(address, size_bytes, 0)


def unpin_memory(address: int) -> None:
    """Take registered memory back from the CUDA driver."""
    sys.modules["torch"].cuda.cudart().cudaHostUnregister(address)


def wait_for_copies(tensors: Sequence[Tensor]) -> None:
    """Return when every copy that was begun from an accelerator has ended."""
    for device in {tensor.source.device for tensor in tensors if is_on_cuda(tensor)}:
        sys.modules["torch"].cuda.synchronize(device)


def view_tensor(kind: Kind, dtype: str, shape: Sequence[int], memory: memoryview) -> Any:
    """Make a tensor of these bytes, of the library it was saved from, if that is imported; else NumPy's.

    torch and NumPy tensors share ``memory``. What NumPy has no type for is an array of raw bytes with one more
    dimension.
    """
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if kind == "bytes":
        return memory.tobytes()
    if kind == "torch" and torch is not None and (found := torch_dtype(torch, dtype)) is not None:
        if not len(memory):
            return torch.empty(tuple(shape), dtype=found)
        return torch.frombuffer(memory, dtype=found).reshape(tuple(shape))
    array = _view_numpy(dtype, shape, memory)
    if kind == "jax" and jax is not None:
        # Copied: JAX takes its arrays for immutable, and this memory is not.
        return make_jax(array.copy())
    return array[()] if kind == "scalar" else array


def make_jax(array: np.ndarray[Any, Any], place: Any = None) -> Any:
    """A JAX array of these very elements, on a device or with a sharding. The array is JAX's from now on.

    By default JAX cuts elements of 64 bits to 32 without a word, and ``enable_x64`` counts for one thread alone.
    """
    jax = sys.modules["jax"]
    # Older versions of JAX have it as an experiment.
    module = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
    with module.enable_x64(True):  # noqa: FBT003 - JAX names it no other way
        return jax.device_put(array, place)


def _view_numpy(dtype: str, shape: Sequence[int], memory: memoryview) -> np.ndarray[Any, Any]:
    found = numpy_dtype(dtype)
    if found is None:
        return np.frombuffer(memory, np.uint8).reshape(*shape, DTYPES[dtype].itemsize)
    return np.frombuffer(memory, found).reshape(tuple(shape))
