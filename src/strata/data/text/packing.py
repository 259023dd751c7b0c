"""Packing documents of any length into sequences of one length; pure, and what is not yet full is a value to keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from strata.data.option_checks import check_whole

Tokens: TypeAlias = npt.NDArray[Any]
Strategy: TypeAlias = Literal["greedy", "best_fit"]
# Tokens that are no target: the end of a document, and padding.
IGNORED = -100


class Assembler(Protocol):
    """Makes batches of documents. ``carry`` is all that was added and has not come out."""

    def add(self, document: Tokens) -> Iterator[list[Tokens]]:
        """Take a document; yield what is full now, as the documents of one sequence or batch."""
        ...

    def flush(self) -> Iterator[list[Tokens]]:
        """Yield what is left at the end of an epoch, full or not."""
        ...

    def carry(self) -> list[list[Tokens]]:
        """Return what is held, group by group."""
        ...

    def restore(self, carry: Sequence[Sequence[Tokens]]) -> list[list[Tokens]]:
        """Hold what ``carry`` gave, of one rank or of several; return what of several is full."""
        ...


class GreedyPacker:
    """Fills one sequence after the other; a document that does not fit goes on in the next. Nothing is padded."""

    def __init__(self, sequence_length: int) -> None:
        self._length = _check_length(sequence_length)
        self._open: list[Tokens] = []
        self._used = 0

    def add(self, document: Tokens) -> Iterator[list[Tokens]]:
        """Yield each sequence that this document fills."""
        while len(document):
            piece, document = document[: self._length - self._used], document[self._length - self._used :]
            self._open.append(piece)
            self._used += len(piece)
            if self._used == self._length:
                full, self._open, self._used = self._open, [], 0
                yield full

    def flush(self) -> Iterator[list[Tokens]]:
        """Yield the sequence that is not full."""
        if self._open:
            last, self._open, self._used = self._open, [], 0
            yield last

    def carry(self) -> list[list[Tokens]]:
        """Return the documents of the open sequence."""
        return [list(self._open)] if self._open else []

    def restore(self, carry: Sequence[Sequence[Tokens]]) -> list[list[Tokens]]:
        """Hold one open sequence; those of several ranks are packed together."""
        self._open, self._used = [], 0
        return [full for group in carry for document in group for full in self.add(document)]


class BestFitPacker:
    """Puts each document whole where the least room is left over; only one longer than a sequence is cut.

    At most ``bins`` sequences are open; when a document fits into none of them, the fullest is closed.
    """

    def __init__(self, sequence_length: int, *, bins: int = 64) -> None:
        self._length = _check_length(sequence_length)
        self._bins = check_whole("bins", bins, least=1)
        self._open: list[list[Tokens]] = []
        self._room: list[int] = []

    def add(self, document: Tokens) -> Iterator[list[Tokens]]:
        """Yield each sequence that is full, or is closed to make place."""
        while len(document) > self._length:
            yield [document[: self._length]]
            document = document[self._length :]
        if not len(document):
            return
        fitting = [(room, place) for place, room in enumerate(self._room) if room >= len(document)]
        if fitting:
            _, place = min(fitting)
            self._open[place].append(document)
            self._room[place] -= len(document)
        else:
            if len(self._open) == self._bins:
                yield self._close(min(range(self._bins), key=lambda place: (self._room[place], place)))
            place = len(self._open)
            self._open.append([document])
            self._room.append(self._length - len(document))
        if self._room[place] == 0:
            yield self._close(place)

    def flush(self) -> Iterator[list[Tokens]]:
        """Yield the open sequences, the oldest first."""
        while self._open:
            yield self._close(0)

    def carry(self) -> list[list[Tokens]]:
        """Return the documents of each open sequence."""
        return [list(documents) for documents in self._open]

    def restore(self, carry: Sequence[Sequence[Tokens]]) -> list[list[Tokens]]:
        """Hold these open sequences; of more than there are bins, the fullest are closed."""
        self._open = [list(documents) for documents in carry]
        self._room = [self._length - sum(map(len, documents)) for documents in self._open]
        closed = []
        while len(self._open) > self._bins:
            closed.append(self._close(min(range(len(self._open)), key=lambda place: (self._room[place], place))))
        return closed

    def _close(self, place: int) -> list[Tokens]:
        del self._room[place]
        return self._open.pop(place)


class LengthBuckets:
    """Puts documents of similar length into one batch: the smallest of ``boundaries`` that holds them.

    A batch of a bucket is full at ``batch_tokens`` tokens with padding, or at ``batch_size`` documents. What is longer
    than the last boundary is cut there.
    """

    def __init__(
        self, boundaries: Sequence[int], *, batch_size: int | None = None, batch_tokens: int | None = None
    ) -> None:
        self.boundaries = _check_boundaries(boundaries)
        if not self.boundaries:
            raise ValueError(f"boundaries are {list(boundaries)}; use lengths of 1 or more")
        if (batch_size is None) == (batch_tokens is None):
            raise ValueError("give batch_size or batch_tokens, and not both")
        self._limits = [
            batch_size if batch_size is not None else max(1, (batch_tokens or 0) // boundary)
            for boundary in self.boundaries
        ]
        if min(self._limits) < 1:
            raise ValueError(f"batch_size is {batch_size}; use 1 or more")
        self._open: list[list[Tokens]] = [[] for _ in self.boundaries]

    def bucket_of(self, length: int) -> int:
        """Return the number of the bucket for documents of this length."""
        return min(int(np.searchsorted(self.boundaries, length)), len(self.boundaries) - 1)

    def add(self, document: Tokens) -> Iterator[list[Tokens]]:
        """Yield the batch that this document fills."""
        place = self.bucket_of(len(document))
        self._open[place].append(document[: self.boundaries[place]])
        if len(self._open[place]) == self._limits[place]:
            full, self._open[place] = self._open[place], []
            yield full

    def flush(self) -> Iterator[list[Tokens]]:
        """Yield what each bucket holds."""
        for place, held in enumerate(self._open):
            if held:
                self._open[place] = []
                yield held

    def carry(self) -> list[list[Tokens]]:
        """Return what each bucket holds."""
        return [list(held) for held in self._open if held]

    def restore(self, carry: Sequence[Sequence[Tokens]]) -> list[list[Tokens]]:
        """Hold these documents, each in its bucket."""
        self._open = [[] for _ in self.boundaries]
        return [full for held in carry for document in held for full in self.add(document)]


def make_packer(strategy: Strategy, sequence_length: int, *, bins: int = 64) -> GreedyPacker | BestFitPacker:
    """Return the packer of a strategy."""
    if strategy == "greedy":
        return GreedyPacker(sequence_length)
    if strategy == "best_fit":
        return BestFitPacker(sequence_length, bins=bins)
    raise ValueError(f"strategy is {strategy!r}; use greedy or best_fit")


def stack_sequences(sequences: Sequence[Sequence[Tokens]], sequence_length: int, *, pad_id: int) -> dict[str, Any]:
    """Return packed sequences as one batch, with all that attention needs to keep documents apart.

    ``tokens``, ``labels`` (the next token of the same document, else -100), ``position_ids`` (from 0 in each document)
    and ``document_ids`` (-1 for padding) have a row per sequence. ``cu_seqlens`` has the bounds of all documents in the
    flat batch, as variable-length attention takes them; padding is a document of its own. ``max_seqlen`` is the
    longest.
    """
    shape = (len(sequences), sequence_length)
    tokens = np.full(shape, pad_id, np.int64)
    labels = np.full(shape, IGNORED, np.int64)
    positions = np.zeros(shape, np.int32)
    documents = np.full(shape, -1, np.int32)
    bounds = [0]
    for row, pieces in enumerate(sequences):
        at = 0
        for number, piece in enumerate(pieces):
            end = at + len(piece)
            tokens[row, at:end] = piece
            labels[row, at : end - 1] = piece[1:]
            positions[row, at:end] = np.arange(len(piece))
            documents[row, at:end] = number
            bounds.append(row * sequence_length + end)
            at = end
        if at < sequence_length:
            positions[row, at:] = np.arange(sequence_length - at)
            bounds.append((row + 1) * sequence_length)
    edges = np.array(bounds, np.int32)
    return {
        "tokens": tokens,
        "labels": labels,
        "position_ids": positions,
        "document_ids": documents,
        "cu_seqlens": edges,
        "max_seqlen": np.int32(np.diff(edges).max(initial=0)),
    }


def pad_documents(documents: Sequence[Tokens], length: int, *, pad_id: int) -> dict[str, Any]:
    """Return documents as one batch of this length, with a mask of what is no padding."""
    tokens = np.full((len(documents), length), pad_id, np.int64)
    mask = np.zeros(tokens.shape, np.bool_)
    for row, document in enumerate(documents):
        tokens[row, : len(document)] = document
        mask[row, : len(document)] = True
    labels = np.full(tokens.shape, IGNORED, np.int64)
    labels[:, :-1][mask[:, 1:]] = tokens[:, 1:][mask[:, 1:]]
    return {"tokens": tokens, "labels": labels, "attention_mask": mask}


def _check_boundaries(boundaries: Any) -> list[int]:
    if isinstance(boundaries, str) or not isinstance(boundaries, Iterable):
        raise TypeError(f"boundaries is {boundaries!r}; use a list of lengths")
    return sorted({check_whole("a length of boundaries", each, least=1) for each in boundaries})


def _check_length(sequence_length: int) -> int:
    return check_whole("sequence_length", sequence_length, least=1)
