"""An export is there in full or not at all, and one that says something else than it holds is refused."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest
import xxhash

from strata.cluster import commands as c
from strata.coordinator.journal import Entry, SqliteJournal
from strata.coordinator.journal.transfer import export_journal, import_journal, read_file
from strata.errors import UnusableJournalError

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = [Entry(c.RegisterWorker(worker_id=f"w{number}", incarnation="i"), float(number)) for number in range(3)]


@pytest.fixture
def journal(tmp_path: Path) -> str:
    kept = SqliteJournal(tmp_path / "j.db")
    kept.append(ENTRIES)
    kept.close()
    return f"sqlite://{tmp_path}/j.db"


def test_an_export_that_the_disk_does_not_take_leaves_the_one_before(
    journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "exports" / "export.jsonl"
    export_journal(journal, file)
    before = file.read_bytes()

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UnusableJournalError, match=rf"{file} cannot be used: No space left on device"):
        export_journal(journal, file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_an_export_whose_end_counts_other_entries_is_refused(journal: str, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    export_journal(journal, file)
    lines = file.read_bytes().splitlines(keepends=True)
    del lines[-2]
    # With a right digest, so that only the number tells.
    digest = xxhash.xxh3_128_hexdigest(b"".join(lines[:-1]))
    lines[-1] = json.dumps({"end": {"entries": len(ENTRIES), "digest": digest}}).encode()
    file.write_bytes(b"".join(lines))
    with pytest.raises(UnusableJournalError, match="it has another number of entries than its end says"):
        read_file(file)


def test_nothing_is_imported_into_what_keeps_nothing(journal: str, tmp_path: Path) -> None:
    export_journal(journal, tmp_path / "export.jsonl")
    with pytest.raises(ValueError, match="'memory://' keeps nothing; use sqlite:///path/to/file or etcd://"):
        import_journal(tmp_path / "export.jsonl", "memory://")
