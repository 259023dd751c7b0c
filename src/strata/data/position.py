"""Where a loader is in its data: exactly what was handed to the training loop, and nothing that was only read ahead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from strata.errors import DamagedRecordError, PositionMismatchError
from strata.sharding.arrangement import Arrangement
from strata.sharding.cursor import GlobalCursor, Spans, StickyCursor, cursor_from_json
from strata.sharding.ranges import RangeSet

State: TypeAlias = dict[str, Any]
Cursor: TypeAlias = GlobalCursor | StickyCursor
# One row (shard, start, stop) of work, as the numbers that a loader counts with.
Row: TypeAlias = tuple[int, int, int]

_VERSION = 1
# Ranks that share a dataset end an epoch at slightly different steps. Each still tells what it had of the epoch before,
# so that a state that is taken just then is whole.
_KEPT_EPOCHS = 2
# Rows are gathered before they go into a cursor, which costs an array operation each time.
_MANY_ROWS = 4_096


class Tracker(Protocol):
    """What a loader tells of each batch, and where it learns which epoch to go through."""

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        ...

    def start(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        ...

    def record(self, epoch: int, rows: Sequence[Row]) -> None:
        """Count rows of work as delivered."""
        ...

    def end(self, epoch: int) -> None:
        """Go on to the epoch after this one."""
        ...

    def to_state(self) -> State:
        """Return the position as values that JSON can hold."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken, or raise an error and stay."""
        ...


