"""The journal: every decision of the coordinator, made durable before any client learns of it.

Entries are commands in the order in which they were applied; a snapshot stands for all entries before it. It only
keeps: nothing here decides.
"""

from __future__ import annotations

import os
from pathlib import Path

from strata.coordinator.etcd.target import check_url, is_etcd, parse_target
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal
from strata.coordinator.journal.protocol import Entry, Journal, MemoryJournal
from strata.coordinator.journal.sqlite import SqliteJournal
from strata.errors import JournalUnavailableError

__all__ = ["Entry", "Journal", "MemoryJournal", "SqliteJournal", "check_state", "journal_path", "open_journal"]


def open_journal(url: str, *, accept_loss: bool = False) -> Journal:
    """Return the journal that a URL names: ``sqlite:///path``, ``etcd://hosts/prefix`` or ``memory://``.

    The one in etcd can be read; whoever is to write must lead.
    """
    check_state(url)
    if is_etcd(url):
        return EtcdJournal(parse_target(url, os.environ))
    if url == "memory://":
        return MemoryJournal()
    path = Path(url.removeprefix("sqlite://"))
    try:
        return SqliteJournal(path, accept_loss=accept_loss)
    except OSError as error:
        problem, hint = error.strerror or str(error), "check the path and its permissions"
        raise JournalUnavailableError(str(path), problem, failure="cannot be opened", hint=hint) from error


def journal_path(url: str) -> Path | None:
    """Return the file of a journal, beside which other files of the coordinator may lie; None if it has none."""
    return Path(url.removeprefix("sqlite://")) if url.startswith("sqlite:///") else None


def check_state(url: str) -> None:
    """Raise ValueError if a URL names no journal."""
    if is_etcd(url):
        check_url(url)
    elif url != "memory://" and (not url.startswith("sqlite:///") or url == "sqlite:///"):
        # What stands before an @ may be a secret.
        shown = f"...@{url.rpartition('@')[2]}" if "@" in url else url
        raise ValueError(f"state {shown!r}; use sqlite:///path/to/file, etcd://host:2379/prefix or memory://")
