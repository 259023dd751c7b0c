"""The ``.npy`` format: a header that says type and shape, then the numbers.

NumPy reads headers with the parser of Python. In CPython 3.11 that fails now and then when several threads use it at
once, so headers as NumPy writes them for plain types are read without it, and others by one thread at a time.
"""

from __future__ import annotations

import ast
import io
import math
import operator
import re
import threading
import tokenize
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"\x93NUMPY"
# Longer headers than this are those of structured types with hundreds of fields.
HEADER_BYTES = 64 << 10
_PLAIN = re.compile(rb"\{'descr': '([^'\\]{1,40})', 'fortran_order': (True|False), 'shape': \(((?:\d+,? ?)*)\), \} *\n")
_parsing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Header:
    """What the data is, and where it begins."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def size_bytes(self) -> int:
        """How many bytes the data has."""
        return math.prod(self.shape) * self.dtype.itemsize


def parse_header(data: bytes) -> Header:
    """Read the header at the beginning of ``data``; what is none, or holds pickles, is a ValueError."""
    width = {1: 2, 2: 4, 3: 4}.get(data[6] if len(data) > 10 else 0)
    if not data.startswith(MAGIC) or width is None:
        raise ValueError("it does not begin as an array of version 1, 2 or 3 of the format")
    start = 8 + width
    offset = start + int.from_bytes(data[8:start], "little")
    if offset > len(data):
        raise ValueError("it ends inside its header")
    found = _PLAIN.fullmatch(data, start, offset)
    if found:
        shape = tuple(int(size) for size in found[3].replace(b",", b" ").split())
        dtype, fortran = _dtype(found[1].decode("latin-1")), found[2] == b"True"
    else:
        dtype, shape, fortran = _parse_any(data[:offset], data[6])
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape {shape} has a size below zero")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are pickles and are never loaded")
    return Header(dtype, shape, fortran and len(shape) > 1, offset)


def parse_array(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a whole file as a view; anything else is a ValueError."""
    header = parse_header(data)
    if header.offset + header.size_bytes > len(data):
        raise ValueError("it ends inside its data")
    flat = np.frombuffer(data, header.dtype, math.prod(header.shape), header.offset)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _dtype(text: str) -> np.dtype[Any]:
    try:
        return np.dtype(text)
    except (TypeError, SyntaxError) as error:  # the latter for a damaged list of types
        raise ValueError(f"its type {text!r} cannot be read") from error


def _parse_any(data: bytes, version: int) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    try:
        with _parsing:
            if version == 3:
                # As version 2, with names of fields in UTF-8; NumPy has no public function for it alone.
                header = ast.literal_eval(data[12:].decode())
                dtype = np.lib.format.descr_to_dtype(header["descr"])
                return dtype, tuple(map(operator.index, header["shape"])), bool(header["fortran_order"])
            read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(io.BytesIO(data[8:]))
    except (ValueError, SyntaxError, TypeError, KeyError, tokenize.TokenError) as error:
        raise ValueError(f"its header cannot be read: {str(error).splitlines()[0]}") from error
    return dtype, shape, fortran
