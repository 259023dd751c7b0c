"""Nothing leaves before all that it depends on is durable, and when a write fails everything that waits fails."""

from __future__ import annotations

import pytest

from strata.cluster import commands as c
from strata.coordinator.journal import Entry
from strata.coordinator.write_queue import Output, WriteQueue
from strata.errors import JournalUnavailableError, StrataError

ENTRY = Entry(c.GetKey(key="x"), 1.0)
FAILURE = JournalUnavailableError("journal", "full")


class Sent(list[tuple[str, StrataError | None]]):
    """What left, and with which failure."""

    def of(self, name: str) -> Output:
        return lambda failure: self.append((name, failure))


@pytest.fixture
def sent() -> Sent:
    return Sent()


def test_what_depends_on_a_write_waits_for_it_although_it_wrote_nothing(sent: Sent) -> None:
    queue = WriteQueue()
    queue.add(ENTRY, sent.of("change"))
    queue.add(None, sent.of("question"))
    assert not queue.is_idle
    assert queue.begin() == [ENTRY]
    assert not queue.is_idle
    for output in queue.end():
        output(None)
    assert sent == [("change", None), ("question", None)]
    assert queue.is_idle


def test_what_comes_while_a_batch_is_written_waits_for_the_next_one(sent: Sent) -> None:
    queue = WriteQueue()
    queue.add(ENTRY, sent.of("first"))
    queue.begin()
    queue.add(ENTRY, sent.of("second"))
    assert len(queue.end()) == 1
    assert queue.has_more
    assert queue.begin() == [ENTRY]
    assert len(queue.end()) == 1


def test_a_write_that_fails_takes_everything_with_it_that_was_applied_since(sent: Sent) -> None:
    queue = WriteQueue()
    queue.add(ENTRY, sent.of("first"))
    queue.begin()
    queue.add(ENTRY, sent.of("second"))
    for output in queue.abort():
        output(FAILURE)
    assert sent == [("first", FAILURE), ("second", FAILURE)]
    assert queue.is_idle
    assert not queue.has_more


def test_a_tenant_waits_for_its_own_entries_and_for_no_others(sent: Sent) -> None:
    queue = WriteQueue()
    queue.add(ENTRY, sent.of("a's change"), "a")
    assert not queue.is_settled("a")
    assert queue.is_settled("b")
    queue.begin()
    # All came while the batch was written: a waits for it, and what is about everyone for the next one too.
    queue.add(None, sent.of("a's question"), "a")
    queue.add(ENTRY, sent.of("b's change"), "b")
    queue.add(None, sent.of("everyone"), None)
    for output in queue.end():
        output(None)
    assert [name for name, _ in sent] == ["a's change", "a's question"]
    assert queue.is_settled("a")
    assert not queue.is_settled("b")
    queue.begin()
    for output in queue.end():
        output(None)
    assert [name for name, _ in sent][2:] == ["b's change", "everyone"]
    assert queue.is_idle
