"""Whether a worker that ended is started again, when, and why not; time and chance come in as arguments."""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import dataclass

from strata.clock import backoff_s
from strata.run.exits import HUNG, PREEMPTED, REGROUPED
from strata.run.launch.crash import Crash, signature_of

# With this code programs say by convention that they do not understand their arguments: argparse and click do.
USAGE = 2
# With these the launcher and shells say that a program cannot be run, or is not there.
CANNOT_START = (126, 127)
# Codes above it are of signals, and those of Strata say what happened: the same one again proves nothing.
MAX_CODE = 125
_OF_STRATA = (HUNG, REGROUPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one life of a worker ended. A negative code is the signal that ended it, as in :mod:`subprocess`."""

    worker_id: str
    rank: int
    code: int
    lived_s: float
    last_lines: tuple[str, ...] = ()
    crash: Crash | None = None
    """The exception that ended it, if it is a Python program and said so."""
    did_step: bool = False
    """Whether it finished a training step in this life."""
    is_over: bool = False
    """Whether its training was over."""

    @property
    def is_preempted(self) -> bool:
        """Whether it was told to end, and did."""
        return self.exit_code == PREEMPTED

    @property
    def signature(self) -> str:
        """What is the same when a failure comes again; empty if that would prove nothing."""
        if self.code <= 0 or self.code in _OF_STRATA or self.did_step:
            return ""
        if self.crash is not None:
            return self.crash.signature
        is_known = self.code <= MAX_CODE or self.code in CANNOT_START
        words = signature_of(self.last_lines[-1]) if self.last_lines and is_known else ""
        return words and f"exit code {self.code}: {words}"

    @property
    def exit_code(self) -> int:
        """The code that a shell would show."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        return f"{self.worker_id} (rank {self.rank}) {self._how()} after {self.lived_s:.1f} s"

    def _how(self) -> str:
        if self.code == PREEMPTED:
            return "was told to stop (SIGTERM), and left"
        if self.code == REGROUPED:
            return "left as intended (recover=False), because the membership changed,"
        if self.code == HUNG:
            return "hung, and was ended by its watchdog"
        if self.code >= 0:
            return f"exited with code {self.code}" + (f" by {self.crash}" if self.crash is not None else "")
        return f"was ended by {_name_of(-self.code)}"


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
class Preempted:
    """It was told to end, and enough others are left."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after a pause, with its whole group if the others cannot go on without it."""

    after_s: float
    number: int
    of_group: bool = False


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Go on without it: enough others are left."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the job."""

    reason: str


Decision = Finished | Preempted | Restart | LeaveOut | GiveUp


class Restarts:
    """The failures of a job as one launcher sees them, and what follows from each."""

    def __init__(self, policy: RestartPolicy, *, min_workers: int) -> None:
        self._policy = policy
        self._min_workers = min_workers
        self._recent: deque[float] = deque()
        self._in_a_row: dict[str, int] = {}
        self._last_failure_s = float("-inf")
        self._last_signature: dict[str, str] = {}
        self._in_incident: set[str] = set()
        self._is_dragged_along = False
        self.total = 0
        self.first_cause: Exit | None = None

    def decide(
        self,
        ended: Exit,
        *,
        running: int,
        now_s: float,
        chance: float,
        is_needed: bool = False,
        of_group: bool = False,
        min_workers: int | None = None,
    ) -> Decision:
        """Say what follows from the end of a worker while ``running`` others run; ``chance`` is between 0 and 1.

        ``is_needed`` says that it ended well, and the others cannot go on without it; ``of_group`` that no other worker
        can go on without it, so that all are started again, which counts as one restart. ``min_workers`` is how many
        must be left, if ``running`` counts those of all machines.
        """
        least = self._min_workers if min_workers is None else min_workers
        if ended.code == 0 and not is_needed:
            return Finished()
        if ended.is_preempted and running >= least:
            return Preempted()
        self._note(ended, now_s)
        self._is_dragged_along &= not of_group
        name = "" if of_group else ended.worker_id
        if (reason := self._find_hopeless(ended, name)) is not None:
            return GiveUp(reason)
        if self._is_dragged_along or len(self._recent) < self._policy.max_restarts:
            if not self._is_dragged_along:
                self._recent.append(now_s)
            self.total += 1
            return Restart(
                after_s=self._backoff_s(ended, chance, name),
                number=self.total,
                of_group=of_group,
            )
        if running >= least:
            return LeaveOut()
        used = f"{self._policy.max_restarts} restarts in {self._policy.window_s:g} s are used up"
        short = f"{running} workers are left of the {least} that are needed"
        return GiveUp(f"{used if self._policy.max_restarts else 'restarts are off'}, and {short}")

    @property
    def recent(self) -> int:
        """How many restarts lie within the window, as of the last failure."""
        return len(self._recent)

    @property
    def last_of_group(self) -> str:
        """The signature of the last failure that restarted the whole group; empty if it may pass."""
        return self._last_signature.get("", "")

    def count_elsewhere(self, restarts: int, *, signature: str, now_s: float) -> None:
        """Count restarts of the whole group that launchers of other machines decided."""
        self._recent.extend([now_s] * restarts)
        self.total += restarts
        self._last_signature[""] = signature

    def _find_hopeless(self, ended: Exit, name: str) -> str | None:
        """Say why another start would end as this one did, or return None if it may not.

        ``name`` is what starts again: a worker, or with no name the whole group.
        """
        crash = ended.crash
        if ended.code > 0 and crash is not None and crash.is_fatal:
            self.first_cause = ended
            return f"{crash.name} does not go away by itself"
        # A script that Strata knows nothing of notes no steps: one that ran for long did not fail at its beginning.
        signature = "" if ended.lived_s >= self._policy.healthy_s else ended.signature
        before, self._last_signature[name] = self._last_signature.get(name), signature
        if not signature or signature != before:
            return None
        if crash is not None:
            return "the same error came twice at the same place, before any step was done"
        if ended.code == USAGE:
            return "it refused its arguments twice in the same words"
        return f"it ended twice with code {ended.code} and the same last words, before any step was done"

    def _note(self, ended: Exit, now_s: float) -> None:
        if now_s - self._last_failure_s > self._policy.incident_s:
            self.first_cause = ended
            self._in_incident.clear()
        # With DDP one failure ends all workers: those that follow the first are started again on its account.
        others = self._in_incident - {ended.worker_id}
        is_first_time = ended.worker_id not in self._in_incident
        self._is_dragged_along = bool(others and is_first_time and self._policy.max_restarts)
        self._in_incident.add(ended.worker_id)
        self._last_failure_s = now_s
        while self._recent and now_s - self._recent[0] > self._policy.window_s:
            self._recent.popleft()

    def _backoff_s(self, ended: Exit, chance: float, name: str) -> float:
        """Pause longer with each quick failure of what has this name: a worker, or with no name the whole group."""
        row = 0 if ended.lived_s >= self._policy.healthy_s else self._in_a_row.get(name, 0)
        self._in_a_row[name] = row + 1
        return backoff_s(row, first_s=self._policy.first_backoff_s, max_s=self._policy.max_backoff_s, chance=chance)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
