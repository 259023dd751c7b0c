"""Many addresses as one place with files: a list of paths, URLs and patterns, in the order in which they are given."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from strata.data.files.source import FileInfo, Source
from strata.errors import DatasetNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.data.files.cache import Cache
    from strata.data.files.random_access import ByteFile

# Addresses that are asked for at once, as each may be another server's.
THREADS = 16


class Part(NamedTuple):
    """One address: all files of a place, or of these the one or the directory of a name."""

    source: Source
    name: str | None

    def choose(self, files: Sequence[FileInfo]) -> Sequence[FileInfo]:
        """Return those of the place's files that are meant."""
        if self.name is None:
            return files
        return [info for info in files if info.path == self.name or info.path.startswith(f"{self.name}/")]


class ListedSource:
    """Several places, one after the other; a file's path begins with the number of its place.

    Each address must have files: one that is missing is an error, and never a smaller dataset.
    """

    def __init__(self, parts: Sequence[Part], addresses: Sequence[str]) -> None:
        self.url = f"{addresses[0]} and {len(addresses) - 1} more"
        self.selection = xxhash.xxh3_128_hexdigest("\0".join(addresses).encode())
        self._parts = list(parts)
        self._addresses = list(addresses)

    def list(self) -> Sequence[FileInfo]:
        """Return the files of all places, in the order of the places."""
        width = len(str(len(self._parts) - 1))
        places = {id(part.source): part.source for part in self._parts}
        with ThreadPoolExecutor(min(THREADS, len(places)), thread_name_prefix="strata-list") as executor:
            listed = dict(zip(places, executor.map(lambda source: source.list(), places.values()), strict=True))
        found = []
        for number, part in enumerate(self._parts):
            files = part.choose(listed[id(part.source)])
            if not files:
                hint = "check the address, or take it out of the list"
                raise DatasetNotFoundError(self._addresses[number], "there is no such file", hint=hint)
            found += [FileInfo(f"{number:0{width}}/{info.path}", info.size_bytes, info.version) for info in files]
        return found

    def name_of(self, path: str) -> str:
        """Return the path or URL of a file."""
        source, inner = self._find(path)
        return source.name_of(inner)

    def open(self, info: FileInfo, cache: Cache | None) -> ByteFile:
        """Open a file where it lies."""
        source, inner = self._find(info.path)
        return source.open(FileInfo(inner, info.size_bytes, info.version), cache)

    def needs_cache(self, info: FileInfo) -> bool:
        """Whether the place of this file gives no random access."""
        source, inner = self._find(info.path)
        return source.needs_cache(FileInfo(inner, info.size_bytes, info.version))

    def read_beside(self, name: str) -> bytes | None:
        """Nothing: there is no one place beside all of them, so the index is in the cache."""
        return None

    def write_beside(self, name: str, data: bytes) -> bool:
        """Never, as there is no one place."""
        return False

    def _find(self, path: str) -> tuple[Source, str]:
        number, _, inner = path.partition("/")
        return self._parts[int(number)].source, inner
