"""Datasets of documents as datasets of sequences or padded batches; what is carried over is in the position."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from strata.data.dataset import Dataset
from strata.data.dataset_plan import Plan
from strata.data.loading.batches import Batch, Target, check_target, convert
from strata.data.loading.dealer import Dealer
from strata.data.loading.function_names import name_function
from strata.data.loading.merging import merge_states
from strata.data.loading.position import State
from strata.data.loading.shares import Share
from strata.data.option_checks import check_flag, check_whole
from strata.data.text.packing import (
    Assembler,
    LengthBuckets,
    Strategy,
    Tokens,
    make_packer,
    pad_documents,
    stack_sequences,
)
from strata.errors import DamagedRecordError, PositionMismatchError

T = TypeVar("T")

_VERSION = 1
# What is given for each rank, and kept in a position for all that share a batch.
_OF_ALL_RANKS = ("batch_size", "batch_tokens")


class Collate(Protocol):
    """Makes a batch of what came out of an assembler, and gives each of several ranks its part of it."""

    def __call__(self, groups: Sequence[Sequence[Tokens]], rank: int, world_size: int) -> dict[str, Any]:
        """Return the part of one rank."""
        ...


class AssembledDataset:
    """Batches that are put together from the documents of a dataset, exactly resumable at every batch.

    Its state holds the dataset's position and all tokens that were read and not delivered. Not for several threads.
    In ``sticky`` and ``dynamic`` order each rank assembles its own documents. In ``global`` order every rank assembles
    those of all and takes its part of each batch, so the batches are the same for any number of ranks.
    """

    def __init__(
        self,
        dataset: Dataset,
        assembler: Assembler,
        collate: Collate,
        *,
        groups: int,
        about: dict[str, Any],
        column: str,
        pad_id: int,
        to: Target,
        drop_last: bool,
    ) -> None:
        """``groups`` is how many of what comes out of the assembler make a batch of all who share it."""
        check_target(to)
        check_flag("drop_last", drop_last)
        share = dataset.plan.share
        self._rank, self._world_size = (share.rank, share.world_size) if dataset.plan.layout.is_global else (0, 1)
        self._dataset = dataset if self._world_size == 1 else dataset.with_share(Share())
        self._assembler = assembler
        self._collate = collate
        self._groups = groups
        self._about = about
        self._column = column
        self._pad_id = pad_id
        self._to = to
        self._drop_last = drop_last
        # What came out of the assembler and was not delivered.
        self._ready: list[list[Tokens]] = []
        # The epoch that is being assembled; when the dataset is past it, only what is left is to be delivered.
        self._epoch: int | None = None

    @property
    def dataset(self) -> Dataset:
        """Where documents come from."""
        return self._dataset

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of: after the last batch of one it is the next, as in a state.

        An iteration through several epochs packs them as one stream; there it is the epoch of the next document.
        """
        return self._dataset.epoch if self._epoch is None or self._has_finished() else self._epoch

    @property
    def is_shared(self) -> bool:
        """Whether several ranks take parts of each batch."""
        return self._world_size > 1

    def agreement(self) -> dict[str, Any]:
        """Return all that decides which tokens a worker gets and how, as values that JSON can hold.

        The transform is among it, unlike that of other datasets: it makes the tokens, and what they fill.
        """
        decided = {
            **self._about,
            "column": self._column,
            "pad_id": self._pad_id,
            "drop_last": self._drop_last,
            "transform": name_function(self._dataset.plan.options.transform),
        }
        if self._is_global or self._drop_last:
            # What is left at the end and dropped depends on it; else ranks may have batches of their own size.
            decided.setdefault("batch_size", self._groups)
        return {f"assembled.{name}": value for name, value in decided.items()}

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._document_batches():
            if self._column not in batch:
                raise ValueError(f"there is no column {self._column!r}; the columns are {', '.join(batch)}")
            for document in batch[self._column]:
                self._ready += self._assembler.add(_tokens_of(document, self._column))
            yield from self._deliver()
        self._ready += [] if self._drop_last else self._assembler.flush()
        yield from self._deliver()
        if self._ready and not self._drop_last:
            last, self._ready = self._ready, []
            yield self._make(last)
        self._clear()

    def state_dict(self) -> State:
        """Return exactly what was delivered, as values that JSON can hold."""
        return {"version": _VERSION, "dataset": self._dataset.state_dict(), **self.carry()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken."""
        self._check(state)
        self._dataset.load_state_dict(state["dataset"])
        self._hold([state])
        self._epoch = state["epoch"]

    def carry(self) -> State:
        """Return what was read and not delivered, for who keeps the position of the documents by other means."""
        return {
            "about": self._about,
            "ready": [[_encode(each) for each in group] for group in self._ready],
            "carry": [[_encode(each) for each in group] for group in self._assembler.carry()],
            "epoch": self._epoch,
        }

    def restore_carry(self, states: Sequence[Mapping[str, Any]], *, rank: int, world_size: int) -> None:
        """Take this rank's part of what :meth:`carry` gave on all ranks at one step; the dataset is there already."""
        for state in states:
            self._check({"version": _VERSION, **state})
        self._hold(_deal(states, rank, world_size, is_global=self._is_global))
        begun = [state["epoch"] for state in states if state["ready"] or state["carry"]]
        # An epoch whose documents were all read is over for the dataset, and not for what is left of it here.
        self._epoch = min(begun) if begun and min(begun) < self._dataset.epoch else None

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; what was carried over is dropped."""
        self._dataset.set_epoch(epoch)
        self._hold([])
        self._epoch = None

    def set_share(self, rank: int, world_size: int) -> None:
        """Take another part of each batch; only in ``global`` order, where all ranks assemble the same."""
        assert self._is_global
        self._rank, self._world_size = rank, world_size

    def with_dealer(self, dealer: Callable[[Plan], Dealer]) -> Self:
        """Return this dataset, from its beginning, with documents that a dealer hands out."""
        made = copy.copy(self)
        made._dataset = self._dataset.with_dealer(dealer)
        made._assembler = copy.deepcopy(self._assembler)
        made._hold([])
        made._epoch = None
        return made

    def close(self) -> None:
        """End threads and processes of the dataset."""
        self._dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def _is_global(self) -> bool:
        return self._dataset.plan.layout.is_global

    def _check(self, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise DamagedRecordError("data position", f"it is a {type(state).__name__} and not what state_dict() gave")
        if state.get("about") != self._about or state.get("version") != _VERSION:
            saved = dict(state.get("about") or {})
            raise PositionMismatchError(saved, self._about, hint=self._advise(saved))

    def _advise(self, saved: Mapping[str, Any]) -> str:
        """Return which size was meant, if a position differs only in one that counts all ranks."""
        differ = [name for name in {**saved, **self._about} if saved.get(name) != self._about.get(name)]
        size = saved.get(differ[0]) if len(differ) == 1 and differ[0] in _OF_ALL_RANKS and self._is_global else None
        if size is None:
            return ""
        counts = f"{differ[0]} counts all ranks that share a batch, here {self._world_size}"
        if size % self._world_size:
            return f"{counts}: use a number of ranks that divides {size}"
        return f"{counts}: give {differ[0]}={size // self._world_size} with so many ranks"

    def _hold(self, states: Sequence[Mapping[str, Any]]) -> None:
        carry = [[_decode(each) for each in group] for state in states for group in state["carry"]]
        self._ready = [[_decode(each) for each in group] for state in states for group in state["ready"]]
        self._ready += self._assembler.restore(carry)

    def _document_batches(self) -> Iterator[Batch]:
        """Return what is left of the documents of an iteration that was begun, or those of a new one."""
        epochs = self._dataset.plan.options.epochs
        if self._epoch is not None and epochs == 1 and self._has_finished():
            self._clear()
        if self._epoch is None:
            batches = iter(self._dataset)
            self._epoch = self._dataset.epoch
            return batches
        if epochs is None or (epochs == 1 and self._epoch == self._dataset.epoch):
            return iter(self._dataset)
        # It ends where it would have ended: the dataset by itself would go through as many epochs again.
        return iter(()) if epochs == 1 else self._dataset.resume(until_epoch=self._epoch + epochs)

    def _has_finished(self) -> bool:
        """Whether the iteration under way has no batch left of what was read, and the dataset is past its epoch."""
        if self._dataset.plan.options.epochs != 1:
            return True
        has_rest = bool(self._ready or any(self._assembler.carry())) and not self._drop_last
        return self._dataset.epoch != self._epoch and len(self._ready) < self._groups and not has_rest

    def _clear(self) -> None:
        self._ready, self._epoch = [], None
        if self._drop_last:
            self._assembler.restore([])

    def _deliver(self) -> Iterator[Batch]:
        while len(self._ready) >= self._groups:
            # Before it is handed out, so that a state taken after it does not have it.
            groups, self._ready = self._ready[: self._groups], self._ready[self._groups :]
            yield self._make(groups)

    def _make(self, groups: Sequence[Sequence[Tokens]]) -> Batch:
        return convert(self._collate(groups, self._rank, self._world_size), self._to)


def pack_dataset(
    dataset: Dataset,
    *,
    sequence_length: int,
    batch_size: int,
    strategy: Strategy = "greedy",
    column: str = "tokens",
    pad_id: int = 0,
    bins: int = 64,
    to: Target = "numpy",
    drop_last: bool = False,
) -> AssembledDataset:
    """Return batches of ``batch_size`` sequences of ``sequence_length`` tokens, packed from a dataset's documents.

    ``greedy`` fills every place and cuts documents where a sequence ends; ``best_fit`` keeps documents whole and pads.
    """
    _check_dataset(dataset)
    batch_size = check_whole("batch_size", batch_size, least=1)
    pad_id = check_whole("pad_id", pad_id, least=-(2**63), most=2**63 - 1)
    sequence_length = check_whole("sequence_length", sequence_length, least=1)
    bins = check_whole("bins", bins, least=1)

    def collate(groups: Sequence[Sequence[Tokens]], rank: int, world_size: int) -> dict[str, Any]:
        return stack_sequences(_part_of(groups, rank, world_size), sequence_length, pad_id=pad_id)

    about = {"packing": strategy, "sequence_length": sequence_length, "bins": bins}
    assembler = make_packer(strategy, sequence_length, bins=bins)
    groups = batch_size * _ranks_together(dataset)
    return AssembledDataset(
        dataset,
        assembler,
        collate,
        groups=groups,
        about=about,
        column=column,
        pad_id=pad_id,
        to=to,
        drop_last=drop_last,
    )


def bucket_dataset(
    dataset: Dataset,
    *,
    boundaries: Sequence[int],
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    column: str = "tokens",
    pad_id: int = 0,
    to: Target = "numpy",
    drop_last: bool = False,
) -> AssembledDataset:
    """Return batches of documents of similar length, padded to the boundary of their bucket."""
    _check_dataset(dataset)
    batch_size = check_whole("batch_size", batch_size, least=1, or_none=True) or None
    batch_tokens = check_whole("batch_tokens", batch_tokens, least=1, or_none=True) or None
    pad_id = check_whole("pad_id", pad_id, least=-(2**63), most=2**63 - 1)
    # Of all ranks that share a batch: so a state is good for another number of ranks with the same batches.
    ranks = _ranks_together(dataset)
    batch_size = None if batch_size is None else batch_size * ranks
    batch_tokens = None if batch_tokens is None else batch_tokens * ranks
    buckets = LengthBuckets(boundaries, batch_size=batch_size, batch_tokens=batch_tokens)

    def collate(groups: Sequence[Sequence[Tokens]], rank: int, world_size: int) -> dict[str, Any]:
        (documents,) = groups
        length = buckets.boundaries[max(buckets.bucket_of(len(each)) for each in documents)]
        return pad_documents(_part_of(documents, rank, world_size), length, pad_id=pad_id)

    about = {"buckets": buckets.boundaries, "batch_size": batch_size, "batch_tokens": batch_tokens}
    return AssembledDataset(
        dataset, buckets, collate, groups=1, about=about, column=column, pad_id=pad_id, to=to, drop_last=drop_last
    )


def merge_assembled_states(states: Sequence[Mapping[str, Any]], *, world_size: int | None = None) -> list[State]:
    """Return, of the states of all ranks after one step, one for each of ``world_size`` ranks (default: as many).

    What was carried over is dealt to the ranks; with as many ranks as before, each has its own again.
    """
    if not states:
        raise ValueError("there are no states; give those of all ranks")
    count = len(states) if world_size is None else check_whole("world_size", world_size, least=1)
    for state in states:
        _check_fields(state)
    if any(state["about"] != states[0]["about"] for state in states):
        raise PositionMismatchError(dict(states[0]["about"]), dict(states[-1]["about"]))
    merged = merge_states([state["dataset"] for state in states])
    # The first epoch that some rank is not through with; a rank that is has nothing left of it to deliver.
    epoch = min(state["dataset"]["epoch"] if state["epoch"] is None else state["epoch"] for state in states)
    is_global = merged["order"] == "global"
    made: list[State] = []
    for rank in range(count):
        mine = _deal(states, rank, count, is_global=is_global)
        held = {key: [group for state in mine for group in state[key]] for key in ("ready", "carry")}
        made.append({**states[0], "dataset": merged, **held, "epoch": epoch})
    return made


def _deal(
    states: Sequence[Mapping[str, Any]], rank: int, world_size: int, *, is_global: bool
) -> Sequence[Mapping[str, Any]]:
    """Return the states whose carry a rank takes over; in ``global`` order all ranks carry the same."""
    return states[:1] if is_global else states[rank::world_size]


def _check_fields(state: Any) -> None:
    if not isinstance(state, Mapping) or not {"about", "dataset", "epoch", "ready", "carry"} <= state.keys():
        raise DamagedRecordError("data position", "it has not the fields of a packed or bucketed dataset's state")


def _check_dataset(dataset: Any) -> None:
    if not isinstance(dataset, Dataset):
        raise TypeError(f"dataset is {type(dataset).__name__}; give what strata.data.open_dataset returned")


def _tokens_of(document: Any, column: str) -> Tokens:
    """Return one document; one that is missing has no tokens."""
    tokens = np.asarray([] if document is None else document)
    if tokens.ndim == 1 and tokens.size == 0:
        return np.empty(0, np.int64)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ValueError(
            f"column {column!r} has {document!r:.80}, which is no list of token numbers; tokenize it first, as with "
            "transform=Tokenize(...), or name another column"
        )
    return tokens


def _ranks_together(dataset: Dataset) -> int:
    """Return how many ranks share each batch that is assembled."""
    return dataset.plan.share.world_size if dataset.plan.layout.is_global else 1


def _part_of(items: Sequence[T], rank: int, world_size: int) -> Sequence[T]:
    """Return the items of one rank, in sequence, evenly to within one."""
    small, extra = divmod(len(items), world_size)
    first = rank * small + min(rank, extra)
    return items[first : first + small + (rank < extra)]


def _encode(tokens: Tokens) -> list[str]:
    return [tokens.dtype.str, base64.b64encode(np.ascontiguousarray(tokens).tobytes()).decode()]


def _decode(found: Sequence[str]) -> Tokens:
    dtype, data = found
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype))
