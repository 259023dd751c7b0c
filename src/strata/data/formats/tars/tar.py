"""Tar archives as a stream of headers: where each member's bytes lie. Faster than ``tarfile``, and finds every cut."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 512
_ZEROS = bytes(BLOCK)
# A sum over the header counts the field of the sum itself as spaces.
_SPACES = 8 * ord(" ")
# Links, devices, directories and pipes: some writers give a link the size of what it leads to, and none has data.
_WITHOUT_DATA = b"123456"


class TarError(Exception):
    """A header that is none; ``offset`` is where it stands."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.offset = offset


class Member(NamedTuple):
    """One entry of the archive; ``header`` is where it begins, long names included, ``end`` where the next does.

    Links and directories are no files, and have no data. Of a sparse file only what is no hole is stored.
    """

    name: str
    header: int
    start: int
    size: int
    end: int
    is_file: bool
    is_sparse: bool = False

    def content(self, data: bytes | memoryview) -> bytes:
        """Return what the file holds; the data is that in which it was found."""
        if not self.is_sparse:
            return bytes(data[self.start : self.start + self.size])
        try:
            # Rare, and in four formats: tarfile knows them all.
            with tarfile.open(fileobj=io.BytesIO(bytes(data[self.header : self.end]) + 2 * _ZEROS)) as archive:
                file = archive.extractfile(archive.getmembers()[0])
                return b"" if file is None else file.read()
        except (tarfile.TarError, ValueError) as error:
            raise TarError(f"the holes of a sparse member cannot be read: {error}", self.header) from error


def walk_members(data: bytes | memoryview, start: int = 0) -> Iterator[Member]:
    """Yield the members that are whole in these bytes, which begin with a header."""
    position = begin = start
    long_name: str | None = None
    long_size: int | None = None
    is_sparse = False
    while position + BLOCK <= len(data):
        header = bytes(data[position : position + BLOCK])
        if header == _ZEROS:
            # The end of an archive; another may follow, as after `cat a.tar b.tar`.
            position = begin = position + BLOCK
            continue
        size = _check(header, position)
        kind = header[156:157]
        content = position + BLOCK
        if kind not in b"xgLK" and long_size is not None:
            size = long_size
        if kind in _WITHOUT_DATA:
            size = 0
        if kind == b"S":
            is_sparse = True
            content = _skip_holes(data, content, more=header[482] != 0)
        end = content + -(-size // BLOCK) * BLOCK
        if end > len(data):
            return
        if kind == b"L":
            long_name = bytes(data[content : content + size]).rstrip(b"\0").decode("utf-8", "backslashreplace")
        elif kind == b"x":
            extended = _parse_extended(bytes(data[content : content + size]), position)
            long_name = extended.get("GNU.sparse.name", extended.get("path", long_name))
            is_sparse = any(key.startswith("GNU.sparse.") for key in extended)
            long_size = _parse_long_size(extended["size"], position) if "size" in extended else long_size
        elif kind != b"g" and kind != b"K":
            yield Member(long_name or _name(header), begin, content, size, end, kind in b"0\0" + b"7S", is_sparse)
        position = end
        if kind not in b"xgLK":
            begin, long_name, long_size, is_sparse = end, None, None, False


def ends_well(tail: bytes) -> bool:
    """Whether the last bytes of an archive are its end and not where it was cut off."""
    return tail[-BLOCK:] == _ZEROS


def _skip_holes(data: bytes | memoryview, position: int, *, more: bool) -> int:
    """Return where the content of a sparse member begins, behind the blocks that continue its list of holes."""
    while more and position + BLOCK <= len(data):
        more = data[position + 504] != 0
        position += BLOCK
    # If the list itself goes on beyond these bytes, so does the member.
    return len(data) + 1 if more else position


def _check(header: bytes, offset: int) -> int:
    """Return the size in the header, if the header's sum is right."""
    try:
        stored = int(header[148:156].strip(b" \0") or b"0", 8)
        size = _parse_size(header[124:136])
    except ValueError:
        raise TarError("no header of a member begins here", offset) from None
    if sum(header) - sum(header[148:156]) + _SPACES != stored:
        raise TarError("the checksum of a member's header is wrong", offset)
    if size < 0:
        # The next member would begin before this one, and the walk would never end.
        raise TarError("the size of a member is below zero", offset)
    return size


def _parse_size(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b" \0") or b"0", 8)


def _parse_long_size(text: str, offset: int) -> int:
    """Parse a size that an extended header gives. No checksum covers it, so it may be anything."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise TarError(f"the size of a member is {text[:20]!r}", offset)
    return int(text)


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0]
    # Only POSIX archives have the second half of a name there; GNU keeps times in its place.
    if prefix and header[257:263] == b"ustar\0":
        name = prefix + b"/" + name
    return name.decode("utf-8", "backslashreplace")


def _parse_extended(data: bytes, offset: int) -> dict[str, str]:
    """Parse lines of "length key=value\\n", where the length counts all of the line."""
    found = {}
    position = 0
    while position < len(data):
        length, _, _ = data[position : position + 20].partition(b" ")
        if not length.isdigit() or int(length) < 5:
            raise TarError("an extended header cannot be read", offset)
        line = data[position : position + int(length)]
        key, _, value = line[len(length) + 1 : -1].partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "backslashreplace")
        position += int(length)
    return found
