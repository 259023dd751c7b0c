"""The contract of a journal, held against every kind: what was appended is there again, in its order."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strata.cluster import commands as c
from strata.coordinator.journal import Entry, Journal, MemoryJournal, SqliteJournal, open_journal
from strata.errors import JournalDamagedError, JournalUnavailableError
from tests.testbed import mounts
from tests.testbed.parts import require_root

ENTRIES: list[Entry] = [
    (c.RegisterWorker(worker_id=f"w{number}", incarnation="i"), 0.1 + number) for number in range(5)
]


@pytest.fixture(params=["sqlite", "memory"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Journal]:
    """Opens the same journal again, as a coordinator does after its restart."""
    opened: list[Journal] = []

    def again() -> Journal:
        if request.param == "memory":
            return opened[0] if opened else opened.append(MemoryJournal()) or opened[0]
        for journal in opened:
            journal.close()
        opened.append(SqliteJournal(tmp_path / "state" / "journal.db"))
        return opened[-1]

    return again


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append(ENTRIES)
    journal.close()
    return path


def change(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    database.execute(statement)
    database.commit()
    database.close()


def test_a_damaged_end_is_cut_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(path, "UPDATE entries SET command = x'00' WHERE number = 5")
    with caplog.at_level(logging.WARNING):
        assert SqliteJournal(path).load() == (None, ENTRIES[:4])
    assert "entry 5 is damaged and the last: it is cut" in caplog.text


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
    with pytest.raises(JournalDamagedError, match=r"is damaged: .* Restore the file from a backup, or move it away"):
        SqliteJournal(path).load()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"certainly not SQLite" * 1000)
    with pytest.raises(JournalDamagedError, match="not a database"):
        SqliteJournal(path)


def test_two_coordinators_cannot_have_one_journal(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.append(ENTRIES[:1])
    with pytest.raises(JournalUnavailableError, match="another coordinator has it open"):
        SqliteJournal(path)


def test_what_was_appended_survives_kill_9(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from strata.cluster import commands as c; from strata.coordinator.journal import SqliteJournal\n"
        "journal = SqliteJournal(Path(sys.argv[1]))\n"
        "for number in range(10_000):\n"
        "    journal.append([(c.Goodbye(worker_id=f'w{number}', incarnation='i'), 0.0)])\n"
        "    print(number, flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "journal.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            writer.stdout.readline()
        writer.kill()
        said = 50 + len(writer.stdout.read().splitlines())
    _, entries = SqliteJournal(tmp_path / "journal.db").load()
    assert len(entries) >= said
    assert [command.worker_id for command, _ in entries] == [f"w{number}" for number in range(len(entries))]  # type: ignore[attr-defined]


@pytest.mark.part("faults")
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    require_root()
    with mounts.tmpfs(tmp_path / "small", size_bytes=1 << 20) as folder:
        journal = SqliteJournal(folder / "journal.db")
        kept = 0
        big = c.Goodbye(worker_id="w", incarnation="i", reason="x" * 20_000)
        with pytest.raises(JournalUnavailableError, match="full"):
            while True:
                journal.append([(big, 0.0)])
                kept += 1
        assert kept > 5
        assert len(journal.load()[1]) == kept
        journal.close()


def test_urls_name_journals_and_others_are_refused(tmp_path: Path) -> None:
    assert isinstance(open_journal("memory://"), MemoryJournal)
    assert isinstance(open_journal(f"sqlite://{tmp_path}/a/b.db"), SqliteJournal)
    for url in ("", "sqlite://", "sqlite:///", "postgres://x", "/path"):
        with pytest.raises(ValueError, match="use sqlite:///path/to/file or memory://"):
            open_journal(url)
