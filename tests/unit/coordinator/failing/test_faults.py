"""Every error that SQLite, the disk and etcd can give has a meaning, and one that nobody listed is fatal."""

from __future__ import annotations

import errno
import sqlite3

import grpc
import pytest

from strata.coordinator.failing.faults import Fault, judge_etcd, judge_os, judge_sqlite

SQLITE_CODES: dict[str, int] = {name: getattr(sqlite3, name) for name in dir(sqlite3) if name.startswith("SQLITE_")}
PASSING = {"SQLITE_FULL", "SQLITE_BUSY", "SQLITE_BUSY_RECOVERY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_TIMEOUT"}


def named(*beginnings: str) -> list[str]:
    return sorted(name for name in SQLITE_CODES if name.startswith(beginnings))


@pytest.mark.parametrize("name", named("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOMEM"))
def test_no_error_of_the_disk_is_taken_for_one_that_passes(name: str) -> None:
    assert judge_sqlite(SQLITE_CODES[name]) is Fault.FATAL


def test_only_a_full_disk_and_a_busy_file_pass_by_themselves() -> None:
    errors = named("SQLITE_FULL", "SQLITE_BUSY", "SQLITE_IOERR")
    assert {name for name in errors if judge_sqlite(SQLITE_CODES[name]) is Fault.TRANSIENT} == PASSING & set(errors)
    assert {code for code in range(-1, 4096) if judge_sqlite(code) is Fault.TRANSIENT} == {
        code for code in range(4096) if code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
    }


@pytest.mark.parametrize("name", named("SQLITE_CORRUPT", "SQLITE_NOTADB"))
def test_a_damaged_file_is_told_from_one_that_cannot_be_used(name: str) -> None:
    assert judge_sqlite(SQLITE_CODES[name]) is Fault.DAMAGED


def test_of_all_errnos_only_a_full_disk_passes_by_itself() -> None:
    passing = [code for code in (None, *errno.errorcode) if judge_os(code) is not Fault.FATAL]
    assert sorted(map(int, filter(None, passing))) == sorted({errno.ENOSPC, errno.EDQUOT})


REFUSED = {"RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "UNAUTHENTICATED"}
UNKNOWN = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED"}


@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: code.name)
def test_each_status_of_etcd_has_a_meaning(code: grpc.StatusCode) -> None:
    expected = Fault.FATAL
    if code.name in REFUSED:
        expected = Fault.TRANSIENT
    elif code.name in UNKNOWN:
        expected = Fault.UNKNOWN
    elif code is grpc.StatusCode.DATA_LOSS:
        expected = Fault.DAMAGED
    assert judge_etcd(code, "") is expected


@pytest.mark.parametrize(
    ("code", "words", "fault"),
    [
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", Fault.TRANSIENT),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", Fault.TRANSIENT),
        ("INVALID_ARGUMENT", "etcdserver: authentication failed, invalid user ID or password", Fault.TRANSIENT),
        ("FAILED_PRECONDITION", "etcdserver: authentication is not enabled", Fault.TRANSIENT),
        ("NOT_FOUND", "etcdserver: requested lease not found", Fault.TRANSIENT),
        ("FAILED_PRECONDITION", "etcdserver: rpc not supported for learner", Fault.UNKNOWN),
        ("FAILED_PRECONDITION", "etcdserver: not leader", Fault.UNKNOWN),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", Fault.FATAL),
    ],
)
def test_words_of_etcd_tell_apart_what_shares_a_status(code: str, words: str, fault: Fault) -> None:
    assert judge_etcd(grpc.StatusCode[code], words) is fault
