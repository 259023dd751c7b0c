"""A team of one: the same script runs alone, and keeps its data position in its checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strata.cluster.events import Cause
from strata.cluster.values import RankInfo
from strata.run.team.protocol import Progress
from strata.sharding import DatasetParams
from strata.tracing.traces import NO_TRACES, Tracing

if TYPE_CHECKING:
    from strata.data.dataset_plan import Plan
    from strata.data.rows.skips import SkippedRows


class LocalTeam:
    """One worker and nobody else: it is never disturbed, and nobody needs to be told."""

    client = None
    ends_hung_workers = False

    def __init__(self, tracing: Tracing = NO_TRACES) -> None:
        self._tracing = tracing
        self.traces = tracing.of(uuid.uuid4().hex)

    def look(self) -> None:
        """There is nobody to look at."""

    def request_stop(self, rank_info: RankInfo) -> None:
        """There is nobody to tell."""

    def is_stop_requested(self, rank_info: RankInfo) -> bool:
        """There is nobody to ask."""
        return False

    def enter(self, check_stop: Callable[[], None] = lambda: None) -> RankInfo:
        """Return the only rank_info."""
        return RankInfo(rank=0, world_size=1, generation=1)

    def check(self, rank_info: RankInfo) -> None:
        """The membership never changes."""

    def exchange(self, rank_info: RankInfo, name: str, payload: bytes, *, timeout_s: float | None) -> list[bytes]:
        """Return the payload."""
        return [payload]

    def register(self, params: DatasetParams, *, options: Mapping[str, Any], url: str) -> None:
        """Nobody else needs to know; a position of other data is refused when it is restored."""

    def dealer(self, rank_info: RankInfo, params: DatasetParams, plan: Plan, *, block_size: int) -> None:
        """The dataset deals by itself."""

    def report(self, rank_info: RankInfo, progress: Sequence[Progress]) -> None:
        """The dataset keeps its position by itself."""

    def skip(self, rank_info: RankInfo, dataset_id: str, rows: SkippedRows) -> None:
        """The dataset keeps what it skipped by itself."""

    def note(self, **fields: Any) -> None:
        """Nobody asks."""

    def report_stall(self, reason: str, *, is_over: bool) -> None:
        """It is in the log."""

    def close(self, reason: str = "", *, cause: Cause = Cause.FINISHED) -> None:
        """There is nobody to leave; spans that are left are sent."""
        self._tracing.close()
