"""Step times by rank and time, for a heat map, and who was the slowest. Pure and bounded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from strata.coordinator.telemetry.job_history import RecentSteps

COLUMN_S = 10.0
COLUMNS = 120
MAX_RANKS = 10_000
MAX_SLOWEST = 50


class Slowest(NamedTuple):
    """The slowest rank of a while, and what the others took."""

    at_s: float
    step: int
    rank: int
    worker_id: str
    step_s: float
    median_s: float


class RankTimes:
    """Own seconds a step by rank, in columns of ten seconds, for twenty minutes."""

    column_s = COLUMN_S

    def __init__(self) -> None:
        self._sums: npt.NDArray[np.float32] = np.zeros((0, COLUMNS), dtype=np.float32)
        self._counts: npt.NDArray[np.float32] = np.zeros((0, COLUMNS), dtype=np.float32)
        self._steps = np.zeros(COLUMNS, dtype=np.int64)
        self._columns: npt.NDArray[np.int64] = np.full(COLUMNS, -1, dtype=np.int64)
        self._open: int | None = None
        self._ranks = 0
        self._names: dict[int, tuple[int, str]] = {}
        self._slowest: dict[int, Slowest | None] = {}
        """By column, as long as nothing is noted in it."""

    def note(self, rank: int, worker_id: str, steps: RecentSteps, *, generation: int) -> None:
        """Note the steps of a rank; a rank beyond the bound is left out."""
        column = math.floor(steps.at_s / COLUMN_S)
        if not 0 <= rank < MAX_RANKS or (self._open is not None and column <= self._open - COLUMNS):
            return
        self._grow(rank)
        self._ranks = max(self._ranks, rank + 1)
        if self._names.get(rank, (0, ""))[0] <= generation:
            self._names[rank] = generation, worker_id
        slot = column % COLUMNS
        self._slowest.pop(column, None)
        if self._columns[slot] != column:
            self._columns[slot] = column
            self._sums[:, slot] = self._counts[:, slot] = 0
            self._steps[slot] = 0
        if self._open is None or column > self._open:
            self._open = column
        self._sums[rank, slot] += steps.own_s * steps.steps
        self._counts[rank, slot] += steps.steps
        self._steps[slot] = max(self._steps[slot], steps.step)

    def table(self) -> tuple[list[float], npt.NDArray[np.float32]]:
        """Return the times of the columns, ascending, and seconds a step by rank and column; NaN where unknown."""
        if self._open is None:
            return [], np.zeros((0, 0), dtype=np.float32)
        wanted = np.arange(self._open - COLUMNS + 1, self._open + 1)
        slots = wanted % COLUMNS
        known = self._columns[slots] == wanted
        first = int(np.argmax(known))
        slots, wanted, known = slots[first:], wanted[first:], known[first:]
        with np.errstate(divide="ignore", invalid="ignore"):
            table = self._sums[: self._ranks, slots] / self._counts[: self._ranks, slots]
        table[:, ~known] = np.nan
        # Ranks that the job no longer has are left out when nothing of them is in sight.
        seen = np.flatnonzero(np.isfinite(table).any(axis=1))
        table = table[: int(seen[-1]) + 1] if len(seen) else table[:0]
        return [float(column) * COLUMN_S + COLUMN_S / 2 for column in wanted], table

    def slowest(self) -> list[Slowest]:
        """Return the slowest rank of each column that has several, the newest last; only what changed is worked out."""
        known = sorted(
            int(column) for column in self._columns if self._open is not None and column > self._open - COLUMNS
        )
        self._slowest = {
            column: self._slowest[column] if column in self._slowest else self._find_slowest(column) for column in known
        }
        return [each for each in self._slowest.values() if each is not None][-MAX_SLOWEST:]

    def _find_slowest(self, column: int) -> Slowest | None:
        slot = column % COLUMNS
        ranks = np.flatnonzero(self._counts[: self._ranks, slot])
        if len(ranks) < 2:
            return None
        steps_s = self._sums[ranks, slot] / self._counts[ranks, slot]
        place = int(np.argmax(steps_s))
        rank, others_s = int(ranks[place]), float(np.median(np.delete(steps_s, place)))
        at_s = column * COLUMN_S + COLUMN_S / 2
        return Slowest(at_s, int(self._steps[slot]), rank, self.name(rank), float(steps_s[place]), others_s)

    def name(self, rank: int) -> str:
        """Return the worker that has a rank, as last heard."""
        return self._names.get(rank, (0, ""))[1]

    def _grow(self, rank: int) -> None:
        rows = len(self._sums)
        if rank >= rows:
            more = np.zeros((max(rank + 1, min(2 * rows, MAX_RANKS)) - rows, COLUMNS), dtype=np.float32)
            self._sums, self._counts = np.vstack([self._sums, more]), np.vstack([self._counts, more])
