"""Entries as bytes: what this version adds, the one before passes over, and a client cannot claim.

And journals that cannot be written or read: what is said of them, and that what they held stays.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.cluster import RULES
from strata.cluster.events import NOBODY
from strata.coordinator.frames import read_command
from strata.coordinator.journal import Entry
from strata.coordinator.journal.entries import decode_entry, encode_entry, replay
from strata.coordinator.journal.etcd.log_reader import LogReader
from strata.coordinator.journal.etcd.records import FORMAT, Keys, cut, decode_batch, decode_head, encode_batch
from strata.coordinator.journal.etcd.transactions import Meta, Outcome, judge
from strata.coordinator.journal.sqlite import SqliteJournal
from strata.errors import (
    CommitRefusedError,
    JournalBrokenError,
    JournalDamagedError,
    JournalUnavailableError,
    JournalVersionError,
)
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import etcd_pb2 as ep
from strata.wire._generated import journal_pb2 as jp

COMMAND = c.ConfigureJob(job_id="llm", min_workers=2)
WHO = ("launcher", "10.0.0.5")


def test_who_caused_an_entry_is_read_as_it_was_written() -> None:
    entry = Entry(COMMAND, 1.5, WHO)
    assert decode_entry(encode_entry(entry), 1.5, where="j") == entry


def test_an_entry_of_the_version_before_has_nobody_and_was_decided_by_the_first_rules() -> None:
    old = convert.command_to_message(COMMAND).SerializeToString(deterministic=True)
    assert decode_entry(old, 1.5, where="j") == Entry(COMMAND, 1.5, NOBODY, rules=0)
    # And it is written again as that version wrote it, when the journal moves.
    assert encode_entry(decode_entry(old, 1.5, where="j")) == old


def test_an_entry_is_replayed_by_the_rules_that_it_was_decided_by() -> None:
    """A confirmation of what nobody had reported was accepted once, and is refused by now."""
    sender = {"job_id": "llm", "worker_id": "w", "incarnation": "1"}
    entries = [
        Entry(c.RegisterWorker(**sender), 1.0, rules=0),
        Entry(c.ConfirmCommit(**sender, step=5, epoch=0, generation=1, manifest="m", cursors="[]"), 2.0, rules=0),
    ]
    cluster = Cluster()
    replay(cluster, [decode_entry(encode_entry(entry), entry.at_s, where="j") for entry in entries])
    assert sorted(cluster.job("llm").commits.committed) == [5]
    with pytest.raises(CommitRefusedError):
        replay(cluster, [entries[1]._replace(command=replace(entries[1].command, step=6), rules=RULES)])


def test_an_entry_of_newer_rules_is_not_guessed_at() -> None:
    newer = encode_entry(Entry(COMMAND, 1.5, rules=RULES + 1))
    with pytest.raises(JournalVersionError, match=f"the journal j was .* decided by rules {RULES + 1}"):
        decode_entry(newer, 1.5, where="j")


def test_the_version_before_finds_the_command_in_a_new_entry() -> None:
    assert convert.command_from_message(pb.Command.FromString(encode_entry(Entry(COMMAND, 1.5, WHO)))) == COMMAND


def test_a_name_in_a_frame_says_nothing() -> None:
    claimed = convert.command_to_message(COMMAND)
    claimed.by, claimed.address = "admin", "127.0.0.1"
    assert read_command(claimed) == COMMAND


def test_replayed_events_say_who_caused_them_and_those_after_them_do_not() -> None:
    cluster = Cluster()
    replay(cluster, [Entry(COMMAND, 1.0, WHO), Entry(c.RegisterWorker(worker_id="w", incarnation="1"), 2.0)])
    assert [(event.by, event.address) for event in cluster.events.since(0)[1]] == [WHO, NOBODY]
    cluster.apply(COMMAND, 3.0)
    assert cluster.events.since(0)[1][-1].by == ""


def test_a_snapshot_for_which_there_is_no_space_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append([Entry(COMMAND, 1.0)])
    (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
    journal._database.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalUnavailableError, match="full"):
        journal.snapshot(bytes(1 << 20))
    assert journal.load() == (None, [Entry(COMMAND, 1.0)])
    journal._database.execute("PRAGMA max_page_count=100000")
    journal.snapshot(b"state")
    assert journal.load() == (b"state", [])
    journal.close()


def test_a_snapshot_that_fails_half_way_leaves_the_one_before(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.snapshot(b"first")
    journal.append([Entry(COMMAND, 1.0)])

    def forbid(action: int, table: str | None, *_: str | None) -> int:
        is_new = action == sqlite3.SQLITE_INSERT and table == "snapshots"
        return sqlite3.SQLITE_DENY if is_new else sqlite3.SQLITE_OK

    journal._database.set_authorizer(forbid)
    with pytest.raises(JournalBrokenError, match=r"prohibited|not authorized"):
        journal.snapshot(b"second")
    journal._database.set_authorizer(None)
    assert journal.load() == (b"first", [Entry(COMMAND, 1.0)])
    journal.append([Entry(COMMAND, 2.0)])
    journal.close()


def test_a_journal_that_another_coordinator_has_open_is_not_opened(tmp_path: Path) -> None:
    first = SqliteJournal(tmp_path / "journal.db")
    with pytest.raises(JournalUnavailableError, match="another coordinator has it open"):
        SqliteJournal(tmp_path / "journal.db")
    first.append([Entry(COMMAND, 1.0)])
    first.close()


def test_entries_are_durable_though_their_mark_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = SqliteJournal(tmp_path / "journal.db")
    monkeypatch.setattr(journal._mark, "write", refuse)
    journal.append([Entry(COMMAND, 1.0)])
    assert "cannot be written: [Errno 28]" in caplog.text
    assert journal.load()[1] == [Entry(COMMAND, 1.0)]
    journal.close()


KEYS = Keys(b"/strata/")


def test_a_head_of_a_newer_version_or_of_none_is_damage() -> None:
    with pytest.raises(JournalDamagedError, match="its head cannot be read"):
        decode_head(b"\xff", where="etcd")
    with pytest.raises(JournalVersionError, match=r"a format of version 99.*Use the version of Strata that wrote it"):
        decode_head(jp.Head(version=99).SerializeToString(), where="etcd")
    assert decode_head(jp.Head(version=FORMAT, last=3).SerializeToString(), where="etcd").last == 3


def test_a_batch_that_cannot_be_read_is_damage() -> None:
    with pytest.raises(JournalDamagedError, match="a batch cannot be read"):
        decode_batch(b"\xff", where="etcd")
    with pytest.raises(JournalDamagedError, match="a batch cannot be read"):
        decode_batch(jp.Batch(first=1, entries=[jp.Entry(command=b"\xff")]).SerializeToString(), where="etcd")


def test_a_batch_that_reaches_beyond_its_head_is_damage_and_is_not_told() -> None:
    reader = LogReader(KEYS, applied=0, where="etcd")
    (piece,) = cut(encode_batch(1, [Entry(COMMAND, 1.0), Entry(COMMAND, 2.0)]))
    reader.note(KEYS.batch(1, 0), piece)
    reader.note(KEYS.head, jp.Head(version=FORMAT, last=1).SerializeToString())
    with pytest.raises(JournalDamagedError, match="the batch of entry 1 does not fit to its head"):
        reader.take()
    assert reader.applied == 0


@pytest.mark.parametrize(
    ("found", "fence", "outcome"),
    [
        (jp.Head(term=2, sequence=5), 0, Outcome.WRITTEN),
        (jp.Head(term=2, sequence=4), 7, None),
        (jp.Head(term=2, sequence=4), 0, Outcome.DEPOSED),
        (None, 0, Outcome.GONE),
        (jp.Head(term=1, sequence=9), 0, Outcome.GONE),
        (jp.Head(term=3, starts=[jp.TermStart(term=3, last=10)]), 0, Outcome.WRITTEN),
        (jp.Head(term=3, starts=[jp.TermStart(term=3, last=9)]), 0, Outcome.DEPOSED),
        (jp.Head(term=3), 0, Outcome.LOST),
        (jp.Head(term=4, starts=[jp.TermStart(term=4, last=10)]), 0, Outcome.LOST),
    ],
    ids=["same", "still leads", "deposed", "gone", "put back", "next has it", "next has it not", "no starts", "later"],
)
def test_a_write_that_was_refused_is_judged_by_the_head_that_is_there(
    found: jp.Head | None, fence: int, outcome: Outcome | None
) -> None:
    wanted = jp.Head(term=2, sequence=5, last=10)
    leader = ep.KeyValue(create_revision=7)
    assert judge(wanted, Meta(1, found, 1, leader), fence=fence) is outcome
