"""Where a loader is in its data: exactly what was handed to the training loop, and nothing that was only read ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from strata.data.loading.shares import BatchCut, lease_of
from strata.data.option_checks import check_whole
from strata.errors import DamagedRecordError, PositionMismatchError
from strata.sharding.cursor import GlobalCursor, Spans, StickyCursor, cursor_from_json
from strata.sharding.shard_layout import ShardLayout

State: TypeAlias = dict[str, Any]
Cursor: TypeAlias = GlobalCursor | StickyCursor
# One row (shard, start, stop) of work, as the numbers that a loader counts with.
Row: TypeAlias = tuple[int, int, int]

_VERSION = 1
# Loaders that take shards on demand end an epoch at different steps. Nobody can compute what each of them had, so each
# tells it for some epochs that are behind it.
_KEPT_EPOCHS = 2
# Rows are gathered before they go into a cursor, which costs an array operation each time.
_MANY_ROWS = 4_096


class Position:
    """What was delivered of each epoch, as a state that names no rank and no worker.

    Recording a batch costs a few comparisons; the cursor is brought up to date when it is asked for. The end of an
    epoch and the beginning of the next are one position, and the state says the latter.
    """

    def __init__(
        self,
        layout: ShardLayout,
        fingerprint: State,
        cut: BatchCut,
        *,
        on_demand: bool = False,
        reported: bool = False,
        advise: Callable[[State], str] = lambda saved: "",
    ) -> None:
        """``fingerprint`` says what a state depends on; one with another is refused, with what ``advise`` says of it.

        ``on_demand``: what this loader gets of an epoch does not follow from its share.
        ``reported``: someone calls :meth:`take_delivered`.
        """
        share = cut.share
        self._layout = layout
        self._fingerprint = fingerprint
        self._cut = cut
        # In global order, what one rank says is true for all; only its workers know each a part.
        self._part = share.worker if layout.is_global else share.part
        self._parts = share.num_workers if layout.is_global else share.parts
        self._on_demand = on_demand
        self._kept_epochs = _KEPT_EPOCHS if on_demand else 0
        self._reported = reported
        self._advise = advise
        self._epoch = 0
        self._turn = 0
        self._cursors: dict[int, Cursor] = {}
        self._origins: dict[int, Cursor] = {}
        self._leased: dict[int, int] = {}
        self._fresh: list[tuple[int, list[Row]]] = []
        self._unreported: list[tuple[int, list[Row]]] = []
        self.last_rows: Sequence[Row] = ()
        """The rows of the batch that was delivered last."""

    @property
    def epoch(self) -> int:
        """The epoch whose work is under way; after its last batch, until one more is asked for, it is still that."""
        return self._epoch

    @property
    def next_epoch(self) -> int:
        """The epoch that the next batch is of, as a state says it."""
        if self.follows_dealer:
            return self._epoch
        return self._epoch + self._has_finished(self.cursor(self._epoch))

    @property
    def follows_dealer(self) -> bool:
        """Whether only the dealer knows what this loader has left of an epoch."""
        return self._reported and not self._layout.is_global

    @property
    def turn(self) -> int:
        """Which worker of a rank has the first batch of the epoch, in global order, where they take turns."""
        return self._turn

    @property
    def is_loaded(self) -> bool:
        """Whether this is within an epoch, where a state was taken, and nothing was delivered since."""
        self._fold()
        return bool(self._cursors) and self._cursors == self._origins

    def start(self, epoch: int) -> None:
        """Go to the beginning of an epoch; what was delivered of others is forgotten."""
        epoch = check_whole("epoch", epoch, least=0)
        self._epoch, self._turn, self._cursors, self._origins, self._leased = epoch, 0, {}, {}, {}
        self._fresh.clear()

    def begin_iteration(self) -> None:
        """Begin a new pass, which the first worker of a rank begins.

        A loop that knows its length takes the last batch and never asks for one more. So an epoch of which nothing is
        left is over, whether its end was asked for or not.
        """
        if not self._reported and self._has_finished(self.cursor(self._epoch)):
            self.end(self._epoch)
        self._turn = 0

    def begin_as(self, other: Position) -> None:
        """Go to where another position is that has a larger part of the same dataset.

        What that one delivered is then behind all who take over its work; but others who share the dataset with it do
        not know of it, so it must not have begun.
        """
        other._fold()
        if other._parts > 1 and other._cursors != other._origins:
            raise ValueError("this dataset was iterated already; open it anew to have its work done by several")
        self._epoch, self._cursors, self._origins = other.epoch, dict(other._cursors), dict(other._cursors)

    def origin(self, epoch: int) -> Cursor:
        """Return what was delivered of an epoch when all who share the dataset began together."""
        return self._origins.get(epoch) or self._new_cursor(epoch)

    def cursor(self, epoch: int) -> Cursor:
        """Return what was delivered of an epoch."""
        self._fold()
        return self._cursors.get(epoch) or self._new_cursor(epoch)

    def record(self, epoch: int, rows: Sequence[Row]) -> None:
        """Count rows as delivered."""
        _extend(self._fresh, epoch, rows)
        self.last_rows = rows
        if self._reported:
            _extend(self._unreported, epoch, rows)
        if len(self._fresh) > 1 or len(self._fresh[-1][1]) > _MANY_ROWS:
            self._fold()

    def end(self, epoch: int) -> None:
        """Go on to the epoch after this one, of which this loader has nothing left."""
        self._fold()
        origin = self.origin(epoch)
        if isinstance(origin, GlobalCursor):
            # The next epoch's first batch is for the worker after the one that has this epoch's last.
            batches = self._cut.count(origin.position, self._layout.total_samples)
            self._turn = (self._turn + batches) % self._cut.share.num_workers
        self._cursors.setdefault(epoch, self._new_cursor(epoch))
        self._epoch = epoch + 1
        self._cursors = {each: cursor for each, cursor in self._cursors.items() if each > epoch - self._kept_epochs}
        if self._parts == 1:
            self._origins = {each: cursor for each, cursor in self._origins.items() if each > epoch}

    def take_delivered(self) -> list[tuple[int, Spans]]:
        """Return what was delivered since the last call, as (epoch, rows of (shard, start, stop))."""
        taken, self._unreported = self._unreported, []
        return [(epoch, np.array(rows, dtype=np.int64)) for epoch, rows in taken]

    def to_state(self) -> State:
        """Return the position as values that JSON can hold.

        Of one of several parts, it is the state of that part: whether its epoch is over, and what it began with, tell
        :func:`~strata.data.loading.merging.merge_states` what all of them have had.
        """
        epoch, current = self._epoch, self.cursor(self._epoch)
        is_over = self._is_over(current)
        if self._parts == 1 and is_over and current != self._new_cursor(epoch):
            epoch, current = epoch + 1, self._cursors.get(epoch + 1) or self._new_cursor(epoch + 1)
        others = sorted(each for each in self._cursors if each > epoch - self._kept_epochs - 1 and each != epoch)
        state = {"version": _VERSION, "dataset": dict(self._fingerprint), **current.to_json()}
        if others:
            state["others"] = [self._cursors[each].to_json() for each in others]
        if self._parts > 1:
            state["parts"] = {
                "have": [self._part],
                "of": self._parts,
                "origins": [cursor.to_json() for _, cursor in sorted(self._origins.items())],
                "over": is_over,
                "turn": self._turn,
                "on_demand": self._on_demand,
            }
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken, or raise an error and stay."""
        check_version(state)
        parts = state.get("parts")
        if parts and (parts["have"], parts["of"]) != ([self._part], self._parts):
            raise ValueError(
                f"this is the position of {len(parts['have'])} of {parts['of']} loaders that share a dataset; bring "
                "the states of all of them together with merge_states, then load the result into each"
            )
        if (found := state.get("dataset")) != self._fingerprint:
            saved = found if isinstance(found, dict) else {}
            raise PositionMismatchError(saved, self._fingerprint, hint=self._advise(saved))
        cursors = {cursor.epoch: cursor for cursor in cursors_of(state)}
        epoch = int(state["epoch"])
        for cursor in cursors.values():
            if isinstance(cursor, GlobalCursor) != self._layout.is_global:
                kinds = ("global", "sticky") if self._layout.is_global else ("sticky", "global")
                raise PositionMismatchError({"order": kinds[1]}, {"order": kinds[0]})
            cursor.remaining(self._layout.order(epoch=cursor.epoch))
        origins = {each.epoch: each for each in map(cursor_from_json, parts["origins"])} if parts else cursors
        if not parts and cursors[epoch] != self._new_cursor(epoch) and self._nothing_left(cursors[epoch]):
            epoch += 1
        self._epoch = epoch
        self._turn = parts["turn"] if parts else 0
        self._cursors = {each: cursor for each, cursor in cursors.items() if parts or each >= epoch}
        self._origins = {each: cursor for each, cursor in origins.items() if parts or each >= epoch}
        self._leased = {}
        self._fresh.clear()
        self._unreported.clear()

    def _fold(self) -> None:
        """Bring the cursors up to date with what was recorded."""
        size = self._cut.global_batch_size
        for epoch, rows in self._fresh:
            cursor = self._cursors.get(epoch) or self._new_cursor(epoch)
            if isinstance(cursor, StickyCursor):
                order = self._layout.order(epoch=epoch)
                self._cursors[epoch] = cursor.advance(order, np.array(rows, dtype=np.int64))
            else:
                # The other ranks have the rest of the same global batch, so all of it is behind us.
                batches = -(-(rows[-1][2] - cursor.position) // size)
                stop = min(cursor.position + batches * size, self._layout.total_samples)
                self._cursors[epoch] = cursor.advance(stop - cursor.position)
        self._fresh.clear()

    def _new_cursor(self, epoch: int) -> Cursor:
        return GlobalCursor(epoch) if self._layout.is_global else StickyCursor(epoch)

    def _has_finished(self, cursor: Cursor) -> bool:
        """Whether this loader has delivered its last batch of the cursor's epoch; not where it had none."""
        return cursor != self.origin(cursor.epoch) and self._is_over(cursor)

    def _is_over(self, cursor: Cursor) -> bool:
        """Whether this loader has no batch left of the cursor's epoch."""
        if self._parts == 1 or self._layout.is_global or self._on_demand:
            return self._nothing_left(cursor)
        origin, share = self.origin(cursor.epoch), self._cut.share
        assert isinstance(origin, StickyCursor)
        if cursor.epoch not in self._leased:
            lease = lease_of(origin, self._layout.order(epoch=cursor.epoch), share.part, share.parts)
            self._leased = {cursor.epoch: int((lease[:, 2] - lease[:, 1]).sum())}
        left = self._leased[cursor.epoch] - (cursor.consumed.count - origin.consumed.count)
        return left < (self._cut.batch_size if self._cut.drop_last else 1)

    def _nothing_left(self, cursor: Cursor) -> bool:
        """Whether all loaders together have no batch left of the cursor's epoch."""
        left = cursor.remaining(self._layout.order(epoch=cursor.epoch)).count
        # Only where one loader has all of it does a rest that fills no batch follow from the rest of all.
        dropped = self._cut.drop_last and (self._parts == 1 or self._layout.is_global)
        return left < (self._cut.global_batch_size if dropped else 1)


def cursors_of(state: Mapping[str, Any]) -> list[Cursor]:
    """Return the cursors of all epochs that a state speaks of."""
    others = state.get("others", [])
    if not isinstance(others, list):
        raise DamagedRecordError("data position", "its other epochs are not a list")
    return [cursor_from_json({**state}), *map(cursor_from_json, others)]


def check_version(state: Mapping[str, Any]) -> None:
    """Raise DamagedRecordError unless this release can read the state."""
    if not isinstance(state, Mapping):
        raise DamagedRecordError("data position", f"it is a {type(state).__name__} and not what state_dict() gave")
    version = state.get("version")
    if version != _VERSION:
        raise DamagedRecordError("data position", f"it is of version {version!r}; this release reads {_VERSION}")


def _extend(log: list[tuple[int, list[Row]]], epoch: int, rows: Sequence[Row]) -> None:
    """Append rows, joining those that continue the last one: of a shard read in sequence, one row stays."""
    if not log or log[-1][0] != epoch:
        log.append((epoch, []))
    known = log[-1][1]
    for row in rows:
        if known and known[-1][0] == row[0] and known[-1][2] == row[1]:
            known[-1] = (row[0], known[-1][1], row[2])
        else:
            known.append(row)
