"""Tar archives as a stream of headers: where each member's bytes lie. Faster than ``tarfile``, and finds every cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 512
_ZEROS = bytes(BLOCK)
# A sum over the header counts the field of the sum itself as spaces.
_SPACES = 8 * ord(" ")


class TarError(Exception):
    """A header that is none; ``offset`` is where it stands."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.offset = offset


class Member(NamedTuple):
    """One file of the archive; ``header`` is where it begins, long names included, ``end`` where the next does."""

    name: str
    header: int
    start: int
    size: int
    end: int


def walk_members(data: bytes | memoryview, start: int = 0) -> Iterator[Member]:
    """Yield the members that are whole in these bytes, which begin with a header."""
    position = begin = start
    long_name: str | None = None
    long_size: int | None = None
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
        end = content + -(-size // BLOCK) * BLOCK
        if end > len(data):
            return
        if kind == b"L":
            long_name = bytes(data[content : content + size]).rstrip(b"\0").decode("utf-8", "backslashreplace")
        elif kind == b"x":
            extended = _parse_extended(bytes(data[content : content + size]), position)
            long_name = extended.get("path", long_name)
            long_size = int(extended["size"]) if "size" in extended else long_size
        elif kind in b"0\0":
            yield Member(long_name or _name(header), begin, content, size, end)
        position = end
        if kind not in b"xgLK":
            begin, long_name, long_size = end, None, None


def ends_well(tail: bytes) -> bool:
    """Whether the last bytes of an archive are its end and not where it was cut off."""
    return tail[-BLOCK:] == _ZEROS


def _check(header: bytes, offset: int) -> int:
    """Return the size in the header, if the header's sum is right."""
    try:
        stored = int(header[148:156].strip(b" \0") or b"0", 8)
        size = _parse_size(header[124:136])
    except ValueError:
        raise TarError("no header of a member begins here", offset) from None
    if sum(header) - sum(header[148:156]) + _SPACES != stored:
        raise TarError("the checksum of a member's header is wrong", offset)
    return size


def _parse_size(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b" \0") or b"0", 8)


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
