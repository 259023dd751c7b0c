"""Whose fault a stall is, decided from what all workers say of themselves. Pure: standings in, a verdict out.

In a run where workers meet at every step, one hung rank stalls all of them. The hung one is behind: it has done fewer
steps, or entered fewer collectives, or it computes while the others wait in a barrier or a collective. Those that wait
for it are healthy and are never ended. Only where all wait, at different meetings, one of them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Without proof that others wait for it, a worker gets this many times the limit: all of them may be in a long phase.
UNPROVEN_FACTOR = 5.0
# A worker is named when this share of its limit is over.
NAMED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one worker is: its last finished step, how many collectives it has entered, and what it does now."""

    rank: int
    worker_id: str = ""
    step: int = 0
    collectives: float | None = None
    stalled_s: float = 0.0
    is_waiting: bool = False
    """In a barrier or an exchange of ours, which only others can end."""
    is_in_collective: bool = False
    """In a collective of its framework, as its stack says."""
    outdated_s: float | None = None
    """How long ago the membership changed, if it did since this worker was last at a safe point."""


@dataclass(frozen=True, slots=True)
class Fine:
    """It makes progress, or is not late yet."""


@dataclass(frozen=True, slots=True)
class Waits:
    """It stands still because of others, and must be left alone."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Late:
    """It is named: it stands still by itself, and its limit is not over."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hung:
    """It is to be ended."""

    reason: str


Verdict = Fine | Waits | Late | Hung


def judge(
    me: Standing,
    others: Sequence[Standing],
    *,
    limit_s: float,
    is_limit_given: bool = False,
    is_deadlocked: bool = False,
) -> Verdict:
    """Say what is to be done about a worker that stands still for ``me.stalled_s``.

    ``is_deadlocked`` says that all are at meetings, and at each of them someone is missing.
    """
    if me.stalled_s < NAMED_SHARE * limit_s:
        return Fine()
    if is_deadlocked and _is_to_blame(me, others, waited_s=NAMED_SHARE * limit_s):
        apart = "all workers wait, at different meetings, and it has done the fewest steps"
        return Hung(apart) if me.stalled_s >= limit_s else Late(apart)
    if me.is_waiting:
        return Waits(_ranks(other for other in others if not other.is_waiting))
    if me.outdated_s is not None:
        return _judge_outdated(me.outdated_s, limit_s)
    reason, is_proven = _find_reason(me, others)
    if isinstance(reason, Waits):
        return reason
    factor = 1.0 if is_proven or is_limit_given else UNPROVEN_FACTOR
    return Hung(reason) if me.stalled_s >= factor * limit_s else Late(reason)


def _is_to_blame(me: Standing, others: Sequence[Standing], *, waited_s: float) -> bool:
    """Whether all have waited so long, and this worker is the one to end: one is enough for all to restore."""
    everyone = [me, *others]
    if not all(worker.is_waiting and worker.stalled_s >= waited_s for worker in everyone):
        return False
    return me is min(everyone, key=lambda worker: (worker.step, -worker.rank))


def _judge_outdated(outdated_s: float, limit_s: float) -> Verdict:
    """A worker that waited for one that is gone now may still learn of it by itself: its limit begins anew."""
    if outdated_s < NAMED_SHARE * limit_s:
        return Fine()
    reason = "the others go on in a new generation and wait for it"
    return Hung(reason) if outdated_s >= limit_s else Late(reason)


def _find_reason(me: Standing, others: Sequence[Standing]) -> tuple[str | Waits, bool]:
    """Return why it is this worker's own fault and whether that is certain, or for whom it waits."""
    behind = [other for other in others if _compare(other, me) < 0]
    if behind:
        return Waits(_ranks(behind)), False
    ahead = [other for other in others if _compare(other, me) > 0]
    if ahead:
        return f"{_name(ahead)} went further and it did not", True
    waiting = [other for other in others if other.is_waiting]
    if waiting:
        return f"{_name(waiting)} waits for it", True
    inside = [other for other in others if other.is_in_collective]
    outside = [other for other in others if not other.is_in_collective]
    if me.is_in_collective and outside:
        return Waits(_ranks(outside)), False
    if inside and not me.is_in_collective:
        return f"{_name(inside)} waits for it in a collective", True
    if me.is_in_collective:
        return "all workers stand still in a collective", False
    return "no worker makes progress" if others else "it makes no progress", False


def _compare(one: Standing, other: Standing) -> float:
    if one.step != other.step or one.collectives is None or other.collectives is None:
        return one.step - other.step
    return one.collectives - other.collectives


def _ranks(workers: Iterable[Standing]) -> tuple[int, ...]:
    return tuple(sorted(worker.rank for worker in workers))


def _name(workers: Sequence[Standing]) -> str:
    ranks = _ranks(workers)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:5]))}"
