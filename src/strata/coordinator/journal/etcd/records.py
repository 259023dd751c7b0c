"""The records of a journal in etcd: their keys, and values cut into pieces that etcd takes. Pure.

PREFIX/meta/head                     what the journal holds; every write changes it
PREFIX/meta/leader                   who leads; it hangs on the leader's lease, and its create_revision is the fence
PREFIX/batches/NUMBER.PIECE          entries that were written together, under the number of the first
PREFIX/snapshots/NUMBER.TERM.PIECE   the snapshot that stands for all entries up to a number
PREFIX/replicas/NAME                 where each coordinator is; it hangs on that one's lease
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash
from google.protobuf.message import DecodeError

from strata.coordinator.journal.entries import decode_entry, encode_entry
from strata.coordinator.journal.protocol import Entry
from strata.errors import JournalDamagedError, JournalVersionError
from strata.wire._generated import journal_pb2 as jp

FORMAT = 1
# One version older is read, so that replicas can be upgraded one after the other.
READABLE = (FORMAT - 1, FORMAT)
# etcd takes requests of 1.5 MiB unless it is told otherwise.
PIECE_BYTES = 1 << 20
# So many terms are remembered: a leader that was deposed that often ago no longer asks.
MAX_STARTS = 64


@dataclass(frozen=True)
class Keys:
    """The keys under a prefix."""

    prefix: str

    @property
    def all(self) -> bytes:
        """The prefix of all keys of a journal."""
        return f"{self.prefix}/".encode()

    @property
    def meta(self) -> bytes:
        """The prefix of head and leader, which are read together."""
        return self.all + b"meta/"

    @property
    def head(self) -> bytes:
        """The key of the head."""
        return self.meta + b"head"

    @property
    def leader(self) -> bytes:
        """The key of the leader."""
        return self.meta + b"leader"

    @property
    def batches(self) -> bytes:
        """The prefix of all batches."""
        return self.all + b"batches/"

    @property
    def snapshots(self) -> bytes:
        """The prefix of all pieces of snapshots."""
        return self.all + b"snapshots/"

    @property
    def replicas(self) -> bytes:
        """The prefix of what each replica says of itself."""
        return self.all + b"replicas/"

    def batch(self, first: int, piece: int = 0) -> bytes:
        """The key of a piece of a batch; keys sort as their numbers do."""
        return self.batches + b"%016x.%06x" % (first, piece)

    def snapshot(self, snapshot: jp.Snapshot, piece: int | None = None) -> bytes:
        """The key of a piece of a snapshot, or the prefix of all its pieces."""
        start = self.snapshots + b"%016x.%08x.%08x." % (snapshot.number, snapshot.term, snapshot.sequence)
        return start if piece is None else start + b"%06x" % piece


def digest(data: bytes) -> bytes:
    """Return the digest that a value is checked with."""
    return xxhash.xxh3_128_digest(data)


def cut(data: bytes) -> list[bytes]:
    """Return the pieces of a value, each encoded with its place and the digest of the whole."""
    count = max(1, -(-len(data) // PIECE_BYTES))
    whole = digest(data)
    return [
        jp.Piece(
            index=index, count=count, digest=whole, data=data[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
        ).SerializeToString()
        for index in range(count)
    ]


def join_pieces(found: Mapping[int, bytes]) -> bytes | None:
    """Return the value of pieces by their place; None if they are not all pieces of one value, unharmed.

    A piece beyond the count is left over from a longer value that never became part of the journal.
    """
    try:
        pieces = [jp.Piece.FromString(found[0])]
        pieces += [jp.Piece.FromString(found[index]) for index in range(1, pieces[0].count)]
    except (KeyError, DecodeError):
        return None
    data = b"".join(piece.data for piece in pieces)
    whole = digest(data)
    return data if all(piece.digest == whole for piece in pieces) else None


def encode_batch(first: int, entries: Sequence[Entry]) -> bytes:
    """Return the value of a batch."""
    batch = jp.Batch(first=first)
    for entry in entries:
        batch.entries.add(at_s=entry.at_s, command=encode_entry(entry))
    return batch.SerializeToString(deterministic=True)


def decode_batch(data: bytes, *, where: str) -> tuple[int, list[Entry]]:
    """Return the number of the first entry, and the entries."""
    try:
        batch = jp.Batch.FromString(data)
        entries = [decode_entry(entry.command, entry.at_s, where=where) for entry in batch.entries]
    except (DecodeError, ValueError) as error:
        raise JournalDamagedError(where, f"a batch cannot be read: {error}") from error
    return batch.first, entries


def decode_head(data: bytes, *, where: str) -> jp.Head:
    """Return a head that this version can read, or raise JournalDamagedError or JournalVersionError."""
    try:
        head = jp.Head.FromString(data)
    except DecodeError as error:
        raise JournalDamagedError(where, f"its head cannot be read: {error}") from error
    if head.version not in READABLE:
        known = f"versions {READABLE[0]} and {READABLE[-1]}"
        raise JournalVersionError(where, found=f"a format of version {head.version}", known=known)
    return head


def next_term(head: jp.Head | None) -> jp.Head:
    """Return the head with which a new term begins."""
    begun = jp.Head()
    if head is not None:
        begun.CopyFrom(head)
    begun.version, begun.term, begun.sequence = FORMAT, begun.term + 1, 0
    begun.starts.add(term=begun.term, last=begun.last)
    del begun.starts[:-MAX_STARTS]
    return begun
