"""Safetensors files and folders as a state: every tensor by its name, over memory that is mapped and not copied."""

from __future__ import annotations

import json
import math
import mmap
import os
from typing import TYPE_CHECKING, Any

from strata.checkpoint.exchange.libraries import has_torch
from strata.checkpoint.format.dtypes import DTYPES, numpy_dtype
from strata.checkpoint.format.tensors import view_tensor
from strata.errors import ForeignFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INDEX_SUFFIX = ".safetensors.index.json"
# The format's own limit on its header.
MAX_HEADER_BYTES = 100_000_000
_NAMES: dict[str, str] = {}
for _each in DTYPES.values():
    if _each.stored_as is not None:
        _NAMES.setdefault(_each.stored_as, _each.name)


def read_files(source: Path) -> dict[str, Any]:
    """Return the tensors of a file, or of all files of a folder; an index says which files belong to it."""
    state: dict[str, Any] = {}
    for path in _files_of(source):
        for name, tensor in _read_file(path):
            if name in state:
                raise ForeignFormatError(str(path), f"tensor {name!r} is in another file of the folder too")
            state[name] = tensor
    return state


def find_index(folder: Path) -> Path | None:
    """The index of a folder in Hugging Face's layout, if it has one."""
    return next(iter(sorted(folder.glob(f"*{INDEX_SUFFIX}"))), None)


def _files_of(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    index = find_index(source)
    if index is None:
        found = sorted(source.glob("*.safetensors"))
        if not found:
            raise ForeignFormatError(str(source), "there are no safetensors files in it")
        return found
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ForeignFormatError(str(index), "it is no index: it has no weight_map of tensors to files") from error
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name:  # noqa: PTH119 - it is text from a file
            raise ForeignFormatError(str(index), f"it names {name!r:.80}, which is no file of the folder")
        if not (source / name).is_file():
            raise ForeignFormatError(str(index), f"it names {name!r:.80}, which is missing")
    return [source / name for name in sorted(names)]


def _read_file(path: Path) -> Iterator[tuple[str, Any]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise ForeignFormatError(str(path), "it is no safetensors file: the header is longer than the file")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            rows = [(name, *_row(each, size - 8 - length)) for name, each in header.items()]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ForeignFormatError(str(path), f"it is no safetensors file: {error!s:.200}") from error
        # A private map: what is made of it may be written to, and the file stays as it is.
        memory = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY))
    kind: Any = "torch" if has_torch() else "numpy"
    for name, dtype, shape, start, end in rows:
        if kind == "numpy" and numpy_dtype(dtype) is None:
            raise ForeignFormatError(
                str(path), f"tensor {name!r:.80} is of type {dtype}, for which torch must be installed"
            )
        yield name, view_tensor(kind, dtype, shape, memory[8 + length + start : 8 + length + end])


def _row(each: dict[str, Any], data_bytes: int) -> tuple[str, list[int], int, int]:
    dtype, shape, (start, end) = each["dtype"], each["shape"], each["data_offsets"]
    if dtype not in _NAMES:
        raise ValueError(f"a tensor has elements of type {dtype!r:.20}, which is not known here")
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise ValueError("a shape or an offset is no whole number")
    name = _NAMES[dtype]
    if end > data_bytes or end - start != math.prod(shape) * DTYPES[name].itemsize:
        raise ValueError("a tensor does not fit its place")
    return name, shape, start, end
