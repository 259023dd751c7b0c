"""Lazy staging: what only torch's optimizers change is copied while forward and backward run, and they wait for it.

An optimizer changes its parameters and its own state in ``step()`` and nowhere else, so these may be copied until then.
All else (buffers that a forward pass changes, arrays, tensors of nobody) is copied before a save returns.

What is changed too early all the same is noticed, and the save is given up. Torch counts the changes of each tensor.
What goes past that count (``.data``, NumPy, kernels of others) is seen in two ways: before the copy by the bytes of
small tensors and samples of large ones; during the copy by a comparison of every byte after it. If all tensors have at
the end the bytes that were copied of them, there was a moment at which all had them: what is saved is never torn.
"""

from __future__ import annotations

import bisect
import ctypes
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from strata.checkpoint.format.sharded import is_sharded
from strata.checkpoint.format.tensors import hold_source, view_source
from strata.errors import StateChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from strata.checkpoint.format.layout import PartLayout
    from strata.checkpoint.format.tensors import Tensor
    from strata.checkpoint.format.tree import Leaf
    from strata.checkpoint.save.handle import SaveHandle
    from strata.checkpoint.save.staging import ByteArray, StagedImage

# How far samples are apart, and how many a tensor has at least; one that is smaller than WHOLE_BYTES is kept whole.
SAMPLE_BYTES = 64 << 10
SAMPLES = 16
WHOLE_BYTES = 8 << 10
# A copy that takes longer has a problem of its own, and training goes on; the save then finds the state changed.
WAIT_S = 600.0


class OptimizerGate:
    """Knows torch's optimizers, and lets none step while its tensors are being copied. From any thread."""

    def __init__(self) -> None:
        self._optimizers: WeakSet[Any] = WeakSet()
        self._staging: set[SaveHandle] = set()
        self._lock = threading.Lock()
        self._hook: Any = None

    def open(self) -> None:
        """Begin to see optimizers step; those seen are known from then on. Nothing happens without torch."""
        module = sys.modules.get("torch.optim.optimizer")
        if self._hook is None and module is not None:
            self._hook = module.register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Stand in no optimizer's way any more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def watch(self, optimizer: Any) -> None:
        """Know an optimizer that was not seen stepping yet."""
        self.open()
        self._optimizers.add(optimizer)

    def hold(self, handle: SaveHandle) -> None:
        """Let no optimizer step until this save is staged."""
        with self._lock:
            self._staging.add(handle)

    def let_go(self, handle: SaveHandle) -> None:
        """The save is staged, or given up."""
        with self._lock:
            self._staging.discard(handle)

    def find_managed(self) -> Managed:
        """The memory that only optimizers change, as it is now."""
        return Managed(sorted(span for optimizer in list(self._optimizers) for span in _spans_of(optimizer)))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizers.add(optimizer)
        with self._lock:
            staging = list(self._staging)
        for handle in staging:
            handle.wait_for_staging(WAIT_S)


@dataclass(frozen=True, slots=True)
class Managed:
    """Memory, as sorted spans of addresses."""

    spans: list[tuple[int, int]]

    def holds(self, tensor: Tensor) -> bool:
        """Whether all of a tensor's memory is in one of the spans."""
        if tensor.kind != "torch" or not tensor.source.is_contiguous():
            return False
        start = tensor.source.data_ptr()
        end = start + tensor.source.nbytes
        index = bisect.bisect_right(self.spans, (start, sys.maxsize)) - 1
        return index >= 0 and start < end <= self.spans[index][1]


def _spans_of(optimizer: Any) -> Iterator[tuple[int, int]]:
    torch = sys.modules["torch"]
    tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    plain = torch.Tensor, torch.nn.Parameter
    for state in optimizer.state.values():
        # Most have tensors right in them, and training waits for this.
        values = state.values() if isinstance(state, dict) else [state]
        tensors += [each for value in values for each in ((value,) if type(value) in plain else _values_of(value))]
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            local = tensor.detach().to_local() if type(tensor) not in plain and is_sharded(tensor) else tensor
            if local.layout is torch.strided and local.is_contiguous():
                start = local.data_ptr()
                yield start, start + local.nbytes


def _values_of(state: Any) -> Iterator[Any]:
    if isinstance(state, dict):
        for value in state.values():
            yield from _values_of(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _values_of(value)
    else:
        yield state


class Seal:
    """What tensors were when a save returned, cheap to take; and whether that is what was staged of them."""

    def __init__(self, step: int, leaves: Mapping[str, Leaf]) -> None:
        self._step = step
        self._tensors = {name: leaf.tensor for name, leaf in leaves.items()}
        self._marks = {name: _mark(tensor) for name, tensor in self._tensors.items()}

    def check(self, image: StagedImage, plan: PartLayout) -> None:
        """Raise StateChangedError unless what was staged is what was sealed, and all of it still is there.

        Call it when everything was copied: only then are equal bytes a proof that nothing is torn.
        """
        target = np.frombuffer(image.view, np.uint8)
        for place in plan.places:
            mark = self._marks.get(place.name)
            if mark is not None:
                tensor = self._tensors[place.name]
                staged = target[place.offset : place.offset + place.nbytes]
                if _version_of(tensor) != mark[0] or not _is_same(staged, view_source(tensor), mark[1]):
                    raise StateChangedError(self._step, place.name)


def _is_same(staged: ByteArray, source: ByteArray | None, sample: bytes) -> bool:
    """Whether staged bytes are those of the source, and of the sample; on an accelerator only torch's count is kept."""
    if source is None:
        return True
    differs = _memcmp()(staged.ctypes.data, source.ctypes.data, len(staged))
    return not differs and _sample(staged) == sample


@lru_cache
def _memcmp() -> Callable[[int, int, int], int]:
    """Compare memory; through ctypes, which lets go of the interpreter's lock meanwhile."""
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return memcmp


def _mark(tensor: Tensor) -> tuple[int, bytes]:
    """The version that torch counts, and samples of the bytes if the processor can read them."""
    view = hold_source(tensor)
    return _version_of(tensor), b"" if view is None else _sample(view)


def _version_of(tensor: Tensor) -> int:
    # Torch counts nothing for what was made in its inference mode.
    return 0 if tensor.source.is_inference() else tensor.source._version


def _sample(view: ByteArray) -> bytes:
    if len(view) <= WHOLE_BYTES:
        return view.tobytes()
    # Eight bytes each, and none of them lies across two elements.
    apart = min(SAMPLE_BYTES, len(view) // SAMPLES) // 8
    return view[: len(view) & ~7].view(np.uint64)[::apart].tobytes()
