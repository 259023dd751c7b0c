"""The journal is kept short, and nobody waits long for that."""

from __future__ import annotations

from strata.cluster import commands as c
from strata.coordinator.journal import Entry
from strata.coordinator.journal.compaction import ENTRY_BYTES, MAX_ENTRIES, SHARE, SNAPSHOT_ENTRIES, Compaction


def entries(count: int, size_bytes: int = 100) -> list[Entry]:
    return [Entry(c.RemoveJob(reason=""), 0.0, data=b"x" * size_bytes)] * count


def test_it_is_due_after_so_many_entries_counting_those_that_are_about_to_be_written() -> None:
    compaction = Compaction()
    compaction.begin(10)
    compaction.note_written(entries(SNAPSHOT_ENTRIES - 20))
    assert not compaction.is_due(1.0, writing=entries(9))
    assert compaction.is_due(1.0, writing=entries(10))


def test_large_entries_count_by_their_size() -> None:
    compaction = Compaction()
    compaction.note_written(entries(SNAPSHOT_ENTRIES // 100 - 1, size_bytes=99 * ENTRY_BYTES))
    assert not compaction.is_due(1.0, writing=entries(1))
    assert compaction.is_due(1.0, writing=entries(1, size_bytes=99 * ENTRY_BYTES))


def test_one_that_took_long_is_not_repeated_soon_unless_a_restart_would_take_long_too() -> None:
    compaction = Compaction()
    compaction.began(100.0, took_s=0.05)
    compaction.note_written(entries(SNAPSHOT_ENTRIES))
    assert not compaction.is_due(100.0 + SHARE * 0.049, writing=())
    assert compaction.is_due(100.0 + SHARE * 0.051, writing=())
    compaction.note_written(entries(MAX_ENTRIES - SNAPSHOT_ENTRIES))
    assert compaction.is_due(100.0, writing=())


def test_a_tenant_that_needs_room_does_not_wait_and_begins_the_count_anew() -> None:
    compaction = Compaction()
    compaction.began(100.0, took_s=1.0)
    compaction.want()
    assert compaction.is_due(100.0, writing=entries(1))
    compaction.began(101.0, took_s=1.0)
    assert not compaction.is_due(101.0, writing=entries(1))
