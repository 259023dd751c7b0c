"""The position of a job from those of its ranks, and of a rank from those of its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.data.loading.position import State, check_version, cursors_of
from strata.data.loading.shares import lease_of
from strata.errors import PositionMismatchError
from strata.sharding.cursor import GlobalCursor, StickyCursor, cursor_from_json, span_positions
from strata.sharding.ranges import RangeSet
from strata.sharding.shard_layout import ShardLayout


def merge_states(states: Iterable[Mapping[str, Any]]) -> State:
    """Return the position of a job from those of all its ranks, taken at the same step.

    What any rank has delivered is delivered. Ranks may be in different epochs, also by several, as long as they made
    equal steps. In ``global`` order all states are then the same; others are refused, because some rank would miss a
    batch or see one twice. A state from which ranks are missing says so, and is not loaded.
    """
    given = list(states)
    if not given:
        raise ValueError("there are no states to merge; give that of each rank")
    for state in given:
        check_version(state)
        if state["dataset"] != given[0]["dataset"] or state["order"] != given[0]["order"]:
            raise PositionMismatchError(
                {"order": state["order"], **state["dataset"]}, {"order": given[0]["order"], **given[0]["dataset"]}
            )
    if given[0]["order"] != "global":
        return _merge_sticky(given)
    positions = {_global_place(state) for state in given}
    if len(positions) > 1:
        raise ValueError(
            f"the ranks are at different (epoch, position): {', '.join(map(str, sorted(positions)))}; take the "
            "state of each rank after the same step"
        )
    return _global_state(given[0], *positions)


def latest_state(states: Iterable[Mapping[str, Any]]) -> State:
    """Return the position of one rank from those of its torch workers.

    In ``global`` order they take turns by whole batches, so the one that is furthest says where the rank is.
    """
    given = list(states)
    if not given or given[0].get("order") != "global":
        return merge_states(given)
    parts = _merge_parts([state["parts"] for state in given if "parts" in state])
    merged = _global_state(given[0], max(map(_global_place, given)))
    return {**merged, "parts": parts} if parts else merged


def _global_place(state: Mapping[str, Any]) -> tuple[int, int]:
    # The end of an epoch is the beginning of the next.
    is_over = state.get("parts", {}).get("over", False)
    return (state["epoch"] + 1, 0) if is_over else (state["epoch"], state["position"])


def _global_state(state: Mapping[str, Any], place: tuple[int, int]) -> State:
    return {"version": state["version"], "dataset": dict(state["dataset"]), **GlobalCursor(*place).to_json()}


@dataclass
class _Part:
    """One state, in terms of what it says of each epoch."""

    state: Mapping[str, Any]
    cursors: dict[int, StickyCursor] = field(init=False)
    epoch: int = field(init=False)

    def __post_init__(self) -> None:
        found = {cursor.epoch: cursor for cursor in cursors_of(self.state)}
        self.cursors = {epoch: cursor for epoch, cursor in found.items() if isinstance(cursor, StickyCursor)}
        self.epoch = int(self.state["epoch"]) + bool(self._parts.get("over", False))

    @property
    def _parts(self) -> Mapping[str, Any]:
        parts: Mapping[str, Any] = self.state.get("parts", {})
        return parts

    def consumed(self, epoch: int) -> RangeSet:
        """Return what these loaders have had of an epoch: all of their lease, if the epoch is behind them."""
        known = self.cursors[epoch].consumed if epoch in self.cursors else RangeSet()
        if epoch >= self.epoch or not self._parts:
            return known
        if self._parts.get("on_demand"):
            if epoch not in self.cursors:
                raise ValueError(
                    f"a loader is in epoch {self.epoch} and no longer knows what it had of epoch {epoch}, where "
                    "another still is; let loaders that take shards on demand meet at the end of an epoch"
                )
            return known
        origins = {cursor.epoch: cursor for cursor in map(cursor_from_json, self._parts["origins"])}
        origin = origins.get(epoch, StickyCursor(epoch))
        assert isinstance(origin, StickyCursor)
        order = _layout_of(self.state["dataset"]).order(epoch=epoch)
        for part in self._parts["have"]:
            known = known.union(span_positions(order, lease_of(origin, order, part, self._parts["of"])))
        return known.union(origin.consumed)


def _merge_sticky(states: Sequence[Mapping[str, Any]]) -> State:
    parts = [_Part(state) for state in states]
    current = min(part.epoch for part in parts)
    last = max(max(part.epoch, *part.cursors) for part in parts)
    consumed = {}
    for epoch in range(current, last + 1):
        taken = RangeSet()
        for part in parts:
            taken = taken.union(part.consumed(epoch))
        if taken.count or epoch == current:
            consumed[epoch] = taken
    first, *others = (StickyCursor(epoch, taken).to_json() for epoch, taken in consumed.items())
    merged = {"version": states[0]["version"], "dataset": dict(states[0]["dataset"]), **first}
    if others:
        merged["others"] = others
    if missing := _merge_parts([state["parts"] for state in states if "parts" in state]):
        merged["parts"] = missing
    return merged


def _merge_parts(given: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return which parts are here, or None when none is missing."""
    if not given:
        return None
    counts = {parts["of"] for parts in given}
    if len(counts) > 1:
        raise ValueError(f"the states are of {', '.join(map(str, sorted(counts)))} loaders; merge those of one moment")
    have = sorted({part for parts in given for part in parts["have"]})
    if len(have) == given[0]["of"]:
        return None
    # What all began with: those who are asked later for the rest need it as well.
    kept = {name: given[0][name] for name in ("origins", "on_demand")}
    return {"have": have, "of": given[0]["of"], **kept, "over": False, "turn": 0}


def _layout_of(fingerprint: Mapping[str, Any]) -> ShardLayout:
    names = ("total_samples", "shard_size", "seed", "shuffle")
    return ShardLayout(**{name: fingerprint[name] for name in names})