class Position:
    """What was delivered of each epoch, as a state that names no rank and no worker.

    Recording a batch costs a few comparisons; the cursor is brought up to date when it is asked for.
    """

    def __init__(
        self,
        arrangement: Arrangement,
        fingerprint: State,
        *,
        global_batch_size: int,
        part: int = 0,
        parts: int = 1,
        reported: bool = False,
    ) -> None:
        """``fingerprint`` says what a state depends on; one with another is refused.

        ``part`` of ``parts`` is what this loader gets; ``reported``: someone calls :meth:`take_delivered`.
        """
        self._arrangement = arrangement
        self._fingerprint = fingerprint
        self._global_batch_size = global_batch_size
        self._part, self._parts = part, parts
        self._kept_epochs = 0 if parts == 1 or arrangement.is_global else _KEPT_EPOCHS
        self._reported = reported
        self._epoch = 0
        self._cursors: dict[int, Cursor] = {}
        self._origins: dict[int, Cursor] = {}
        self._fresh: list[tuple[int, list[Row]]] = []
        self._unreported: list[tuple[int, list[Row]]] = []

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._epoch

    def start(self, epoch: int) -> None:
        """Go to the beginning of an epoch; what was delivered of others is forgotten."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; use 0 or more")
        self._epoch, self._cursors, self._origins = epoch, {}, {}
        self._fresh.clear()

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
        if self._reported:
            _extend(self._unreported, epoch, rows)
        if len(self._fresh) > 1 or len(self._fresh[-1][1]) > _MANY_ROWS:
            self._fold()

    def end(self, epoch: int) -> None:
        """Go on to the epoch after this one, of which this loader has nothing left."""
        self._fold()
        self._cursors.setdefault(epoch, self._new_cursor(epoch))
        self._epoch = epoch + 1
        self._cursors = {each: cursor for each, cursor in self._cursors.items() if each > epoch - self._kept_epochs}
        self._origins = {each: cursor for each, cursor in self._origins.items() if each > epoch}

    def take_delivered(self) -> list[tuple[int, Spans]]:
        """Return what was delivered since the last call, as (epoch, rows of (shard, start, stop))."""
        taken, self._unreported = self._unreported, []
        return [(epoch, np.array(rows, dtype=np.int64)) for epoch, rows in taken]

    def to_state(self) -> State:
        """Return the position as values that JSON can hold."""
        self._fold()
        epoch, current = self._epoch, self.cursor(self._epoch)
        if self._is_finished(current):
            epoch, current = epoch + 1, self._cursors.get(epoch + 1) or self._new_cursor(epoch + 1)
        others = sorted(each for each in self._cursors if each > epoch - self._kept_epochs - 1 and each != epoch)
        state = {"version": _VERSION, "dataset": dict(self._fingerprint), **current.to_json()}
        if others:
            state["others"] = [self._cursors[each].to_json() for each in others]
        if self._parts > 1:
            origins = [cursor.to_json() for each, cursor in sorted(self._origins.items()) if each >= epoch]
            state["parts"] = {"have": [self._part], "of": self._parts, "origins": origins}
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to where the state was taken, or raise an error and stay."""
        _check_version(state)
        parts = state.get("parts")
        if parts and (parts["have"], parts["of"]) != ([self._part], self._parts):
            raise ValueError(
                f"this is the position of {len(parts['have'])} of {parts['of']} loaders that share a dataset; bring "
                "the states of all of them together with merge_states, then load the result into each"
            )
        if (found := state.get("dataset")) != self._fingerprint:
            raise PositionMismatchError(found if isinstance(found, dict) else {}, self._fingerprint)
        cursors = {cursor.epoch: cursor for cursor in _cursors_of(state)}
        epoch = int(state["epoch"])
        for cursor in cursors.values():
            if isinstance(cursor, GlobalCursor) != self._arrangement.is_global:
                kinds = ("global", "sticky") if self._arrangement.is_global else ("sticky", "global")
                raise PositionMismatchError({"order": kinds[1]}, {"order": kinds[0]})
            cursor.remaining(self._arrangement.order(epoch=cursor.epoch))
        origins = {each.epoch: each for each in map(cursor_from_json, parts["origins"])} if parts else cursors
        if self._is_finished(cursors[epoch]):
            epoch += 1
        self._epoch = epoch
        self._cursors = {each: cursor for each, cursor in cursors.items() if parts or each >= epoch}
        self._origins = {each: cursor for each, cursor in origins.items() if each >= epoch}
        self._fresh.clear()
        self._unreported.clear()

    def _fold(self) -> None:
        """Bring the cursors up to date with what was recorded."""
        for epoch, rows in self._fresh:
            cursor = self._cursors.get(epoch) or self._new_cursor(epoch)
            if isinstance(cursor, StickyCursor):
                order = self._arrangement.order(epoch=epoch)
                self._cursors[epoch] = cursor.advance(order, np.array(rows, dtype=np.int64))
            else:
                # The other ranks have the rest of the same global batch, so all of it is behind us.
                batches = -(-(rows[-1][2] - cursor.position) // self._global_batch_size)
                stop = min(cursor.position + batches * self._global_batch_size, self._arrangement.total_samples)
                self._cursors[epoch] = cursor.advance(stop - cursor.position)
        self._fresh.clear()

    def _new_cursor(self, epoch: int) -> Cursor:
        return GlobalCursor(epoch) if self._arrangement.is_global else StickyCursor(epoch)

    def _is_finished(self, cursor: Cursor) -> bool:
        return cursor.remaining(self._arrangement.order(epoch=cursor.epoch)).count == 0


def merge_states(states: Iterable[Mapping[str, Any]]) -> State:
    """Return the position of a job from those of all its ranks, taken at the same step.

    What any rank has delivered is delivered. In ``global`` order all states are the same; others are refused, because
    some rank would miss a batch or see one twice. A state from which ranks are missing says so, and is not loaded.
    """
    given = list(states)
    if not given:
        raise ValueError("there are no states to merge; give that of each rank")
    for state in given:
        _check_version(state)
        if state["dataset"] != given[0]["dataset"] or state["order"] != given[0]["order"]:
            raise PositionMismatchError(
                {"order": state["order"], **state["dataset"]}, {"order": given[0]["order"], **given[0]["dataset"]}
            )
    if given[0]["order"] == "global":
        positions = {(state["epoch"], state["position"]) for state in given}
        if len(positions) > 1:
            raise ValueError(
                f"the ranks are at different (epoch, position): {', '.join(map(str, sorted(positions)))}; take the "
                "state of each rank after the same step"
            )
        return dict(given[0])
    return _merge_sticky(given)


def latest_state(states: Iterable[Mapping[str, Any]]) -> State:
    """Return the position of one rank from those of its torch workers.

    In ``global`` order they take turns by whole batches, so the one that is furthest says where the rank is.
    """
    given = list(states)
    if not given or given[0].get("order") != "global":
        return merge_states(given)
    parts = _merge_parts([state["parts"] for state in given if "parts" in state])
    latest = dict(max(given, key=lambda state: (state["epoch"], state["position"])))
    latest.pop("parts", None)
    return {**latest, "parts": parts} if parts else latest


def _merge_sticky(states: Sequence[Mapping[str, Any]]) -> State:
    current = min(int(state["epoch"]) for state in states)
    consumed: dict[int, RangeSet] = {current: RangeSet()}
    for state in states:
        cursors = {cursor.epoch: cursor for cursor in _cursors_of(state)}
        if current not in cursors:
            raise ValueError(
                f"a rank is in epoch {state['epoch']} and no longer knows what it had of epoch {current}, where "
                "another still is; let ranks meet at the end of an epoch"
            )
        for epoch, cursor in cursors.items():
            assert isinstance(cursor, StickyCursor)
            if epoch >= current:
                consumed[epoch] = consumed.get(epoch, RangeSet()).union(cursor.consumed)
    first, *others = (StickyCursor(epoch, consumed[epoch]).to_json() for epoch in sorted(consumed))
    merged = {"version": _VERSION, "dataset": dict(states[0]["dataset"]), **first}
    if others:
        merged["others"] = others
    if parts := _merge_parts([state["parts"] for state in states if "parts" in state]):
        merged["parts"] = parts
    return merged


def _merge_parts(given: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return which parts are here, or None when none is missing."""
    if not given:
        return None
    counts = {parts["of"] for parts in given}
    if len(counts) > 1:
        raise ValueError(f"the states are of {', '.join(map(str, sorted(counts)))} loaders; merge those of one moment")
    have = sorted({part for parts in given for part in parts["have"]})
    return None if len(have) == given[0]["of"] else {"have": have, "of": given[0]["of"]}


def _cursors_of(state: Mapping[str, Any]) -> list[Cursor]:
    others = state.get("others", [])
    if not isinstance(others, list):
        raise DamagedRecordError("data position", "its other epochs are not a list")
    return [cursor_from_json({**state}), *map(cursor_from_json, others)]


def _check_version(state: Mapping[str, Any]) -> None:
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
