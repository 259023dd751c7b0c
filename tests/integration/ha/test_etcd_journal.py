"""A journal in a real etcd: fenced, whole through any lost answer, and loud when there is no room."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.cluster import commands as c
from strata.coordinator.etcd.etcd_client import EtcdClient, EtcdUnavailableError, end_of
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.journal import Entry
from strata.coordinator.journal.etcd import records
from strata.coordinator.journal.etcd import transactions as t
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal
from strata.coordinator.journal.etcd.records import FORMAT, PIECE_BYTES, cut
from strata.errors import (
    CoordinatorLostError,
    JournalBrokenError,
    JournalDamagedError,
    JournalUnavailableError,
    JournalVersionError,
    NotLeaderError,
)
from strata.wire._generated import etcd_pb2 as ep
from strata.wire._generated import journal_pb2 as jp
from tests.testbed.ha.etcd import EtcdCluster, PatientClient, lead, new_target, stand
from tests.testbed.servers import EtcdServer
from tests.testbed.servers import request as send
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.part("etcd")


def entry(number: int, *, size: int = 0) -> Entry:
    return Entry(c.Goodbye(worker_id=f"w{number}", incarnation="i", reason="x" * size), float(number))


@pytest.fixture
def target(etcd_server: EtcdServer) -> EtcdTarget:
    return new_target(etcd_server)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path).serving() as cluster:
        yield cluster


def change(target: EtcdTarget, *changes: ep.RequestOp) -> None:
    """Change keys as no coordinator does."""
    client = PatientClient(target)
    client.transact(ep.TxnRequest(success=changes))
    client.close()


def delete(key: bytes) -> ep.RequestOp:
    return ep.RequestOp(request_delete_range=ep.DeleteRangeRequest(key=key))


def depose(journal: EtcdJournal, target: EtcdTarget) -> EtcdJournal:
    """Let another one lead, as if the lease of the first had ended; the first does not learn of it."""
    change(target, delete(journal.keys.leader))
    return lead(target)


def keys(target: EtcdTarget, prefix: bytes) -> list[bytes]:
    client = PatientClient(target)
    found = [kv.key for kv in client.range(ep.RangeRequest(key=prefix, range_end=end_of(prefix))).kvs]
    client.close()
    return found


class LossyClient(EtcdClient):
    """Loses answers: a call is carried out, and its caller does not learn of it."""

    lost = 0

    def transact(self, request: ep.TxnRequest, *, timeout_s: float = 1.0) -> ep.TxnResponse:
        answer = super().transact(request, timeout_s=timeout_s)
        if self.lost:
            self.lost -= 1
            raise EtcdUnavailableError("the answer was lost")
        return answer


def test_a_second_one_cannot_lead_while_the_first_does(target: EtcdTarget) -> None:
    first = lead(target)
    client = PatientClient(target)
    lease = client.grant_lease(60).ID
    assert stand(client, EtcdJournal(target), lease) is None
    first.resign()
    term = stand(client, EtcdJournal(target), lease)
    assert term is not None
    assert term.head.term == 2


def test_what_a_deposed_leader_writes_is_refused(target: EtcdTarget) -> None:
    first = lead(target)
    first.append([entry(1)])
    second = depose(first, target)
    for write in (lambda: first.append([entry(2)]), lambda: first.snapshot(b"old")):
        with pytest.raises(NotLeaderError):
            write()
    second.append([entry(3)])
    assert second.load() == (None, [entry(1), entry(3)])


@pytest.mark.parametrize("lost", [1, 3])
def test_a_write_whose_answer_is_lost_is_written_once(target: EtcdTarget, lost: int) -> None:
    journal = lead(target)
    journal._client = lossy = LossyClient(target)
    lossy.lost = lost
    journal.append([entry(1)])
    lossy.lost = lost
    journal.snapshot(b"state")
    journal.append([entry(2)])
    assert lossy.lost == 0
    assert journal.load() == (b"state", [entry(2)])


def test_a_deposed_leader_learns_whether_its_last_write_counts(target: EtcdTarget) -> None:
    """Its answer was lost, and meanwhile others led: where their terms began tells."""
    first = lead(target)

    class Deposing(LossyClient):
        def transact(self, request: ep.TxnRequest, *, timeout_s: float = 1.0) -> ep.TxnResponse:
            try:
                return super().transact(request, timeout_s=timeout_s)
            except EtcdUnavailableError:
                depose(depose(first, target), target).snapshot(b"theirs")
                raise

    first._client = lossy = Deposing(target)
    lossy.lost = 1
    first.append([entry(1)])  # it was carried out, so it counts
    with pytest.raises(NotLeaderError):
        first.append([entry(2)])


def test_a_write_that_is_never_answered_is_not_called_a_failure(target: EtcdTarget) -> None:
    journal = lead(target)
    journal._client = EtcdClient(EtcdTarget(endpoints=("127.0.0.1:1",), prefix=target.prefix))
    raised: list[Exception] = []

    def append() -> None:
        try:
            journal.append([entry(1)])
        except CoordinatorLostError as error:
            raised.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    journal.close()
    thread.join()
    assert "Retrying is safe" in str(raised[0])


def test_a_batch_larger_than_a_request_is_written_whole(target: EtcdTarget) -> None:
    journal = lead(target)
    large = [entry(number, size=PIECE_BYTES // 3) for number in range(10)]
    journal.append(large)
    journal.append([entry(11)])
    assert journal.load() == (None, [*large, entry(11)])
    journal.snapshot(b"s" * (3 * PIECE_BYTES + 1))
    assert journal.load() == (b"s" * (3 * PIECE_BYTES + 1), [])
    assert keys(target, journal.keys.batches) == []
    assert len(keys(target, journal.keys.snapshots)) == 4


def test_pieces_of_a_leader_that_died_in_the_middle_are_no_part_of_the_journal(target: EtcdTarget) -> None:
    first = lead(target)
    first.append([entry(1)])
    first._put_piece(first._leading(), first.keys.batch(2, 0), b"half")
    first._put_piece(first._leading(), first.keys.batch(2, 7), b"half")
    assert EtcdJournal(target).load() == (None, [entry(1)])
    second = depose(first, target)
    second.append([entry(2)])
    assert second.load() == (None, [entry(1), entry(2)])
    assert len(keys(target, second.keys.batches)) == 2


def test_nobody_writes_before_it_leads(target: EtcdTarget) -> None:
    journal = EtcdJournal(target)
    for write in (lambda: journal.append([entry(1)]), lambda: journal.snapshot(b"state")):
        with pytest.raises(NotLeaderError):
            write()
    assert keys(target, journal.keys.all) == []


def put(key: bytes, value: bytes) -> ep.RequestOp:
    return ep.RequestOp(request_put=ep.PutRequest(key=key, value=value))


def test_a_journal_that_was_put_back_while_a_leader_writes_cannot_be_trusted(target: EtcdTarget) -> None:
    journal = lead(target)
    journal.append([entry(1)])
    change(target, delete(journal.keys.leader), delete(journal.keys.head))
    with pytest.raises(JournalBrokenError, match="it was wiped, or put back to an older state"):
        journal.append([entry(2)])


def test_a_leader_whose_head_was_changed_by_something_else_writes_no_more(
    target: EtcdTarget, caplog: pytest.LogCaptureFixture
) -> None:
    journal = lead(target)
    journal.append([entry(1)])
    head = jp.Head()
    head.CopyFrom(journal._leading().head)
    head.sequence += 7
    change(target, put(journal.keys.head, head.SerializeToString()))
    with pytest.raises(NotLeaderError):
        journal.append([entry(2)])
    assert f"{journal.where}: its head was changed by something else while this coordinator led" in caplog.text
    assert EtcdJournal(target).load() == (None, [entry(1)])


@pytest.mark.parametrize("damage", ["a piece is gone", "a piece is of another snapshot"])
def test_a_journal_whose_snapshot_is_not_whole_is_refused(target: EtcdTarget, damage: str) -> None:
    journal = lead(target)
    journal.append([entry(1)])
    journal.snapshot(b"s" * (PIECE_BYTES + 1))
    first, second = keys(target, journal.keys.snapshots)
    if damage == "a piece is gone":
        change(target, delete(second))
    else:
        change(target, put(first, cut(b"other")[0]), delete(second))
    with pytest.raises(JournalDamagedError, match="its snapshot of entry 1 is incomplete or damaged"):
        EtcdJournal(target).load()


class CompactedClient(EtcdClient):
    """An etcd that is compacted before each look at an older revision."""

    def range(self, request: ep.RangeRequest, *, timeout_s: float = 1.0) -> ep.RangeResponse:
        if request.revision:
            changed = self.transact(ep.TxnRequest(success=[put(f"{self.target.prefix}-other".encode(), b"")]))
            body = json.dumps({"revision": changed.header.revision}).encode()
            send("POST", f"http://{self.target.endpoints[0]}/v3/kv/compaction", body)
        return super().range(request, timeout_s=timeout_s)


def test_whoever_follows_reads_all_of_a_journal_that_was_compacted_under_it(target: EtcdTarget) -> None:
    leader = lead(target)
    for number in range(3):
        leader.append([entry(number)])
    journal = EtcdJournal(target)
    found = journal.load_after(1)
    assert found is not None
    assert found.entries == [entry(1), entry(2)]
    journal._client = CompactedClient(target)
    assert journal.load_after(1) is None
    leader.snapshot(b"state")
    assert EtcdJournal(target).load_after(1) is None


def test_an_etcd_that_does_not_answer_is_named_by_who_reads(target: EtcdTarget) -> None:
    away = EtcdTarget(endpoints=("127.0.0.1:1",), prefix=target.prefix)
    journal = EtcdJournal(away, read_s=0.0)
    for read in (journal.load, lambda: journal.load_after(0)):
        with pytest.raises(JournalUnavailableError, match=rf"the journal etcd://127.0.0.1:1/{target.prefix}"):
            read()


def test_a_write_that_etcd_refuses_for_another_reason_than_space_says_only_that(
    target: EtcdTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PIECE_BYTES", 4 * PIECE_BYTES)
    journal = lead(target)
    with pytest.raises(JournalBrokenError, match="request is too large") as caught:
        journal.append([entry(1, size=PIECE_BYTES + PIECE_BYTES * 3 // 4)])
    assert "compact" not in str(caught.value)
    assert journal.load() == (None, [])


def test_a_journal_that_lacks_an_entry_is_refused(target: EtcdTarget) -> None:
    journal = lead(target)
    for number in range(3):
        journal.append([entry(number)])
    change(target, delete(journal.keys.batch(2)))
    with pytest.raises(
        JournalDamagedError, match=r"entry 2 is missing or damaged\. Import a backup under a new prefix"
    ):
        EtcdJournal(target).load()


@pytest.mark.parametrize(("version", "is_read"), [(FORMAT - 1, True), (FORMAT, True), (FORMAT + 1, False)])
def test_the_format_before_is_read_and_a_newer_one_is_refused(target: EtcdTarget, version: int, is_read: bool) -> None:
    journal = lead(target)
    journal.append([entry(1)])
    client = PatientClient(target)
    head = t.find_meta(journal.keys, client.range(t.read_meta(journal.keys))).head
    assert head is not None
    head.version = version
    put = ep.RequestOp(request_put=ep.PutRequest(key=journal.keys.head, value=head.SerializeToString()))
    client.transact(ep.TxnRequest(success=[put]))
    if is_read:
        assert EtcdJournal(target).load() == (None, [entry(1)])
    else:
        with pytest.raises(JournalVersionError, match="Use the version of Strata that wrote it"):
            EtcdJournal(target).load()


def test_kill_9_of_etcds_leader_loses_nothing_and_keeps_the_leadership(cluster: EtcdCluster) -> None:
    target = cluster.target()
    journal = lead(target)
    journal.append([entry(0)])
    killed = cluster.leader()
    cluster.kill(killed)
    for number in range(1, 20):
        journal.append([entry(number)])
    cluster.start(killed)
    cluster.wait_healthy()
    assert EtcdJournal(target).load() == (None, [entry(number) for number in range(20)])


def test_an_etcd_that_is_away_is_waited_for(cluster: EtcdCluster) -> None:
    target = cluster.target()
    journal = lead(target)
    journal.append([entry(0)])
    cluster.kill(0)
    cluster.kill(1)
    written = threading.Event()
    thread = threading.Thread(target=lambda: (journal.append([entry(1)]), written.set()))
    thread.start()
    time.sleep(1)
    assert not written.is_set()
    cluster.start(0)
    cluster.start(1)
    wait_until(written.is_set, "the write")
    thread.join()
    assert EtcdJournal(target).load() == (None, [entry(0), entry(1)])


def test_an_etcd_without_space_refuses_loudly_and_takes_writes_again(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, f"--quota-backend-bytes={16 << 20}", nodes=1).serving() as cluster:
        target = cluster.target()
        journal = lead(target)
        kept: list[Entry] = []
        with pytest.raises(JournalUnavailableError, match="etcd is out of space: compact and defragment it"):
            for number in range(40):
                # What is kept is small; the old revisions take the room, as without automatic compaction.
                journal.snapshot(b"%d" % number)
                kept, added = [], [entry(number, size=PIECE_BYTES - 1000)]
                journal.append(added)
                kept = added
        state, entries = journal.load()
        assert state is not None
        # On a slow machine etcd may apply a write after its client has stopped waiting and tried again.
        assert entries in (kept, added)
        # As an operator does it: room, and then the alarm.
        client = PatientClient(target)
        revision = client.range(ep.RangeRequest(key=b"x")).header.revision
        cluster.control("compact", str(revision))
        cluster.control("defrag")
        cluster.control("alarm", "disarm")
        journal.snapshot(b"small")
        journal.append([entry(1)])
        assert journal.load() == (b"small", [entry(1)])
