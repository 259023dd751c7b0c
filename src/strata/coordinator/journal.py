"""The journal: what the coordinator may have told anyone, on disk before it tells it.

Entries are commands in the order in which they were applied; a snapshot stands for all entries before it. SQLite in WAL
mode with full synchronisation makes a batch durable with one fsync. Each record carries a digest of its own: a damaged
end is cut, because nothing of it was ever told, and damage anywhere else refuses to be read.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import xxhash

from strata.cluster.commands import JobCommand
from strata.errors import JournalDamagedError, JournalUnavailableError
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb

log = logging.getLogger(__name__)

Entry = tuple[JobCommand, float]
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, at_s REAL, command BLOB, digest BLOB);
CREATE TABLE IF NOT EXISTS snapshots (number INTEGER PRIMARY KEY, state BLOB, digest BLOB);
"""
# SQLite's own codes for a disk that is full or does not answer; what was to be written then is not on it.
_UNAVAILABLE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


class Journal(Protocol):
    """Where commands are kept. Methods block: callers run them in a thread, one at a time."""

    def load(self) -> tuple[bytes | None, list[Entry]]:
        """Return the last snapshot and the entries after it, or raise JournalDamagedError."""
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


class SqliteJournal:
    """A journal in one SQLite file. Two coordinators cannot have the same one open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Used by one thread at a time, but not always the same.
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error

    def load(self) -> tuple[bytes | None, list[Entry]]:
        """Return the last snapshot and the entries after it; a damaged end is cut with a warning."""
        try:
            snapshot = self._database.execute("SELECT number, state, digest FROM snapshots").fetchone()
            rows = self._database.execute(
                "SELECT number, at_s, command, digest FROM entries ORDER BY number"
            ).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error
        first, state = 0, None
        if snapshot is not None:
            first, state, digest = snapshot
            if _digest(first, 0.0, state) != digest:
                raise JournalDamagedError(str(self._path), "its snapshot has another digest than it was written with")
        entries = []
        for place, (number, at_s, command, digest) in enumerate(rows):
            if number == first + place + 1 and _digest(number, at_s, command) == digest:
                entries.append((convert.command_from_message(pb.Command.FromString(command)), at_s))
            elif place == len(rows) - 1:
                log.warning(
                    "%s: entry %d is damaged and the last: it is cut, nobody was told of it", self._path, number
                )
                self._database.execute("DELETE FROM entries WHERE number = ?", (number,))
            else:
                raise JournalDamagedError(
                    str(self._path), f"entry {number} is missing, or damaged with others after it"
                )
        return state, entries

    def append(self, entries: Sequence[Entry]) -> None:
        """Make entries durable with one transaction."""
        try:
            with self._transaction():
                (last,) = self._database.execute(
                    "SELECT max(coalesce((SELECT max(number) FROM entries), 0), "
                    "coalesce((SELECT max(number) FROM snapshots), 0))"
                ).fetchone()
                rows = []
                for number, (command, at_s) in enumerate(entries, start=last + 1):
                    data = convert.command_to_message(command).SerializeToString(deterministic=True)
                    rows.append((number, at_s, data, _digest(number, at_s, data)))
                self._database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error

    def snapshot(self, state: bytes) -> None:
        """Replace snapshot and entries in one transaction."""
        try:
            with self._transaction():
                (last,) = self._database.execute(
                    "SELECT coalesce(max(number), (SELECT max(number) FROM snapshots), 0) FROM entries"
                ).fetchone()
                self._database.execute("DELETE FROM snapshots")
                self._database.execute(
                    "INSERT INTO snapshots VALUES (?, ?, ?)", (last, state, _digest(last, 0.0, state))
                )
                self._database.execute("DELETE FROM entries")
        except sqlite3.DatabaseError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Close the file; the next process can open it."""
        self._database.close()

    def _transaction(self) -> _Transaction:
        return _Transaction(self._database)

    def _translated(self, error: sqlite3.DatabaseError) -> JournalUnavailableError | JournalDamagedError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return JournalUnavailableError(str(self._path), "another coordinator has it open")
        if code in _UNAVAILABLE:
            return JournalUnavailableError(str(self._path), str(error))
        return JournalDamagedError(str(self._path), str(error))


class _Transaction:
    """BEGIN on entering; COMMIT on leaving normally, which is when the fsync happens; ROLLBACK otherwise."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._database.execute("COMMIT")
            except sqlite3.DatabaseError:
                self._roll_back()
                raise
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        # SQLite may have rolled back by itself, as it does when the disk is full.
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")


def open_journal(url: str) -> Journal:
    """Return the journal that a URL names: ``sqlite:///path`` or ``memory://``."""
    check_state(url)
    if url == "memory://":
        return MemoryJournal()
    path = Path(url.removeprefix("sqlite://"))
    try:
        return SqliteJournal(path)
    except OSError as error:
        raise JournalUnavailableError(str(path), error.strerror or str(error)) from error


def check_state(url: str) -> None:
    """Raise ValueError if a URL names no journal."""
    if url != "memory://" and (not url.startswith("sqlite:///") or url == "sqlite:///"):
        raise ValueError(f"state {url!r}; use sqlite:///path/to/file or memory://")


def _digest(number: int, at_s: float, data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(f"{number} {at_s!r} ".encode() + data)
