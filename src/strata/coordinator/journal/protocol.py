"""What a journal does, and the one that lasts as long as its process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from strata.cluster.cluster import RULES
from strata.cluster.commands import Command
from strata.cluster.events import NOBODY


class Entry(NamedTuple):
    """A command that was carried out, when, with whose token from which address, and by which rules it was decided."""

    command: Command
    at_s: float
    by: tuple[str, str] = NOBODY
    data: bytes = b""
    """What is written of it, if that was made already."""
    rules: int = RULES


class Journal(Protocol):
    """Where commands are kept. Methods block: callers run them in a thread, one at a time."""

    @property
    def where(self) -> str:
        """The path or URL that names it in errors."""
        ...

    def load(self) -> tuple[bytes | None, list[Entry]]:
        """Return the last snapshot and the entries after it, or raise JournalDamagedError or JournalVersionError."""
        ...

    def append(self, entries: Sequence[Entry]) -> None:
        """Make entries durable, all or none; raise JournalUnavailableError if the disk does not take them."""
        ...

    def snapshot(self, state: bytes) -> None:
        """Let a snapshot stand for all entries until now, and forget them."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class MemoryJournal:
    """A journal that lasts as long as its process: for tests, and for trying things out."""

    where = "memory://"

    def __init__(self) -> None:
        self._state: bytes | None = None
        self._entries: list[Entry] = []

    def load(self) -> tuple[bytes | None, list[Entry]]:
        """Return what was kept."""
        return self._state, list(self._entries)

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep entries."""
        self._entries += entries

    def snapshot(self, state: bytes) -> None:
        """Keep a snapshot in place of the entries."""
        self._state, self._entries = state, []

    def close(self) -> None:
        """Nothing is held."""
