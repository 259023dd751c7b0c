"""Files of torch.save, read and written so that torch's weights_only loads them: no code in them is ever run."""

from __future__ import annotations

import uuid
import zipfile
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from strata.checkpoint.exchange.libraries import explain, need_torch
from strata.errors import ForeignFormatError

if TYPE_CHECKING:
    from pathlib import Path

READ_BYTES = 4 << 20


def read_torch(source: Path) -> Any:
    """Return what a file of torch.save holds; one that needs code of its own is refused."""
    torch = need_torch("files of torch.save")
    refusals: tuple[type[Exception], ...] = (
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
        KeyError,
        *unpickling_errors(),
    )
    try:
        state = torch.load(source, map_location="cpu", weights_only=True, mmap=_is_zip(source) or None)
    except refusals as error:
        problem = f"torch does not load it with weights_only ({explain(error)})"
        raise ForeignFormatError(str(source), problem) from error
    with source.open("rb") as file:
        if (changed := find_changed(file)) is not None:
            raise ForeignFormatError(str(source), f"it was changed after it was written ({changed})")
    return state


def find_changed(file: BinaryIO) -> str | None:
    """Say what in a file of torch.save is not as it was written; None if its checksums are right, or it has none.

    torch writes them and does not look at them, so a file with a flipped bit loads as if nothing were wrong.
    """
    if file.read(2) != b"PK":
        return None
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            # torch can be told to write no checksums; they are 0 then.
            for info in (each for each in archive.infolist() if each.CRC):
                with archive.open(info) as record:
                    while record.read(READ_BYTES):
                        pass
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        return explain(error)
    return None


def write_torch(state: Any, target: Path) -> None:
    """Write a state as torch.save does, all of it or nothing, in kinds that weights_only loads."""
    torch = need_torch("files of torch.save")
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        torch.save(to_torch(torch, state), partial)
        partial.replace(target)
    except (RuntimeError, OSError) as error:
        raise ForeignFormatError(str(target), f"torch does not write it ({explain(error)})") from error
    finally:
        partial.unlink(missing_ok=True)


def to_torch(torch: Any, value: Any) -> Any:
    """Return the state with arrays as torch's tensors and containers as plain ones."""
    if isinstance(value, dict):
        items = {key: to_torch(torch, each) for key, each in value.items()}
        return type(value)(items) if type(value) in (OrderedDict, Counter) else items
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(to_torch(torch, each) for each in value)
    if isinstance(value, list) or type(value).__name__ == "deque":
        return [to_torch(torch, each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return _to_tensor(torch, np.asarray(value))
    return value


def _to_tensor(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.kind in "Mm":
        array = array.view(np.int64)
    found = getattr(torch, array.dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise ForeignFormatError("the checkpoint", f"torch has no type {array.dtype.name}")
    if not array.size:
        return torch.empty(array.shape, dtype=found)
    return torch.frombuffer(bytearray(array.tobytes()), dtype=found).reshape(array.shape)


def _is_zip(source: Path) -> bool:
    with source.open("rb") as file:
        return file.read(2) == b"PK"


def unpickling_errors() -> tuple[type[Exception], ...]:
    """What torch raises for a file that needs more than weights_only allows."""
    from torch._weights_only_unpickler import UnpicklingError

    return (UnpicklingError,)
