"""What an error of a journal means for its coordinator: one table for SQLite, the disk and etcd. Pure.

Only what is known to pass by itself, with nothing written, is transient: then durable commands are refused and the
journal is asked again. Whatever stands in no table is fatal. So is a failed fsync: the system may have dropped the
pages, and a second one would succeed without them.
"""

from __future__ import annotations

import errno
import sqlite3
from enum import Enum

import grpc


class Fault(Enum):
    """What an error means."""

    TRANSIENT = "transient"
    """Nothing was written, and the journal may take the same write later: refuse durable commands and ask again."""
    UNKNOWN = "unknown"
    """The write may have been carried out: send the same one again until its outcome is known."""
    DAMAGED = "damaged"
    """The content is not what was written: end, and let someone restore it."""
    FATAL = "fatal"
    """It is unknown what the journal holds: end the process, and read the journal again at the next start."""


# By primary result code, which an extended one has in its last byte.
_SQLITE = {
    sqlite3.SQLITE_FULL: Fault.TRANSIENT,
    # Another program reads or copies the file for a moment.
    sqlite3.SQLITE_BUSY: Fault.TRANSIENT,
    sqlite3.SQLITE_CORRUPT: Fault.DAMAGED,
    sqlite3.SQLITE_NOTADB: Fault.DAMAGED,
}
# The disk, or the quota of a user on it, is full.
_OS = {errno.ENOSPC: Fault.TRANSIENT, errno.EDQUOT: Fault.TRANSIENT}
_ETCD = {
    # etcd is out of space, or has too many requests waiting.
    grpc.StatusCode.RESOURCE_EXHAUSTED: Fault.TRANSIENT,
    # Users and roles are changed while coordinators run.
    grpc.StatusCode.PERMISSION_DENIED: Fault.TRANSIENT,
    grpc.StatusCode.UNAUTHENTICATED: Fault.TRANSIENT,
    # No member that was asked has a leader, or the answer was lost on its way.
    grpc.StatusCode.UNAVAILABLE: Fault.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED: Fault.UNKNOWN,
    grpc.StatusCode.CANCELLED: Fault.UNKNOWN,
    grpc.StatusCode.UNKNOWN: Fault.UNKNOWN,
    grpc.StatusCode.INTERNAL: Fault.UNKNOWN,
    grpc.StatusCode.ABORTED: Fault.UNKNOWN,
    grpc.StatusCode.DATA_LOSS: Fault.DAMAGED,
}
# Words of etcd that mean something else than their code: of users that someone changes, of a lease that ended as it was
# used, and of a member that cannot answer yet.
_ETCD_WORDS = {
    "auth store is old": Fault.TRANSIENT,
    "user name is empty": Fault.TRANSIENT,
    "authentication failed": Fault.TRANSIENT,
    "authentication is not enabled": Fault.TRANSIENT,
    "requested lease not found": Fault.TRANSIENT,
    "learner": Fault.UNKNOWN,
    "not leader": Fault.UNKNOWN,
}


def judge_sqlite(code: int) -> Fault:
    """Return what SQLite's (extended) result code means."""
    return _SQLITE.get(code & 0xFF, Fault.FATAL)


def judge_os(code: int | None) -> Fault:
    """Return what the errno of a write means."""
    return Fault.FATAL if code is None else _OS.get(code, Fault.FATAL)


def judge_etcd(code: grpc.StatusCode, words: str) -> Fault:
    """Return what the status of a call to etcd means; its words tell apart what shares a code."""
    for each, fault in _ETCD_WORDS.items():
        if each in words:
            return fault
    return _ETCD.get(code, Fault.FATAL)
