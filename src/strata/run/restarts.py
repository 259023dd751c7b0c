"""Whether a worker that ended is started again, when, and why not; time and chance come in as arguments."""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass

from strata.clock import backoff_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one life of a worker ended. A negative code is the signal that ended it, as in :mod:`subprocess`."""

    worker_id: str
    rank: int
    code: int
    lived_s: float
    last_lines: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The code that a shell would show."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        how = f"exited with code {self.code}" if self.code >= 0 else f"was ended by {_name_of(-self.code)}"
        return f"{self.worker_id} (rank {self.rank}) {how} after {self.lived_s:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often and how fast workers are started again; every field has a bound."""

    max_restarts: int = 10
    """How many restarts of all workers together may lie within the window."""
    window_s: float = 3_600.0
    """Restarts longer ago than this are forgotten, so that a long run does not die of its age."""
    first_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    healthy_s: float = 60.0
    """A worker that lived so long begins with the shortest pause again."""
    incident_s: float = 60.0
    """Failures that follow each other faster than this have one cause: the first of them."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts is {self.max_restarts}; use 0 or more")
        for name in ("window_s", "first_backoff_s", "max_backoff_s", "healthy_s", "incident_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; use more than 0")


@dataclass(frozen=True, slots=True)
class Finished:
    """It did what it had to do."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after a pause."""

    after_s: float
    number: int


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Go on without it: enough others are left."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the job."""

    reason: str


Decision = Finished | Restart | LeaveOut | GiveUp


class Restarts:
    """The failures of a job as one launcher sees them, and what follows from each."""

    def __init__(self, policy: RestartPolicy, *, min_workers: int) -> None:
        self._policy = policy
        self._min_workers = min_workers
        self._recent: deque[float] = deque()
        self._in_a_row: dict[str, int] = {}
        self._last_failure_s = float("-inf")
        self.total = 0
        self.first_cause: Exit | None = None

    def decide(self, ended: Exit, *, running: int, now_s: float, chance: float) -> Decision:
        """Say what follows from the end of a worker while ``running`` others run; ``chance`` is between 0 and 1."""
        if ended.code == 0:
            return Finished()
        self._note(ended, now_s)
        if len(self._recent) < self._policy.max_restarts:
            self._recent.append(now_s)
            self.total += 1
            return Restart(after_s=self._backoff_s(ended, chance), number=self.total)
        if running >= self._min_workers:
            return LeaveOut()
        used = f"{self._policy.max_restarts} restarts in {self._policy.window_s:g} s are used up"
        short = f"{running} workers are left of the {self._min_workers} that are needed"
        return GiveUp(f"{used if self._policy.max_restarts else 'restarts are off'}, and {short}")

    def _note(self, ended: Exit, now_s: float) -> None:
        if now_s - self._last_failure_s > self._policy.incident_s:
            self.first_cause = ended
        self._last_failure_s = now_s
        while self._recent and now_s - self._recent[0] > self._policy.window_s:
            self._recent.popleft()

    def _backoff_s(self, ended: Exit, chance: float) -> float:
        """Pause longer with each quick failure of the same worker."""
        row = 0 if ended.lived_s >= self._policy.healthy_s else self._in_a_row.get(ended.worker_id, 0)
        self._in_a_row[ended.worker_id] = row + 1
        return backoff_s(row, first_s=self._policy.first_backoff_s, max_s=self._policy.max_backoff_s, chance=chance)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
