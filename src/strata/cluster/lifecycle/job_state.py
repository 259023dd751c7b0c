"""What a job does or how it ended, in one word: decided here, and shown by every tool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from strata.cluster.events import Cause
from strata.cluster.lifecycle.stalls import is_stalled

# Workers that leave within this time of each other leave for one cause: that of the first of them.
INCIDENT_S = 60.0


class JobState(StrEnum):
    """The one state that a job is in."""

    WAITING = "waiting"
    """It has fewer workers than it needs, or none: none has joined yet, or all left to start again together."""
    RECOVERING = "recovering"
    """Its workers start, or restore a checkpoint."""
    RUNNING = "running"
    """Its workers train."""
    STALLED = "stalled"
    """A worker makes no progress, and waits for nobody."""
    FINISHED = "finished"
    """All workers that were there at the end said that the training is over."""
    PREEMPTED = "preempted"
    """Its workers were told to stop (SIGTERM); started again, it continues."""
    STOPPED = "stopped"
    """A user ended it, such as with Ctrl-C, or its workers left on purpose without having finished."""
    FAILED = "failed"
    """Its last workers were lost without a goodbye, were ended by an exception, or were given up by a launcher."""

    @property
    def is_ended(self) -> bool:
        """Whether no worker is there, and none is expected unless someone starts the job again."""
        return self in _ENDED


_ENDED = frozenset({JobState.FINISHED, JobState.PREEMPTED, JobState.STOPPED, JobState.FAILED})
# How a job ended whose last worker left for this cause; waiting if it is about to start again.
OUTCOMES: Mapping[Cause, JobState] = {
    Cause.FINISHED: JobState.FINISHED,
    Cause.PREEMPTED: JobState.PREEMPTED,
    Cause.STOPPED: JobState.STOPPED,
    Cause.LEFT: JobState.STOPPED,
    Cause.REGROUPED: JobState.WAITING,
    Cause.CRASHED: JobState.FAILED,
    Cause.GIVEN_UP: JobState.FAILED,
    Cause.CHANNEL_LOST: JobState.FAILED,
    Cause.HUNG: JobState.FAILED,
    Cause.LEASE_ENDED: JobState.FAILED,
}
# Of workers that leave together one may say more than another. One that left to start again says nothing of its own;
# and a job is finished only if no worker that was there at the end says otherwise.
_WEIGHTS = {JobState.FINISHED: 1, JobState.WAITING: 2}
_DECISIVE = 3


class Verdict(NamedTuple):
    """A state, and why the job is in it, in words that may be empty."""

    state: JobState
    reason: str


NOBODY_YET = Verdict(JobState.WAITING, "no worker has joined yet")
NOT_RECORDED = Verdict(JobState.STOPPED, "its workers left, and this coordinator has no record of why")


class Ending:
    """How a job ended if no worker is there: what those said or did that left since the job last went on."""

    def __init__(self) -> None:
        self.verdict = NOBODY_YET
        self._is_open = False
        self._changed_s = 0.0

    def note_departure(self, cause: Cause, reason: str, *, now_s: float) -> None:
        """Record why workers left; the first decisive cause counts until the job goes on or some time passes.

        One failure ends other workers too, with errors of their own; and a worker that is told to stop and does not
        stop in time is killed.
        """
        # Journals from before goodbyes were checked may hold any cause.
        new = Verdict(OUTCOMES.get(cause, JobState.STOPPED), reason)
        is_same = self._is_open and now_s - self._changed_s <= INCIDENT_S
        if not is_same or _weight(new) > _weight(self.verdict):
            self.verdict = new
        self._is_open, self._changed_s = True, now_s

    def go_on(self) -> None:
        """Record that the job goes on, with other workers or without those that left: what they said is history."""
        self._is_open = False

    def record(self) -> list[Any]:
        """Return what must survive a restart of the coordinator."""
        return [self.verdict.state, self.verdict.reason, self._is_open, self._changed_s]

    def restore(self, record: list[Any] | None, *, has_members: bool) -> None:
        """Take over what :meth:`record` returned; nothing if it was written before endings were recorded."""
        if record is None:
            self.verdict = NOT_RECORDED if has_members else NOBODY_YET
            return
        state, reason, self._is_open, self._changed_s = record
        self.verdict = Verdict(JobState(state), reason)


class Present(Protocol):
    """What is known of a worker that is there."""

    @property
    def worker_id(self) -> str:
        """Its name."""

    @property
    def rank(self) -> int:
        """Its rank in the present generation."""

    @property
    def state(self) -> str:
        """What it says that it does."""

    @property
    def step(self) -> int:
        """The last step that it did."""

    @property
    def resources(self) -> Mapping[str, float]:
        """What else it says of itself."""


def judge(present: Iterable[Present], *, waits_for: int, ending: Verdict) -> Verdict:
    """Return the state of a job with these workers, by rank; without any, how it ended."""
    workers = list(present)
    if not workers:
        return ending
    if waits_for:
        return Verdict(JobState.WAITING, f"{waits_for} more workers are needed")
    for worker in workers:
        if is_stalled(worker.resources) and not waits_on_others(worker):
            what = f"rank {worker.rank} ({worker.worker_id}) makes no progress in step {worker.step + 1}"
            return Verdict(JobState.STALLED, what)
    if any(worker.state in ("recovering", "initializing") for worker in workers):
        return Verdict(JobState.RECOVERING, "workers restore their state, or start")
    return Verdict(JobState.RUNNING, "")


def waits_on_others(worker: Present) -> bool:
    """Whether a worker says that it waits for others, or is in a phase that it announced."""
    said = worker.resources
    return bool(said.get("waiting", 0.0) or said.get("paused", 0.0))


def _weight(verdict: Verdict) -> int:
    return _WEIGHTS.get(verdict.state, _DECISIVE)
