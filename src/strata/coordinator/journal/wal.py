"""SQLite's write-ahead log, read without SQLite: a damaged record told from a last write that did not get done.

SQLite ends its log at the first frame whose checksum is wrong, and says nothing. After a crash that is right for the
last transaction, which nobody was told of. It is wrong for one that others follow: each was on disk before the next was
begun, so there the log was damaged since.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER_BYTES = 32
_FRAME_BYTES = 24
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
_Sums = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One page in the log; ``is_commit`` if it ends a transaction."""

    is_valid: bool
    is_commit: bool


def find_damage(path: Path) -> str | None:
    """Return what is wrong with a log; None if SQLite leaves out nothing but the end of the last transaction."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    bad: int | None = None
    is_over = False
    for number, frame in enumerate(_frames(data), start=1):
        if bad is None:
            bad = None if frame.is_valid else number
        elif is_over and frame.is_valid:
            return f"frame {bad} of {path.name} has another checksum than its content, and later transactions follow it"
        elif frame.is_valid and frame.is_commit:
            is_over = True
    return None


def _frames(data: bytes) -> Iterator[Frame]:
    """Yield the frames that belong to the log's present round; those of older rounds have other salts."""
    if len(data) < _HEADER_BYTES:
        return
    magic, _, page_bytes, _, salt_1, salt_2, sum_1, sum_2 = struct.unpack(">8I", data[:_HEADER_BYTES])
    order = _MAGIC.get(magic)
    if order is None or not 512 <= page_bytes <= 65_536 or page_bytes & (page_bytes - 1):
        return  # the header itself is damaged: the count of entries tells whether anything is missing
    sums = _checksum((0, 0), data[:24], order)
    if sums != (sum_1, sum_2):
        return
    size = _FRAME_BYTES + page_bytes
    for at in range(_HEADER_BYTES, len(data) - size + 1, size):
        _, pages, frame_salt_1, frame_salt_2, *stored = struct.unpack(">6I", data[at : at + _FRAME_BYTES])
        reckoned = _checksum(sums, data[at : at + 8], order)
        reckoned = _checksum(reckoned, data[at + _FRAME_BYTES : at + size], order)
        # The next one goes on from what is stored here, so that it can be valid after one that is not.
        sums = stored[0], stored[1]
        is_valid = reckoned == sums and (frame_salt_1, frame_salt_2) == (salt_1, salt_2)
        if is_valid or (frame_salt_1, frame_salt_2) == (salt_1, salt_2):
            yield Frame(is_valid, bool(pages))
        else:
            yield Frame(is_valid=False, is_commit=False)


def _checksum(sums: _Sums, data: bytes, order: str) -> _Sums:
    """Return SQLite's checksum of words, in pairs, on top of another one."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second
