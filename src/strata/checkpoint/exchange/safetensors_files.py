"""Safetensors files and folders as a state: every tensor by its name, over memory that is mapped and not copied."""

from __future__ import annotations

import json
import math
import mmap
import os
from typing import TYPE_CHECKING, Any

from strata.checkpoint.exchange.libraries import has_torch
from strata.checkpoint.format.dtypes import DTYPES, numpy_dtype
from strata.checkpoint.format.kinds import MAX_COUNT
from strata.checkpoint.format.tensors import view_tensor
from strata.errors import ForeignFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
    if not source.is_dir():
        return dict(_read_file(source))
    index = find_index(source)
    if index is not None:
        return _read_indexed(index)
    paths = [path for path in sorted(source.glob("*.safetensors")) if path.is_file()]
    if not paths:
        raise ForeignFormatError(str(source), "there are no safetensors files in it")
    return _read_all(paths)[0]


def find_index(folder: Path) -> Path | None:
    """The index of a folder in Hugging Face's layout, if it has one.

    A folder may have variants, such as model.fp16.safetensors.index.json: the index without a variant counts.
    """
    found = sorted(folder.glob(f"*{INDEX_SUFFIX}"))
    if len(found) > 1:
        found = [path for path in found if "." not in path.name.removesuffix(INDEX_SUFFIX)] or found
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ForeignFormatError(str(folder), f"it has several indexes ({names:.200}): put one model into a folder")
    return found[0] if found else None


def _read_indexed(index: Path) -> dict[str, Any]:
    """Return the tensors of the files that an index names; every tensor that it names must be in its file."""
    try:
        places = dict(json.loads(index.read_bytes())["weight_map"].items())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ForeignFormatError(str(index), "it is no index: it has no weight_map of tensors to files") from error
    if not places:
        raise ForeignFormatError(str(index), "its weight_map names no tensors")
    for name in places.values():
        if not isinstance(name, str) or os.path.basename(name) != name:  # noqa: PTH119 - it is text from a file
            raise ForeignFormatError(str(index), f"it names {name!r:.80}, which is no file of the folder")
        if not (index.parent / name).is_file():
            raise ForeignFormatError(str(index), f"it names {name!r:.80}, which is missing")
    state, found_in = _read_all([index.parent / name for name in sorted(set(places.values()))])
    for tensor, name in places.items():
        if found_in.get(tensor) != name:
            raise ForeignFormatError(str(index), f"it says that {name!r:.80} has {tensor!r:.80}, which is not there")
    return state


def _read_all(paths: Sequence[Path]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors of several files, and which file has each."""
    state: dict[str, Any] = {}
    found_in: dict[str, str] = {}
    for path in paths:
        for name, tensor in _read_file(path):
            if name in state:
                raise ForeignFormatError(str(path), f"tensor {name!r} is in another file of the folder too")
            state[name], found_in[name] = tensor, path.name
    return state, found_in


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
    # Libraries compute with 64 bits, also where a 0 among the sizes makes the tensor empty.
    if math.prod(size for size in shape if size) * DTYPES[name].itemsize > MAX_COUNT:
        raise ValueError("a tensor has a shape that no memory holds")
    if end > data_bytes or end - start != math.prod(shape) * DTYPES[name].itemsize:
        raise ValueError("a tensor does not fit its place")
    return name, shape, start, end
