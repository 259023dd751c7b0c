"""Blocks of text: where a file of lines can be cut, so that each piece can be parsed by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from strata.data.option_checks import OptionTypeError
from strata.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from strata.data.files.random_access import ByteFile
    from strata.data.formats.protocol import Integers

# Large enough that parsing, not starting to parse, takes the time; small enough to be parsed for a few rows.
BLOCK_BYTES = 512 << 10
# A line longer than this is no line: the file is something else.
MAX_LINE_BYTES = 1 << 30
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34


def line_ends(data: npt.NDArray[np.uint8]) -> Integers:
    """Return the places after each newline."""
    return np.flatnonzero(data == _NEWLINE) + 1


def record_ends(data: npt.NDArray[np.uint8]) -> Integers:
    """Return the places after each newline; some old programs write carriage returns instead."""
    newlines = np.flatnonzero(data == _NEWLINE)
    return (newlines if len(newlines) else np.flatnonzero(data == _RETURN)) + 1


def unquoted_record_ends(data: npt.NDArray[np.uint8]) -> Integers:
    """Return the places after each end of a line that is not inside quotes; the data begins outside of them."""
    newlines = record_ends(data) - 1
    quotes = np.flatnonzero(data == _QUOTE)
    if len(quotes):
        # A quote inside a quoted value is doubled, so it is even before a newline that ends a record.
        newlines = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    return newlines + 1


def cut_blocks(
    file: ByteFile, find_ends: Callable[[npt.NDArray[np.uint8]], Integers], *, kind: str
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of pieces of about a block, each ending at the end of a line; together all bytes."""
    offset, rest = 0, b""
    for piece in file.stream():
        data = rest + piece.to_pybytes()
        ends = find_ends(np.frombuffer(data, np.uint8))
        if len(ends) == 0 and len(data) > MAX_LINE_BYTES:
            problem = f"{len(data)} bytes follow without the end of a line"
            raise CorruptFileError(file.name, problem, kind=kind, offset=offset)
        begin = 0
        while True:
            following = int(np.searchsorted(ends, begin + BLOCK_BYTES))
            if following >= len(ends):
                break
            yield offset + begin, data[begin : ends[following]]
            begin = int(ends[following])
        offset, rest = offset + begin, data[begin:]
    if rest:
        yield offset, rest


def first_error(error: Exception) -> str:
    """Return the first line of what Arrow says, in bounded length."""
    return str(error).splitlines()[0][:300]


def parse_types(types: dict[str, str] | None) -> dict[str, pa.DataType]:
    """Return the Arrow types that these names stand for, such as string, int64 or float32."""
    if types is not None and not isinstance(types, Mapping):
        raise OptionTypeError(f"types is {types!r}; use a dict of types by column, such as {{'zip': 'string'}}")
    found = {}
    for name, alias in (types or {}).items():
        try:
            found[name] = pa.type_for_alias(alias)
        except (ValueError, AttributeError):  # the latter for what is no text
            raise ValueError(
                f"column {name!r} cannot have the type {alias!r}; use one such as string, int64, float32"
            ) from None
    return found
