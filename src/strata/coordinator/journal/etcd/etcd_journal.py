"""A journal in etcd, for coordinators of which one leads and the others follow.

A batch is one transaction, fenced by the leader's key. When its answer is lost, the same transaction is sent again
until etcd says what became of it, and nothing else is written before that: so nobody is told a guess.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from strata.coordinator.etcd.etcd_client import (
    RETRY_S,
    EtcdClient,
    EtcdCompactedError,
    EtcdRefusedError,
    EtcdUnavailableError,
    end_of,
)
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.failing.faults import Fault
from strata.coordinator.journal.etcd import transactions as t
from strata.coordinator.journal.etcd.log_reader import LogReader
from strata.coordinator.journal.etcd.records import (
    FORMAT,
    Keys,
    cut,
    decode_head,
    digest,
    encode_batch,
    join_pieces,
    next_term,
)
from strata.coordinator.journal.protocol import Entry
from strata.errors import (
    CoordinatorLostError,
    JournalBrokenError,
    JournalDamagedError,
    JournalUnavailableError,
    NotLeaderError,
    StrataError,
)
from strata.wire._generated import etcd_pb2 as ep
from strata.wire._generated import journal_pb2 as jp

log = logging.getLogger(__name__)

# So many keys are read at a time; each is at most a piece.
PAGE_KEYS = 128
# A page of pieces takes longer than other calls.
PAGE_S = 10.0
# So often in a row may members fail to carry out a write that they were reached with.
MAX_FAILURES = 100
_HINT = "check etcd's own log, and start the coordinator again: all that was acknowledged is in etcd"
_GONE_HINT = (
    "stop all its coordinators, put etcd's data back or import an export under a new prefix ('strata journal import'), "
    "and start them. Committed checkpoints are in storage"
)
# Whoever only reads waits so long for an etcd that does not answer.
READ_S = 10.0


@dataclass
class Term:
    """A leadership: its fence, and the head as this leader wrote it last."""

    fence: int
    head: jp.Head
    head_revision: int


@dataclass(frozen=True)
class Loaded:
    """What a journal held at a revision."""

    state: bytes | None
    entries: list[Entry]
    last: int
    revision: int


class EtcdJournal:
    """A journal in etcd. Everyone may load it; only who began a term may write, and only while it leads.

    ``read_s`` is for how long a load waits for etcd.
    """

    def __init__(self, target: EtcdTarget, *, read_s: float = READ_S) -> None:
        self.keys = Keys(target.prefix)
        self.where = str(target)
        self._client = EtcdClient(target)
        self._read_s = read_s
        self._term: Term | None = None
        self._closed = threading.Event()

    def stand(self, replica: jp.Replica, *, lease: int) -> Term | None:
        """Try to become the leader, on a lease; None if another one leads. It may be repeated if no answer comes."""
        meta = t.find_meta(self.keys, self._client.range(t.read_meta(self.keys)))
        if meta.leader is not None and meta.leader.lease != lease:
            return None
        if meta.head is not None:
            decode_head(meta.head.SerializeToString(), where=self.where)
        begun = next_term(meta.head)
        request = t.campaign(self.keys, meta, begun, leader=replica.SerializeToString(), lease=lease)
        answer = self._client.transact(request)
        if answer.succeeded:
            return Term(answer.header.revision, begun, answer.header.revision)
        found = t.find_meta(self.keys, answer.responses[0].response_range, revision=answer.header.revision)
        if found.leader is None or found.leader.lease != lease or found.head is None:
            return None
        # It had won before, and the answer was lost.
        return Term(found.leader.create_revision, found.head, found.head_revision)

    def begin_term(self, term: Term) -> None:
        """Write as this leader from now on."""
        self._term = term

    def resign(self) -> None:
        """End the leadership, so that another one can lead at once; harmless if it has ended."""
        term, self._term = self._term, None
        if term is not None:
            try:
                self._client.transact(t.resign(self.keys, term.fence))
            except (EtcdUnavailableError, EtcdRefusedError) as error:
                log.warning("this coordinator could not resign; its leadership ends with its lease: %s", error)

    def load(self) -> tuple[bytes | None, list[Entry]]:
        """Return the last snapshot and the entries after it, as they are now."""
        loaded = self.load_at()
        return loaded.state, loaded.entries

    def load_at(self) -> Loaded:
        """Return what the journal holds, all of one revision."""
        while True:
            try:
                return self._load()
            except EtcdCompactedError:
                log.info("%s was compacted while it was read; it is read again", self.where)
            except (EtcdUnavailableError, EtcdRefusedError) as error:
                raise self.translate(error) from error

    def load_after(self, applied: int) -> Loaded | None:
        """Return only what came after an entry; None if a snapshot stands for some of that."""
        try:
            meta = self._read_meta()
            if meta.head is None or meta.head.snapshot.number > applied:
                return None
            return self._load_entries(meta, applied, None)
        except EtcdCompactedError:
            return None
        except (EtcdUnavailableError, EtcdRefusedError) as error:
            raise self.translate(error) from error

    def append(self, entries: Sequence[Entry]) -> None:
        """Make entries durable with one transaction; those that are too large for one are written in pieces before."""
        term = self._leading()
        head = jp.Head()
        head.CopyFrom(term.head)
        head.sequence += 1
        first, head.last = head.last + 1, head.last + len(entries)
        pieces = cut(encode_batch(first, entries))
        puts = tuple((self.keys.batch(first, index), piece) for index, piece in enumerate(pieces))
        # All but one go ahead; the last makes all of them part of the journal, together with the head.
        for key, piece in puts[:-1]:
            self._put_piece(term, key, piece)
        self._write_head(term, head, t.write_head(self.keys, term.fence, term.head_revision, head, puts=puts[-1:]))

    def snapshot(self, state: bytes) -> None:
        """Write a snapshot in pieces, then let it stand for all entries until now."""
        term = self._leading()
        head = jp.Head()
        head.CopyFrom(term.head)
        head.sequence += 1
        pieces = cut(state)
        head.snapshot.CopyFrom(
            jp.Snapshot(
                number=head.last,
                pieces=len(pieces),
                size_bytes=len(state),
                digest=digest(state),
                term=head.term,
                sequence=head.sequence,
            )
        )
        for index, piece in enumerate(pieces):
            self._put_piece(term, self.keys.snapshot(head.snapshot, index), piece)
        kept = self.keys.snapshot(head.snapshot)
        deletes = (
            (self.keys.batches, self.keys.batch(head.last + 1)),
            (self.keys.snapshots, kept),
            (end_of(kept), end_of(self.keys.snapshots)),
        )
        self._write_head(term, head, t.write_head(self.keys, term.fence, term.head_revision, head, deletes=deletes))

    def close(self) -> None:
        """Let go of the connection; a write whose outcome is not known ends with CoordinatorLostError."""
        self._closed.set()
        self._client.close()

    def translate(self, error: EtcdUnavailableError | EtcdRefusedError) -> StrataError:
        """Return what an error of etcd means for this journal."""
        if isinstance(error, EtcdUnavailableError) or error.fault is Fault.TRANSIENT:
            return JournalUnavailableError(self.where, _advise(str(error)))
        return JournalBrokenError(self.where, f"etcd refuses it: {error}", hint=_HINT)

    def check_not_older(self, found: t.Meta, known: jp.Head) -> None:
        """Raise JournalBrokenError if etcd holds less of this journal than it did: it was wiped, or put back."""
        head = found.head or jp.Head()
        if head.version > FORMAT:
            return  # of a newer Strata, in which its numbers may mean something else
        if head.term < known.term or head.last < known.last:
            raise self._gone(found)

    def _gone(self, found: t.Meta) -> JournalBrokenError:
        there = "nothing" if found.head is None else f"{found.head.last} entries"
        problem = f"etcd holds {there} of it and held more before: it was wiped, or put back to an older state"
        return JournalBrokenError(self.where, problem, hint=_GONE_HINT)

    def _leading(self) -> Term:
        if self._term is None:
            raise NotLeaderError("", term=0)
        return self._term

    def _put_piece(self, term: Term, key: bytes, value: bytes) -> None:
        answer = self._insist(t.put_piece(self.keys, term.fence, key, value))
        if not answer.succeeded:
            raise NotLeaderError("", term=term.head.term)

    def _write_head(self, term: Term, head: jp.Head, request: ep.TxnRequest) -> None:
        answer = self._insist(request)
        if answer.succeeded:
            term.head, term.head_revision = head, answer.header.revision
            return
        found = t.find_meta(self.keys, answer.responses[0].response_range, revision=answer.header.revision)
        outcome = t.judge(head, found, fence=term.fence)
        if outcome is t.Outcome.WRITTEN:
            term.head, term.head_revision = head, found.head_revision
        elif outcome is t.Outcome.DEPOSED:
            raise NotLeaderError("", term=head.term)
        elif outcome is t.Outcome.GONE:
            raise self._gone(found)
        elif outcome is t.Outcome.LOST:
            raise CoordinatorLostError(self.where, waited_s=0.0)
        else:
            # The journal is read anew by whoever leads next, which finds out what it holds.
            log.error("%s: its head was changed by something else while this coordinator led", self.where)
            raise NotLeaderError("", term=head.term)

    def _insist(self, request: ep.TxnRequest) -> ep.TxnResponse:
        """Send a transaction until etcd says what became of it; each copy of it can be carried out only once."""
        begun_s = time.monotonic()
        is_unknown = False
        failures = 0
        while True:
            try:
                return self._client.transact(request)
            except EtcdUnavailableError as error:
                if not is_unknown:
                    log.warning("%s does not answer (%s); the same write is sent again", self.where, error)
                is_unknown = True
                failures = failures + 1 if error.is_answered else 0
                if failures >= MAX_FAILURES:
                    raise JournalBrokenError(self.where, f"etcd fails every time: {error}", hint=_HINT) from error
            except EtcdRefusedError as error:
                # An earlier copy may still be carried out, so this is no answer yet.
                if not is_unknown or error.fault is not Fault.TRANSIENT:
                    raise self.translate(error) from error
            if self._closed.wait(RETRY_S):
                raise CoordinatorLostError(self.where, waited_s=time.monotonic() - begun_s)

    def _read_meta(self) -> t.Meta:
        meta = t.find_meta(self.keys, self._client.read(t.read_meta(self.keys), give_up_s=self._read_s))
        if meta.head is not None:
            decode_head(meta.head.SerializeToString(), where=self.where)
        return meta

    def _load(self) -> Loaded:
        meta = self._read_meta()
        if meta.head is None:
            return Loaded(None, [], 0, meta.revision)
        snapshot, state = meta.head.snapshot, None
        if meta.head.HasField("snapshot"):
            prefix = self.keys.snapshot(snapshot)
            found = self._scan(prefix, end_of(prefix), meta.revision)
            state = join_pieces({index: kv.value for index, kv in enumerate(found)})
            if state is None or digest(state) != snapshot.digest:
                raise JournalDamagedError(
                    self.where, f"its snapshot of entry {snapshot.number} is incomplete or damaged"
                )
        return self._load_entries(meta, snapshot.number, state)

    def _load_entries(self, meta: t.Meta, applied: int, state: bytes | None) -> Loaded:
        reader = LogReader(self.keys, applied=applied, where=self.where)
        for kv in self._scan(self.keys.batch(applied + 1), end_of(self.keys.batches), meta.revision):
            reader.note(kv.key, kv.value)
        reader.head = meta.head
        entries = reader.take()
        return Loaded(state, entries, reader.applied, meta.revision)

    def _scan(self, start: bytes, end: bytes, revision: int) -> Iterator[ep.KeyValue]:
        while True:
            request = ep.RangeRequest(key=start, range_end=end, limit=PAGE_KEYS, revision=revision)
            page = self._client.insist(partial(self._client.range, request, timeout_s=PAGE_S), give_up_s=self._read_s)
            yield from page.kvs
            if not page.more:
                return
            start = page.kvs[-1].key + b"\0"


def _advise(problem: str) -> str:
    if "space exceeded" not in problem:
        return problem
    return (
        f"{problem}. etcd is out of space: compact and defragment it, then disarm its alarm "
        "(etcdctl compact, etcdctl defrag, etcdctl alarm disarm)"
    )
