"""Those that a worker trains with: how a run finds its place, meets the others, and says what it has done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from strata.cluster.events import Cause

if TYPE_CHECKING:
    from strata.client.client import Client
    from strata.cluster.values import RankInfo
    from strata.data.dataset_plan import Plan
    from strata.data.loading.dealer import Dealer
    from strata.data.rows.skips import SkippedRows
    from strata.sharding import DatasetParams
    from strata.sharding.cursor import Spans
    from strata.tracing.traces import Traces


# How long a meeting waits by default. It is longer than the watchdog's limit for steps of up to three minutes: whoever
# hangs is ended before those that wait for it give up.
MEET_TIMEOUT_S = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the model has seen of one epoch of a dataset, up to a step; or what a rewind has it pass over."""

    dataset_id: str
    epoch: int
    step: int
    spans: Spans
    is_passed_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What the coordinator knows of one worker."""

    worker_id: str
    rank: int
    state: str
    step: int
    silent_s: float
    resources: Mapping[str, float]
    # Tells its process apart from others of the same worker id.
    process: str = ""

    @property
    def may_take_longer(self) -> bool:
        """Whether its own watchdog lets it go on: its limit is not over, or it announced a long phase."""
        stalled_s, limit_s = self.resources.get("stalled_s", 0.0), self.resources.get("limit_s", 0.0)
        return stalled_s < limit_s or bool(self.resources.get("paused", 0.0))

    def __str__(self) -> str:
        return f"{self.worker_id} (rank {self.rank}, {self.state}, step {self.step}, silent for {self.silent_s:.0f} s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """What the coordinator knows of a job: its workers, who is missing at its barriers, and in its commits by step."""

    generation: int
    workers: tuple[WorkerView, ...]
    waits_for: int
    barriers: Mapping[str, tuple[str, ...]]
    commits: Mapping[int, tuple[str, ...]]

    def is_deadlocked(self) -> bool:
        """Whether every worker is at a meeting, and at every meeting someone is missing: no one can go on."""
        members = {worker.worker_id for worker in self.workers if worker.state not in ("failed", "left")}
        present = {each for missing in self.barriers.values() for each in members.difference(missing)}
        return all(self.barriers.values()) and bool(members) and present == members

    def name(self, worker_ids: Sequence[str]) -> str:
        """Say in words who these workers are, and what they did last."""
        by_id = {worker.worker_id: worker for worker in self.workers}
        named = [str(by_id.get(worker_id, worker_id)) for worker_id in worker_ids[:3]]
        more = f" and {len(worker_ids) - 3} more" if len(worker_ids) > 3 else ""
        return ", ".join(named) + more


class Team(Protocol):
    """The workers of a job, as one of them sees them. Whatever belongs to an older generation raises Reconfigure."""

    @property
    def client(self) -> Client | None:
        """The connection, for those who commit checkpoints over it; None if there is nobody else."""
        ...

    @property
    def traces(self) -> Traces:
        """Where spans of the job go."""
        ...

    @property
    def ends_hung_workers(self) -> bool:
        """Whether the watchdog may end this process: someone starts it again, and others may wait for it."""
        ...

    def look(self) -> JobView | None:
        """Return what is known of all workers now; None if nobody knows, or cannot be asked at the moment."""
        ...

    def request_stop(self, rank_info: RankInfo) -> None:
        """Tell the others that this worker was told to stop, so that all save together before it leaves."""
        ...

    def is_stop_requested(self, rank_info: RankInfo) -> bool:
        """Whether any worker of this generation was told to stop."""
        ...

    def enter(self, check_stop: Callable[[], None] = lambda: None) -> RankInfo:
        """Return the rank_info in the present generation, when the job has as many workers as it needs.

        ``check_stop`` is called while it waits, and raises Stopped if this worker was told to stop.
        """
        ...

    def check(self, rank_info: RankInfo) -> None:
        """Raise Reconfigure if the generation is over, DuplicateWorkerError if another process is this worker."""
        ...

    def exchange(self, rank_info: RankInfo, name: str, payload: bytes, *, timeout_s: float | None) -> list[bytes]:
        """Meet the others and return everyone's payload, in the order of ranks.

        Without a timeout it waits MEET_TIMEOUT_S, and again as long as a missing worker's watchdog lets that one go on.
        """
        ...

    def register(self, params: DatasetParams, *, options: Mapping[str, Any], url: str) -> None:
        """Make a dataset known, or raise if the job knows another one by that name, or the same with other options."""
        ...

    def dealer(self, rank_info: RankInfo, params: DatasetParams, plan: Plan, *, block_size: int) -> Dealer | None:
        """Return who says what this worker reads in this generation; None if its datasets deal by themselves."""
        ...

    def report(self, rank_info: RankInfo, progress: Sequence[Progress]) -> None:
        """Say what the model has seen, before anything that is said after it."""
        ...

    def skip(self, rank_info: RankInfo, dataset_id: str, rows: SkippedRows) -> None:
        """Say what could not be read and was left out on purpose."""
        ...

    def note(self, **fields: Any) -> None:
        """Say what the worker is doing, when it is next asked for a sign of life."""
        ...

    def report_stall(self, reason: str, *, is_over: bool) -> None:
        """Let people know that this worker stands still, or goes on again; it is not waited for."""
        ...

    def close(self, reason: str = "", *, cause: Cause = Cause.FINISHED) -> None:
        """Leave, and say why."""
        ...
