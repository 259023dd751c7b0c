"""Those that a worker trains with: how a run finds its place, meets the others, and says what it has done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from strata.client.client import Client
    from strata.cluster.seat import Seat
    from strata.data.dataset import Plan
    from strata.data.dealer import Dealer
    from strata.data.skips import SkippedRows
    from strata.sharding import DatasetParams
    from strata.sharding.cursor import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the model has seen of one epoch of a dataset, up to a step."""

    dataset_id: str
    epoch: int
    step: int
    spans: Spans


class Team(Protocol):
    """The workers of a job, as one of them sees them. Whatever belongs to an older generation raises Reconfigure."""

    @property
    def client(self) -> Client | None:
        """The connection, for those who commit checkpoints over it; None if there is nobody else."""
        ...

    def enter(self, is_told_to_stop: Callable[[], bool]) -> Seat:
        """Return the seat in the present generation, when the job has as many workers as it needs.

        A worker that is told to stop while it waits ends its process.
        """
        ...

    def check(self, seat: Seat) -> None:
        """Raise Reconfigure if the generation is over."""
        ...

    def exchange(self, seat: Seat, name: str, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Meet the others and return everyone's payload, in the order of ranks."""
        ...

    def register(self, params: DatasetParams, *, fingerprint: str, url: str) -> None:
        """Make a dataset known, or raise if the job knows another one by that name."""
        ...

    def dealer(self, seat: Seat, params: DatasetParams, plan: Plan, *, block_size: int) -> Dealer | None:
        """Return who says what this worker reads in this generation; None if its datasets deal by themselves."""
        ...

    def report(self, seat: Seat, progress: Sequence[Progress]) -> None:
        """Say what the model has seen, before anything that is said after it."""
        ...

    def skip(self, seat: Seat, dataset_id: str, rows: SkippedRows) -> None:
        """Say what could not be read and was left out on purpose."""
        ...

    def note(self, **fields: Any) -> None:
        """Say what the worker is doing, when it is next asked for a sign of life."""
        ...

    def close(self) -> None:
        """Leave."""
        ...
