"""A journal in one SQLite file.

SQLite in WAL mode with full synchronisation makes a batch durable with one fsync. Each record carries a digest of its
own, and a mark beside the file says how many entries anyone was told of: an end that nobody was told of is cut, and a
journal that lacks more refuses to be opened.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import xxhash

from strata.coordinator.entry.private_files import make_private, make_private_folder
from strata.coordinator.failing.faults import Fault, judge_sqlite
from strata.coordinator.journal.entries import decode_entry, encode_entry
from strata.coordinator.journal.foreign_files import find_stranger
from strata.coordinator.journal.mark import JournalMark
from strata.coordinator.journal.protocol import Entry
from strata.coordinator.journal.wal import find_damage
from strata.errors import (
    JournalBrokenError,
    JournalDamagedError,
    JournalUnavailableError,
    JournalVersionError,
    UnusableJournalError,
)

log = logging.getLogger(__name__)

# The version of the tables, which SQLite keeps in the file; 0 was not written down.
FORMAT = 1
_Row = tuple[Any, ...]
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, at_s REAL, command BLOB, digest BLOB);
CREATE TABLE IF NOT EXISTS snapshots (number INTEGER PRIMARY KEY, state BLOB, digest BLOB);
"""
_LAST_NUMBER = """
SELECT max(coalesce((SELECT max(number) FROM entries), 0), coalesce((SELECT max(number) FROM snapshots), 0))
"""
_Failure = JournalUnavailableError | JournalDamagedError | JournalBrokenError


