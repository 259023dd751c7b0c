"""The contract of a journal, held against every kind: what was appended is there again, in its order."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from strata.cluster import commands as c
from strata.coordinator.journal import Entry, Journal, MemoryJournal, SqliteJournal, open_journal
from strata.coordinator.journal.mark import JournalMark, _line
from strata.coordinator.journal.wal import find_damage
from strata.errors import JournalBrokenError, JournalDamagedError, JournalUnavailableError, UnusableJournalError
from tests.testbed import mounts
from tests.testbed.ha.etcd import lead, new_target, resign
from tests.testbed.parts import require_root
from tests.testbed.process import start

ENTRIES: list[Entry] = [
    Entry(c.RegisterWorker(worker_id=f"w{number}", incarnation="i"), 0.1 + number) for number in range(5)
]


@pytest.fixture(params=["sqlite", "memory", pytest.param("etcd", marks=pytest.mark.part("etcd"))])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Journal]]:
    """Opens the same journal again, as a coordinator does after its restart."""
    opened: list[Journal] = []
    target = None if request.param != "etcd" else new_target(request.getfixturevalue("etcd_server"))

    def again() -> Journal:
        if target is not None:
            for journal in opened:
                resign(journal)
            opened.append(lead(target))
            return opened[-1]
        if request.param == "memory":
            return opened[0] if opened else opened.append(MemoryJournal()) or opened[0]
        for journal in opened:
            journal.close()
        opened.append(SqliteJournal(tmp_path / "state" / "journal.db"))
        return opened[-1]

    yield again
    for journal in opened:
        journal.close()


class TestJournal:
    def test_a_new_journal_is_empty(self, reopen: Callable[[], Journal]) -> None:
        assert reopen().load() == (None, [])

    def test_entries_are_there_again_in_their_order(self, reopen: Callable[[], Journal]) -> None:
        journal = reopen()
        journal.append(ENTRIES[:3])
        journal.append(ENTRIES[3:])
        assert reopen().load() == (None, ENTRIES)

    def test_a_snapshot_stands_for_all_before_it(self, reopen: Callable[[], Journal]) -> None:
        journal = reopen()
        journal.append(ENTRIES[:3])
        journal.snapshot(b"state")
        journal.append(ENTRIES[3:])
        assert reopen().load() == (b"state", ENTRIES[3:])
        reopen().snapshot(b"later")
        assert reopen().load() == (b"later", [])
        reopen().snapshot(b"again")
        journal = reopen()
        journal.append(ENTRIES[:1])
        assert reopen().load() == (b"again", ENTRIES[:1])

    def test_who_caused_an_entry_is_kept_with_it(self, reopen: Callable[[], Journal]) -> None:
        caused = [entry._replace(by=("launcher", "10.0.0.5")) for entry in ENTRIES]
        reopen().append([*caused, *ENTRIES])
        assert reopen().load() == (None, [*caused, *ENTRIES])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append(ENTRIES)
    journal.close()
    return path


@pytest.fixture(autouse=True)
def _closed_databases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test leaves open, as the end of a process would; Python 3.13 warns of each."""
    opened: list[sqlite3.Connection] = []

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(sqlite3.Connection(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    yield
    for database in opened:
        database.close()


def change(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()


def test_an_end_that_nobody_was_told_of_is_cut_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(path, "INSERT INTO entries VALUES (6, 0.0, x'00', x'00')")
    with caplog.at_level(logging.WARNING):
        assert SqliteJournal(path).load() == (None, ENTRIES)
    assert "the last entry, 6, is damaged and was never acknowledged" in caplog.text


@pytest.mark.parametrize(
    "damage", ["UPDATE entries SET command = x'00' WHERE number = 5", "DELETE FROM entries WHERE number = 5"]
)
def test_an_end_that_someone_was_told_of_is_never_cut(path: Path, damage: str) -> None:
    change(path, damage)
    with pytest.raises(JournalDamagedError, match="start 'strata coordinator --accept-journal-loss' once"):
        SqliteJournal(path).load()


def test_a_loss_is_accepted_only_when_it_is_asked_for_and_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(path, "DELETE FROM entries WHERE number > 3")
    with pytest.raises(JournalDamagedError, match="5 entries were acknowledged, and only 3 are there"):
        SqliteJournal(path)
    with caplog.at_level(logging.WARNING):
        journal = SqliteJournal(path, accept_loss=True)
        assert journal.load() == (None, ENTRIES[:3])
    assert "the loss is accepted" in caplog.text
    assert path.with_name("journal.db.damaged").exists()
    journal.close()
    journal = SqliteJournal(path)
    journal.append(ENTRIES[3:])
    assert journal.load() == (None, ENTRIES)


@pytest.mark.parametrize("gone", ["the file", "its folder"])
def test_a_journal_that_was_deleted_while_it_is_open_takes_nothing_more(tmp_path: Path, gone: str) -> None:
    path = tmp_path / "state" / "journal.db"
    journal = SqliteJournal(path)
    journal.append(ENTRIES[:1])
    if gone == "the file":
        path.unlink()
    else:
        shutil.rmtree(path.parent)
    for write in (lambda: journal.append(ENTRIES[1:]), lambda: journal.snapshot(b"state")):
        with pytest.raises(JournalBrokenError, match="removed or replaced while the coordinator ran; put it back"):
            write()
    assert journal.load() == (None, ENTRIES[:1])


def test_a_journal_that_was_deleted_while_no_one_had_it_open_is_missed(path: Path) -> None:
    path.unlink()
    with pytest.raises(JournalDamagedError, match="the file is gone, and 5 entries were acknowledged"):
        SqliteJournal(path)
    assert SqliteJournal(path, accept_loss=True).load() == (None, [])


WRITER = """
import sys
from pathlib import Path
from strata.cluster import commands as c
from strata.coordinator.journal import Entry, SqliteJournal
journal = SqliteJournal(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    journal.append([Entry(c.Goodbye(worker_id=f"w{number}", incarnation="i", reason="x" * 200), 0.0)])
    if number == int(sys.argv[3]):
        journal.snapshot(b"state" * 1_000)
    print(number, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("written", "snapshot_at"), [(40, -1), (60, 30), (400, 200)])
def test_after_kill_9_a_flipped_bit_is_harmless_or_refused_and_never_loses_anything(
    tmp_path: Path, written: int, snapshot_at: int
) -> None:
    """Wherever the bit is: in the log, in the file itself, or in the mark."""
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", WRITER, str(killed / "journal.db"), str(written), str(snapshot_at)]
    with start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(written):
            writer.stdout.readline()
        writer.kill()
    shutil.copytree(killed, tmp_path / "whole")
    before = read_all(tmp_path / "whole")
    assert before == (written, (b"state" * 1_000 if snapshot_at >= 0 else None))
    chance = random.Random(written)
    refused = 0
    for name in ("journal.db-wal", "journal.db", "journal.db-mark"):
        size = (killed / name).stat().st_size
        for _ in range(40 if name.endswith("wal") else 10):
            folder = tmp_path / "damaged"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(killed, folder)
            at, bit = chance.randrange(size), chance.randrange(8)
            data = bytearray((folder / name).read_bytes())
            data[at] ^= 1 << bit
            (folder / name).write_bytes(data)
            files = {file.name: file.read_bytes() for file in folder.iterdir()}
            try:
                found = read_all(folder)
            except JournalDamagedError as error:
                refused += 1
                assert "--accept-journal-loss" in str(error)
                assert {file.name: file.read_bytes() for file in folder.iterdir()} == files or name == "journal.db"
            else:
                assert found == before, (name, at, bit)
    assert refused > 10


def read_all(folder: Path) -> tuple[int, bytes | None]:
    """Return how many entries were ever written, as far as can be seen, and the snapshot."""
    journal = SqliteJournal(folder / "journal.db")
    try:
        state, entries = journal.load()
        journal.append([Entry(c.Goodbye(worker_id="last", incarnation="i"), 0.0)])
        (number,) = journal._database.execute("SELECT max(number) FROM entries").fetchone()
    finally:
        journal.close()
    names = [command.worker_id for command, *_ in entries]
    assert names == [f"w{n}" for n in range(number - 1 - len(entries), number - 1)]
    return number - 1, state


@pytest.mark.parametrize("cut", [1, 100, 4_000, 5_000])
def test_a_last_write_that_did_not_get_done_is_no_damage(tmp_path: Path, cut: int) -> None:
    """As a power cut leaves it: the log ends in the middle of a transaction that nobody was told of."""
    path = tmp_path / "journal.db"
    command = [sys.executable, "-c", WRITER, str(path), "20", "-1"]
    with start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        writer.kill()
    log = tmp_path / "journal.db-wal"
    log.write_bytes(log.read_bytes()[:-cut])
    JournalMark(path).write(18)
    assert find_damage(log) is None
    assert read_all(tmp_path)[0] in (18, 19)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET command = x'00' WHERE number = 2",
        "UPDATE entries SET at_s = 7.0 WHERE number = 2",
        "DELETE FROM entries WHERE number = 2",
        "INSERT INTO snapshots VALUES (0, x'00', x'00')",
    ],
)
def test_damage_before_the_end_refuses_to_start_and_says_what_to_do(path: Path, damage: str) -> None:
    change(path, damage)
    with pytest.raises(
        JournalDamagedError, match=r"is damaged: .* Restore the file from a backup, or move it and its -mark away"
    ):
        SqliteJournal(path).load()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"certainly not SQLite" * 1000)
    with pytest.raises(UnusableJournalError, match="no database of SQLite"):
        SqliteJournal(path)
    # With a mark beside it, it was a journal.
    path.with_name("journal.db-mark").write_bytes(_line(3))
    with pytest.raises(JournalDamagedError, match="not a database"):
        SqliteJournal(path)


def test_a_file_that_is_no_database_any_more_is_put_aside_when_its_loss_is_accepted(path: Path) -> None:
    garbage = b"certainly not SQLite" * 1000
    path.write_bytes(garbage)
    journal = SqliteJournal(path, accept_loss=True)
    assert journal.load() == (None, [])
    journal.append(ENTRIES[:2])
    journal.close()
    assert path.with_name("journal.db.damaged").read_bytes() == garbage
    assert SqliteJournal(path).load() == (None, ENTRIES[:2])


def kept_numbers(path: Path, copy: str = "journal.db.damaged") -> list[int]:
    """Return the numbers of the entries in the copy of a damaged journal."""
    with closing(sqlite3.connect(path.with_name(copy))) as database:
        return [number for (number,) in database.execute("SELECT number FROM entries ORDER BY number")]


def test_a_damaged_snapshot_is_dropped_with_all_after_it_only_when_its_loss_is_accepted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(SqliteJournal(path)) as journal:
        journal.snapshot(b"state")
        journal.append(ENTRIES[:2])
    change(path, "UPDATE snapshots SET state = x'00'")
    problem = "its snapshot has another digest than it was written with"
    with closing(SqliteJournal(path)) as journal, pytest.raises(JournalDamagedError, match=problem):
        journal.load()
    with closing(SqliteJournal(path, accept_loss=True)) as journal:
        assert journal.load() == (None, [])
    assert f"{problem}; the loss is accepted" in caplog.text
    assert kept_numbers(path) == [6, 7]
    with closing(SqliteJournal(path)) as journal:
        journal.append(ENTRIES[:1])
        assert journal.load() == (None, ENTRIES[:1])


def test_entries_after_a_damaged_one_are_copied_before_they_are_dropped(path: Path) -> None:
    change(path, "UPDATE entries SET command = x'00' WHERE number = 3")
    with closing(SqliteJournal(path, accept_loss=True)) as journal:
        assert journal.load() == (None, ENTRIES[:2])
        assert kept_numbers(path) == [1, 2, 3, 4, 5]
        assert path.with_name("journal.db.damaged").stat().st_mode & 0o777 == 0o600
        # The copy was made while it was open, and it still belongs to this process alone.
        with pytest.raises(JournalUnavailableError, match="another coordinator has it open"):
            SqliteJournal(path)


def test_nothing_is_dropped_that_cannot_be_copied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(path, "UPDATE entries SET command = x'00' WHERE number = 3")

    def refuse(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    words = r"cannot be repaired: its damaged content cannot be copied to .*journal\.db\.damaged: .*No space left"
    with closing(SqliteJournal(path, accept_loss=True)) as journal:
        with monkeypatch.context() as patched:
            patched.setattr("strata.coordinator.journal.sqlite.make_private", refuse)
            with pytest.raises(JournalUnavailableError, match=words):
                journal.load()
        assert journal.load() == (None, ENTRIES[:2])
    assert kept_numbers(path) == [1, 2, 3, 4, 5]


def test_a_second_loss_leaves_the_copy_of_the_first(path: Path) -> None:
    for number in (3, 2):
        change(path, f"UPDATE entries SET command = x'00' WHERE number = {number}")
        with closing(SqliteJournal(path, accept_loss=True)) as journal:
            assert journal.load() == (None, ENTRIES[: number - 1])
    assert kept_numbers(path) == [1, 2, 3, 4, 5]
    assert kept_numbers(path, copy="journal.db.damaged-2") == [1, 2]


@pytest.mark.parametrize("damaged", [50, 99])
def test_of_a_file_with_a_page_that_cannot_be_read_the_entries_before_it_are_kept(tmp_path: Path, damaged: int) -> None:
    """In the middle it is found when the file is read, and at the end when it is opened."""
    path = tmp_path / "journal.db"
    entries = [Entry(c.Goodbye(worker_id=f"w{n}", incarnation="i", reason="x" * 200), 0.0) for n in range(100)]
    with closing(SqliteJournal(path)) as journal:
        journal.snapshot(b"state")
        journal.append(entries)
    whole = path.read_bytes()
    page = whole.index(b"w%d" % damaged) // 4096 * 4096
    assert page > 0
    path.write_bytes(whole[:page] + b"\xff" * 4096 + whole[page + 4096 :])
    with pytest.raises(JournalDamagedError, match="malformed"), closing(SqliteJournal(path)) as journal:
        journal.load()
    with closing(SqliteJournal(path, accept_loss=True)) as journal:
        state, found = journal.load()
        journal.append(entries[:1])
    assert state == b"state"
    assert 30 < len(found) <= damaged
    assert found == entries[: len(found)]
    assert path.with_name("journal.db.damaged").stat().st_size == len(whole)
    with closing(SqliteJournal(path)) as journal:
        assert journal.load() == (b"state", [*found, entries[0]])


def test_what_an_earlier_round_of_the_log_left_behind_is_no_damage(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "open" / "journal.db")) as journal:
        for entry in ENTRIES[:4]:
            journal.append([entry])
        # As SQLite does by itself when the log is long: the next write begins it again, over the first old frames.
        journal._database.execute("PRAGMA wal_checkpoint(RESTART)")
        journal.append(ENTRIES[4:])
        shutil.copytree(tmp_path / "open", tmp_path / "crashed")
    assert find_damage(tmp_path / "crashed" / "journal.db-wal") is None
    with closing(SqliteJournal(tmp_path / "crashed" / "journal.db")) as journal:
        assert journal.load() == (None, ENTRIES)


def header_of_log(at: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:20], id="cut within the header"),
        pytest.param(header_of_log(0, b"\0\0\0\0"), id="another magic number"),
        pytest.param(header_of_log(8, b"\0\0\0\3"), id="a page size that cannot be"),
        pytest.param(header_of_log(16, b"\1\2\3\4"), id="a salt that does not fit to the checksum"),
    ],
)
def test_a_log_whose_header_is_damaged_is_missed_by_the_count_of_entries(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    journal = SqliteJournal(tmp_path / "open" / "journal.db")
    journal.append(ENTRIES)
    # As a crash leaves it: closing would move the log's content into the file.
    shutil.copytree(tmp_path / "open", tmp_path / "crashed")
    journal.close()
    path, log = tmp_path / "crashed" / "journal.db", tmp_path / "crashed" / "journal.db-wal"
    log.write_bytes(damage(log.read_bytes()))
    assert find_damage(log) is None
    with pytest.raises(JournalDamagedError, match="5 entries were acknowledged, and only 0 are there"):
        SqliteJournal(path)


@pytest.mark.parametrize("is_new", [True, False])
def test_two_coordinators_cannot_have_one_journal(tmp_path: Path, is_new: bool) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    if not is_new:
        journal.append(ENTRIES[:1])
    with pytest.raises(JournalUnavailableError, match="another coordinator has it open; stop that one first") as raised:
        SqliteJournal(path)
    assert "Free space" not in str(raised.value)


def test_what_was_appended_survives_kill_9(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from strata.cluster import commands as c; from strata.coordinator.journal import Entry, SqliteJournal\n"
        "journal = SqliteJournal(Path(sys.argv[1]))\n"
        "for number in range(10_000):\n"
        "    journal.append([Entry(c.Goodbye(worker_id=f'w{number}', incarnation='i'), 0.0)])\n"
        "    print(number, flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "journal.db")]
    with start(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            writer.stdout.readline()
        writer.kill()
        said = 50 + len(writer.stdout.read().splitlines())
    _, entries = SqliteJournal(tmp_path / "journal.db").load()
    assert len(entries) >= said
    assert [command.worker_id for command, *_ in entries] == [f"w{number}" for number in range(len(entries))]


@pytest.mark.part("faults")
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    require_root()
    with mounts.tmpfs(tmp_path / "small", size_bytes=1 << 20) as folder:
        journal = SqliteJournal(folder / "journal.db")
        kept = 0
        big = c.Goodbye(worker_id="w", incarnation="i", reason="x" * 20_000)
        with pytest.raises(JournalUnavailableError, match="full"):
            while True:
                journal.append([Entry(big, 0.0)])
                kept += 1
        assert kept > 5
        assert len(journal.load()[1]) == kept
        journal.close()


def test_urls_name_journals_and_others_are_refused(tmp_path: Path) -> None:
    assert isinstance(open_journal("memory://"), MemoryJournal)
    assert isinstance(open_journal(f"sqlite://{tmp_path}/a/b.db"), SqliteJournal)
    for url in ("", "sqlite://", "sqlite:///", "postgres://x", "/path"):
        with pytest.raises(ValueError, match="use sqlite:///path/to/file, etcd://host:2379/prefix or memory://"):
            open_journal(url)


@pytest.mark.parametrize(
    ("place", "problem"), [("file/journal.db", "File exists|Not a directory"), ("x" * 300, "File name too long")]
)
def test_a_path_that_cannot_be_is_refused_with_what_to_check(tmp_path: Path, place: str, problem: str) -> None:
    (tmp_path / "file").write_text("")
    words = rf"the journal {tmp_path}/{place} cannot be opened: ({problem}).*check the path and its permissions"
    with pytest.raises(JournalUnavailableError, match=words):
        open_journal(f"sqlite://{tmp_path}/{place}")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
