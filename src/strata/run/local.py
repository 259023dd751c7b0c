"""A team of one: the same script runs alone, and keeps its data position in its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strata.cluster.seat import Seat
from strata.data.dataset import Plan
from strata.data.skips import SkippedRows
from strata.run.team import Progress
from strata.sharding import DatasetParams


class LocalTeam:
    """One worker and nobody else: it is never disturbed, and nobody needs to be told."""

    client = None

    def enter(self, is_told_to_stop: Callable[[], bool]) -> Seat:
        """Return the only seat."""
        return Seat(rank=0, world_size=1, generation=1)

    def check(self, seat: Seat) -> None:
        """The membership never changes."""

    def exchange(self, seat: Seat, name: str, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Return the payload."""
        return [payload]

    def register(self, params: DatasetParams, *, fingerprint: str, url: str) -> None:
        """Nobody else needs to know; a position of other data is refused when it is restored."""

    def dealer(self, seat: Seat, params: DatasetParams, plan: Plan, *, block_size: int) -> None:
        """The dataset deals by itself."""

    def report(self, seat: Seat, progress: Sequence[Progress]) -> None:
        """The dataset keeps its position by itself."""

    def skip(self, seat: Seat, dataset_id: str, rows: SkippedRows) -> None:
        """The dataset keeps what it skipped by itself."""

    def note(self, **fields: Any) -> None:
        """Nobody asks."""

    def close(self) -> None:
        """There is nobody to leave."""