class SqliteJournal:
    """A journal in one SQLite file. Two coordinators cannot have the same one open.

    It is opened only if every entry that anyone was told of is in it. With ``accept_loss``, what is readable up to the
    first damage is kept, and the damaged files are put aside.
    """

    def __init__(self, path: Path, *, accept_loss: bool = False) -> None:
        self._path = path
        self._mark = JournalMark(path)
        self._accepts_loss = accept_loss
        self._is_put_aside = False
        self._is_mark_failing = False
        # A damaged journal has a mark beside it, and is told from a file that never was one.
        if (stranger := find_stranger(path)) is not None and self._mark.read() is None:
            raise UnusableJournalError(str(path), f"{stranger}; name another file")
        make_private_folder(path.parent)
        self._check()
        self._open()

    def _open(self) -> None:
        # SQLite gives its other files the mode of this one.
        make_private(self._path)
        try:
            # Used by one thread at a time, but not always the same.
            self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
            self._prepare()
        except sqlite3.Error as error:
            raise self._translate_opening(error) from error
        self._identities = {file: _identity(file) for file in (self._path, self._log_path)}

    def _prepare(self) -> None:
        """Take the file for this process alone, and create its tables; close it if that fails."""
        try:
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_SCHEMA)
            self._database.execute(f"PRAGMA user_version={FORMAT}")
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("COMMIT")
        except sqlite3.Error:
            self._database.close()
            raise

    def load(self) -> tuple[bytes | None, list[Entry]]:
        """Return the last snapshot and the entries after it; an end that nobody was told of is cut with a warning."""
        snapshot, rows = self._read()
        first, state = 0, None
        if snapshot is not None:
            first, state, digest = snapshot
            if _digest(first, 0.0, state) != digest:
                self._accept_loss("its snapshot has another digest than it was written with")
                first, state, rows = 0, None, []
                self._database.execute("DELETE FROM snapshots")
                self._database.execute("DELETE FROM entries")
        told = self._mark.read() or 0
        entries = []
        for place, (number, at_s, command, digest) in enumerate(rows):
            if number == first + place + 1 and _digest(number, at_s, command) == digest:
                entries.append(decode_entry(command, at_s, where=self.where))
                continue
            if place < len(rows) - 1:
                self._accept_loss(f"entry {number} is missing, or damaged with others after it")
            elif number <= told:
                self._accept_loss(f"entry {number} is missing or damaged")
            else:
                log.warning(
                    "%s: the last entry, %d, is damaged and was never acknowledged; it is removed", self._path, number
                )
            self._database.execute("DELETE FROM entries WHERE number >= ?", (number,))
            break
        if first + len(entries) < told:
            self._accept_loss(f"{told} entries were acknowledged, and only {first + len(entries)} are there")
        if self._accepts_loss or self._mark.read() is None:
            self._write_mark(first + len(entries))
        return state, entries

    def _read(self) -> tuple[_Row | None, list[_Row]]:
        """Return the rows of the snapshot and of all entries; of a file with a bad page, those before it."""
        snapshot: _Row | None = None
        rows: list[_Row] = []
        try:
            snapshot = self._database.execute("SELECT number, state, digest FROM snapshots").fetchone()
            rows.extend(self._database.execute("SELECT number, at_s, command, digest FROM entries ORDER BY number"))
        except sqlite3.Error as error:
            translated = self._translated(error)
            if not self._accepts_loss or not isinstance(translated, JournalDamagedError):
                raise translated from error
            self._accept_loss(str(error))
            self._rewrite(snapshot, rows)
        return snapshot, rows

    def _rewrite(self, snapshot: _Row | None, rows: list[_Row]) -> None:
        """Replace the file, because one with a bad page cannot be written to."""
        self._database.close()
        for file in (self._path, self._log_path):
            file.unlink(missing_ok=True)
        self._open()
        try:
            with self._transaction():
                self._database.executemany("INSERT INTO snapshots VALUES (?, ?, ?)", [snapshot] if snapshot else [])
                self._database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def append(self, entries: Sequence[Entry]) -> None:
        """Make entries durable with one transaction."""
        self._check_files()
        try:
            with self._transaction():
                (last,) = self._database.execute(_LAST_NUMBER).fetchone()
                rows = []
                for number, entry in enumerate(entries, start=last + 1):
                    data = encode_entry(entry)
                    rows.append((number, entry.at_s, data, _digest(number, entry.at_s, data)))
                self._database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise self._translated(error) from error
        self._write_mark(last + len(entries))
        # Again: nobody may be told of what went into a file that is gone.
        self._check_files()

    def snapshot(self, state: bytes) -> None:
        """Replace snapshot and entries in one transaction."""
        self._check_files()
        try:
            with self._transaction():
                (last,) = self._database.execute(_LAST_NUMBER).fetchone()
                self._database.execute("DELETE FROM snapshots")
                self._database.execute(
                    "INSERT INTO snapshots VALUES (?, ?, ?)", (last, state, _digest(last, 0.0, state))
                )
                self._database.execute("DELETE FROM entries")
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Close the file; the next process can open it."""
        self._database.close()
        self._mark.close()

    @property
    def where(self) -> str:
        """Its path."""
        return str(self._path)

    @property
    def _log_path(self) -> Path:
        return self._path.with_name(self._path.name + "-wal")

    def _check_version(self) -> None:
        """Refuse a file whose tables may mean something else, before anything is looked for in them."""
        if not self._path.exists():
            return
        version = 0
        # A file that cannot be read is found to be damaged next, with what to do about it.
        with suppress(sqlite3.Error), closing(_open_to_read(self._path)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            self._remove_shm()
        if version > FORMAT:
            found = f"tables of version {version}"
            raise JournalVersionError(self.where, found=found, known=f"versions 0 to {FORMAT}")

    def _check(self) -> None:
        """Refuse a journal that lacks what anyone was told of, before SQLite can overwrite the traces of it."""
        problem = find_damage(self._log_path)
        if problem is None:
            self._check_version()
            problem = self._find_loss()
        if problem is not None:
            self._tolerate(problem)
            self._put_aside()

    def _find_loss(self) -> str | None:
        told = self._mark.read()
        if told is None:
            return None
        if not self._path.exists():
            return f"the file is gone, and {told} entries were acknowledged" if told else None
        there = 0
        try:
            with closing(_open_to_read(self._path)) as database:
                if database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'entries'").fetchone()[0]:
                    (there,) = database.execute(_LAST_NUMBER).fetchone()
        except sqlite3.Error as error:
            translated = self._translate_opening(error)
            if not isinstance(translated, JournalDamagedError):
                raise translated from error
            return str(error)
        self._remove_shm()
        return f"{told} entries were acknowledged, and only {there} are there" if there < told else None

    def _remove_shm(self) -> None:
        """Remove what a look into the log made; the journal itself is used by one process and needs none."""
        self._path.with_name(self._path.name + "-shm").unlink(missing_ok=True)

    def _tolerate(self, problem: str) -> None:
        if not self._accepts_loss:
            raise JournalDamagedError(str(self._path), problem)
        log.warning("%s: %s; the loss is accepted, and the entries before the damage are kept", self._path, problem)

    def _accept_loss(self, problem: str) -> None:
        """Tolerate damage that is found while the file is open, once there is a copy of what is about to be deleted."""
        self._tolerate(problem)
        if self._is_put_aside:
            return
        kept = _name_copy(self._path)
        try:
            make_private(kept)
            # By SQLite: closing another descriptor of the file would end this process's locks on it.
            with closing(sqlite3.connect(kept)) as copy:
                self._database.backup(copy)
        except (OSError, sqlite3.Error) as error:
            raise JournalUnavailableError(
                str(self._path),
                f"its damaged content cannot be copied to {kept}: {error}",
                failure="cannot be repaired",
                hint="check that file and the space on its disk",
            ) from error
        self._is_put_aside = True
        log.warning("the damaged %s is kept as %s", self._path, kept)

    def _put_aside(self) -> None:
        """Copy the damaged files, so that more of them can be recovered by hand."""
        self._is_put_aside = True
        for file in (self._path, self._log_path):
            if file.exists():
                kept = _name_copy(file)
                make_private(kept)
                shutil.copyfile(file, kept)
                log.warning("the damaged %s is kept as %s", file, kept)
        try:
            with closing(sqlite3.connect(self._path, timeout=0)) as database:
                database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            for file in (self._path, self._log_path):
                file.unlink(missing_ok=True)

    def _check_files(self) -> None:
        """Refuse to write into files that are not where they were: the next process would not find them."""
        for file, identity in self._identities.items():
            if _identity(file) != identity:
                problem = f"{file} was removed or replaced while the coordinator ran"
                raise JournalBrokenError(str(self._path), problem, hint="put it back, and start the coordinator again")

    def _write_mark(self, number: int) -> None:
        try:
            self._mark.write(number)
        except OSError as error:
            # The entries are durable all the same; without a mark a later loss of the last ones may go unnoticed.
            if not self._is_mark_failing:
                log.warning("%s cannot be written: %s", self._mark.path, error)
            self._is_mark_failing = True
        else:
            self._is_mark_failing = False

    def _transaction(self) -> _Transaction:
        return _Transaction(self._database)

    def _translate_opening(self, error: sqlite3.Error) -> _Failure:
        if _code_of(error) & 0xFF == sqlite3.SQLITE_BUSY:
            return JournalUnavailableError(
                str(self._path),
                "another coordinator has it open",
                failure="cannot be opened",
                hint="stop that one first, or use another file",
            )
        return self._translated(error)

    def _translated(self, error: sqlite3.Error) -> _Failure:
        fault = judge_sqlite(_code_of(error))
        if fault is Fault.TRANSIENT:
            return JournalUnavailableError(str(self._path), str(error))
        if fault is Fault.DAMAGED:
            return JournalDamagedError(str(self._path), str(error))
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return JournalBrokenError(str(self._path), f"{error} ({name})")


def _open_to_read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)


def _code_of(error: sqlite3.Error) -> int:
    """Return SQLite's extended result code; 0 if Python's module refused by itself."""
    return getattr(error, "sqlite_errorcode", 0)


def _name_copy(file: Path) -> Path:
    """Return a free name for the copy of a damaged file: an earlier copy may have what the file has lost since."""
    suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (file.with_name(f"{file.name}.damaged{suffix}") for suffix in suffixes)
    return next(name for name in names if not name.exists())


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
            except sqlite3.Error:
                self._roll_back()
                raise
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        # SQLite may have rolled back by itself, as it does when the disk is full.
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")


def _digest(number: int, at_s: float, data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(f"{number} {at_s!r} ".encode() + data)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
