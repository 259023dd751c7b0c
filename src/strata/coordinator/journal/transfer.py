"""A journal in one file: the backup, and the way between SQLite and etcd.

Each line is JSON: a header with the version, the snapshot in pieces, each entry, and an end with the counts and a
digest of all lines before it. A file that was cut or changed is refused as a whole.
"""

from __future__ import annotations

import base64
import errno
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from google.protobuf.message import DecodeError

from strata.cluster import Cluster
from strata.coordinator.entry.private_files import make_private
from strata.coordinator.etcd.etcd_client import EtcdClient
from strata.coordinator.etcd.target import EtcdTarget, is_etcd, parse_target
from strata.coordinator.journal import open_journal
from strata.coordinator.journal.entries import decode_entry, encode_entry, replay
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal
from strata.coordinator.journal.protocol import Entry, Journal
from strata.errors import (
    DamagedRecordError,
    JournalDamagedError,
    JournalNotEmptyError,
    JournalVersionError,
    UnusableJournalError,
)
from strata.wire._generated import journal_pb2 as jp

FORMAT = "strata-journal"
VERSION = 1
# One version older is read too.
READABLE = (VERSION - 1, VERSION)
PIECE_BYTES = 1 << 20
# So many entries are imported in one write.
BATCH_ENTRIES = 1_000
# An import is done by a leader of its own, so that no coordinator writes meanwhile.
IMPORT_LEASE_S = 120


@dataclass(frozen=True)
class Content:
    """What a journal holds."""

    state: bytes | None
    entries: list[Entry]

    def check(self, where: str) -> list[str]:
        """Replay all of it, as a coordinator does, and return the jobs; raise JournalDamagedError if it cannot be."""
        cluster = Cluster()
        try:
            if self.state is not None:
                cluster.restore(self.state, where=where)
            replay(cluster, self.entries)
        except (DamagedRecordError, ValueError, KeyError) as error:
            raise JournalDamagedError(where, f"it cannot be replayed: {error}") from error
        return cluster.jobs()


def export_journal(url: str, path: Path) -> Content:
    """Write a journal to a file that is there in full or not at all; one of that name is replaced."""
    content = load_journal(url)
    content.check(url)
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # It holds what the journal does, the hashes of tokens too.
        make_private(partial)
        try:
            _write_file(partial, url, content)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UnusableJournalError(str(path), error.strerror or str(error)) from error
    return content


def _write_file(path: Path, url: str, content: Content) -> None:
    with path.open("wb") as file:
        hasher = xxhash.xxh3_128()
        for line in _lines(url, content):
            hasher.update(line)
            file.write(line)
        end = {"end": {"entries": len(content.entries), "digest": hasher.hexdigest()}}
        file.write(_encode(end))
        file.flush()
        os.fsync(file.fileno())


def import_journal(path: Path, url: str) -> Content:
    """Write what a file holds into a journal; raise JournalNotEmptyError if that holds anything."""
    content = read_file(path)
    content.check(str(path))
    if is_etcd(url):
        _import_to_etcd(content, url)
        return content
    if not url.startswith("sqlite:///"):
        raise ValueError(f"{url!r} keeps nothing; use sqlite:///path/to/file or etcd://host:2379/prefix")
    journal = open_journal(url)
    try:
        _check_empty(journal, url)
        _write(journal, content)
    finally:
        journal.close()
    return content


def load_journal(url: str) -> Content:
    """Return what a journal holds; one in SQLite must not be open elsewhere, one in etcd may be led meanwhile."""
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite://")).exists():
        raise UnusableJournalError(url, "there is no such file")
    journal = open_journal(url)
    try:
        return Content(*journal.load())
    finally:
        journal.close()


def read_file(path: Path) -> Content:
    """Return what a file holds, or raise UnusableJournalError."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UnusableJournalError(str(path), error.strerror or str(error)) from error
    try:
        records = [json.loads(line) for line in lines]
        header, end = records[0], records[-1]["end"]
        if header["format"] != FORMAT:
            raise UnusableJournalError(str(path), f"it is {header['format']}, and not {FORMAT}")
        if header["version"] not in READABLE:
            found, known = f"an export of version {header['version']}", f"versions {READABLE[0]} and {READABLE[-1]}"
            raise JournalVersionError(str(path), found=found, known=known)
        digest = xxhash.xxh3_128_hexdigest(b"".join(lines[:-1]))
        if end["digest"] != digest:
            raise UnusableJournalError(str(path), "it is damaged: its digest is another one than it was written with")
        entries = [_decode_entry(record["entry"], where=str(path)) for record in records[1:-1] if "entry" in record]
        if end["entries"] != len(entries):
            raise UnusableJournalError(str(path), "it is damaged: it has another number of entries than its end says")
        pieces = [_decode(record["snapshot"]) for record in records[1:-1] if "snapshot" in record]
        return Content(b"".join(pieces) if header["has_snapshot"] else None, entries)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError, DecodeError) as error:
        raise UnusableJournalError(str(path), "it is damaged, or no export: its end or more is missing") from error


def _lines(url: str, content: Content) -> Iterator[bytes]:
    yield _encode(
        {
            "format": FORMAT,
            "version": VERSION,
            "source": url.partition("://")[0],
            "has_snapshot": content.state is not None,
        }
    )
    state = content.state or b""
    for at in range(0, len(state), PIECE_BYTES):
        yield _encode({"snapshot": base64.b64encode(state[at : at + PIECE_BYTES]).decode()})
    for entry in content.entries:
        yield _encode({"entry": {"at_s": entry.at_s, "command": base64.b64encode(encode_entry(entry)).decode()}})


def _encode(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _decode_entry(record: dict[str, Any], *, where: str) -> Entry:
    at_s = float(record["at_s"])
    if not math.isfinite(at_s):
        raise ValueError(f"a time is {at_s}")
    return decode_entry(_decode(record["command"]), at_s, where=where)


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _check_empty(journal: Journal, url: str) -> None:
    state, entries = journal.load()
    if state is not None or entries:
        raise JournalNotEmptyError(url)


def _write(journal: Journal, content: Content) -> None:
    if content.state is not None:
        journal.snapshot(content.state)
    for at in range(0, len(content.entries), BATCH_ENTRIES):
        journal.append(content.entries[at : at + BATCH_ENTRIES])


def _import_to_etcd(content: Content, url: str) -> None:
    target: EtcdTarget = parse_target(url, os.environ)
    client, journal = EtcdClient(target), EtcdJournal(target)
    try:
        _check_empty(journal, url)
        lease = client.insist(lambda: client.grant_lease(IMPORT_LEASE_S), give_up_s=10.0).ID
        try:
            term = client.insist(lambda: journal.stand(jp.Replica(), lease=lease), give_up_s=10.0)
            if term is None:
                raise JournalNotEmptyError(url)
            journal.begin_term(term)
            # Again: between the first look and the election someone may have led.
            _check_empty(journal, url)
            _write(journal, content)
            journal.resign()
        finally:
            client.insist(lambda: client.revoke_lease(lease), give_up_s=10.0)
    finally:
        journal.close()
        client.close()
