"""Files of others: a journal is never begun in a database, or over a file, that something else keeps its data in."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_COLUMNS = {
    "entries": ["number", "at_s", "command", "digest"],
    "snapshots": ["number", "state", "digest"],
}


def find_stranger(path: Path) -> str | None:
    """Return what a file holds instead of a journal; None if it is one, is empty, or cannot be told now."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return None
    except OSError:
        return None
    shared = path.with_name(path.name + "-shm")
    is_shared = shared.exists()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as database:
            return _find_foreign_table(database)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOTADB:
            return "it is no database of SQLite, or its beginning is damaged"
        # Open elsewhere, or damaged: who opens it says so.
        return None
    finally:
        # Made by this look; the journal itself is used by one process and needs none.
        if not is_shared:
            shared.unlink(missing_ok=True)


def _find_foreign_table(database: sqlite3.Connection) -> str | None:
    tables = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    )
    for (name,) in tables.fetchall():
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')] if name in _COLUMNS else None
        if columns is None or columns != _COLUMNS[name]:
            return f"it is a database of another program, with a table {name!r}"
    return None
