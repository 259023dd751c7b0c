"""The transactions that change a journal in etcd, and what their outcomes mean. Pure.

Each is fenced by the create_revision of the leader's key and by the head that it replaces. So it can be sent again
after an answer that was lost: at the most one of the copies is carried out, and none after another coordinator leads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from google.protobuf.message import DecodeError

from strata.coordinator.etcd.etcd_client import end_of
from strata.coordinator.journal.etcd.records import Keys
from strata.errors import JournalDamagedError
from strata.wire._generated import etcd_pb2 as ep
from strata.wire._generated import journal_pb2 as jp


class Outcome(Enum):
    """What became of a write."""

    WRITTEN = "written"
    DEPOSED = "deposed"
    """Another coordinator leads; the write was not carried out, and never will be."""
    LOST = "lost"
    """Another coordinator leads, and since so long that nobody knows what became of the write."""
    GONE = "gone"
    """etcd does not hold this journal any more, or an older state of it."""


@dataclass(frozen=True)
class Meta:
    """Head and leader of one moment."""

    revision: int
    head: jp.Head | None
    head_revision: int
    leader: ep.KeyValue | None


def read_meta(keys: Keys) -> ep.RangeRequest:
    """Return the question for head and leader."""
    return ep.RangeRequest(key=keys.meta, range_end=end_of(keys.meta))


def find_meta(keys: Keys, answer: ep.RangeResponse, *, revision: int | None = None) -> Meta:
    """Return head and leader from what etcd answered, or raise JournalDamagedError for a head that is none."""
    found = {kv.key: kv for kv in answer.kvs}
    head, leader = found.get(keys.head), found.get(keys.leader)
    try:
        read = None if head is None else jp.Head.FromString(head.value)
    except DecodeError as error:
        raise JournalDamagedError(keys.prefix, f"its head cannot be read: {error}") from error
    return Meta(
        answer.header.revision if revision is None else revision,
        read,
        0 if head is None else head.mod_revision,
        leader,
    )


def campaign(keys: Keys, meta: Meta, begun: jp.Head, *, leader: bytes, lease: int) -> ep.TxnRequest:
    """Return what makes a coordinator the leader, if there is none and the head is still the one that it knows."""
    beyond = keys.batch(begun.last + 1)
    return ep.TxnRequest(
        compare=[_compare_create(keys.leader, 0), _compare_mod(keys.head, meta.head_revision)],
        success=[
            _put(keys.leader, leader, lease=lease),
            # Pieces that a leader wrote and did not live to make part of the journal.
            _delete(beyond, end_of(keys.batches)),
            _put(keys.head, begun.SerializeToString(deterministic=True)),
        ],
        failure=[ep.RequestOp(request_range=read_meta(keys))],
    )


def put_piece(keys: Keys, fence: int, key: bytes, value: bytes) -> ep.TxnRequest:
    """Return what writes a piece that is not part of the journal yet."""
    return ep.TxnRequest(
        compare=[_compare_create(keys.leader, fence)],
        success=[_put(key, value)],
        failure=[ep.RequestOp(request_range=read_meta(keys))],
    )


def write_head(
    keys: Keys,
    fence: int,
    head_revision: int,
    head: jp.Head,
    *,
    puts: tuple[tuple[bytes, bytes], ...] = (),
    deletes: tuple[tuple[bytes, bytes], ...] = (),
) -> ep.TxnRequest:
    """Return what replaces the head, which makes all that it names part of the journal."""
    operations = [_put(key, value) for key, value in puts]
    operations += [_delete(key, end) for key, end in deletes if key < end]
    # The last one: who watches has seen all that it names before it.
    operations.append(_put(keys.head, head.SerializeToString(deterministic=True)))
    return ep.TxnRequest(
        compare=[_compare_create(keys.leader, fence), _compare_mod(keys.head, head_revision)],
        success=operations,
        failure=[ep.RequestOp(request_range=read_meta(keys))],
    )


def resign(keys: Keys, fence: int) -> ep.TxnRequest:
    """Return what ends a leadership, if it has not ended."""
    return ep.TxnRequest(
        compare=[_compare_create(keys.leader, fence)], success=[_delete(keys.leader, keys.leader + b"\0")]
    )


def judge(wanted: jp.Head, found: Meta, *, fence: int) -> Outcome | None:
    """Say what became of a write whose transaction was refused; None if its leader can send it again.

    An earlier copy of it may have been carried out before its answer was lost.
    """
    head = found.head
    if head is not None and (head.term, head.sequence) == (wanted.term, wanted.sequence):
        return Outcome.WRITTEN
    if found.leader is not None and found.leader.create_revision == fence:
        return None
    if head is None or head.term < wanted.term:
        return Outcome.GONE
    if head.term == wanted.term:
        return Outcome.DEPOSED
    # Where the next term began tells what it found. A head without new entries tells nothing, and nobody waits for it.
    after = [start for start in head.starts if start.term > wanted.term]
    if not after or after[0].term != wanted.term + 1:
        return Outcome.LOST
    return Outcome.WRITTEN if after[0].last >= wanted.last else Outcome.DEPOSED


def _put(key: bytes, value: bytes, *, lease: int = 0) -> ep.RequestOp:
    return ep.RequestOp(request_put=ep.PutRequest(key=key, value=value, lease=lease))


def _delete(key: bytes, end: bytes) -> ep.RequestOp:
    return ep.RequestOp(request_delete_range=ep.DeleteRangeRequest(key=key, range_end=end))


def _compare_create(key: bytes, revision: int) -> ep.Compare:
    return ep.Compare(key=key, target=ep.Compare.CREATE, result=ep.Compare.EQUAL, create_revision=revision)


def _compare_mod(key: bytes, revision: int) -> ep.Compare:
    return ep.Compare(key=key, target=ep.Compare.MOD, result=ep.Compare.EQUAL, mod_revision=revision)
