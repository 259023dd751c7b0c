"""Retention: which checkpoints go and why, and which objects nobody needs any more. Pure decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from strata.checkpoint.format import layout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from strata.storage import ObjectInfo

KEEP_COUNT = 5
GRACE_S = 24 * 3600.0
# What nobody wrote for so long belongs to no save under way: workers give a commit up sooner.
YOUNG_S = 3600.0
# Debris may take this much, or twice the largest checkpoint if that is more.
DEBRIS_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the checkpoints whose metadata has the best values of a metric."""

    metric: str
    mode: Literal["min", "max"] = "min"
    count: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max") or self.count < 1:
            raise ValueError(f"{self!r}: mode is 'min' or 'max', and count is 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What is kept: the newest ``keep_count``, every step that is a multiple of ``keep_every``, the best by metric.

    ``keep_count=None`` keeps all. Whatever is older than ``ttl_s`` goes all the same. Pinned checkpoints, those that
    are being read, the newest step and the one that was committed last are always kept, and so are the newest and the
    last of those that are not suspect. What dead saves left is swept after ``grace_s``; of what is younger, the oldest
    goes when there is more than ``debris_bytes``.
    """

    keep_count: int | None = KEEP_COUNT
    keep_every: int | None = None
    ttl_s: float | None = None
    best: Best | None = None
    grace_s: float = GRACE_S
    debris_bytes: int = DEBRIS_BYTES

    def __post_init__(self) -> None:
        if self.keep_count is not None and self.keep_count < 1:
            raise ValueError(f"keep_count={self.keep_count} must be 1 or more, or None to keep all")
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(f"keep_every={self.keep_every} must be 1 or more")
        if self.debris_bytes < 0:
            raise ValueError(f"debris_bytes={self.debris_bytes} cannot be negative")
        if self.grace_s < 0 or (self.ttl_s is not None and self.ttl_s < 0):
            raise ValueError(f"grace_s={self.grace_s} and ttl_s={self.ttl_s} cannot be negative")


@dataclass(frozen=True, slots=True)
class Facts:
    """What retention must know about one committed checkpoint."""

    step: int
    created_s: float
    pinned: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    objects: frozenset[str] = frozenset()
    size_bytes: int = 0
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a checkpoint stays, and why."""

    step: int
    keep: bool
    reason: str


def decide(
    facts: Collection[Facts], policy: RetentionPolicy, *, now_s: float, in_use: Collection[int] = ()
) -> list[Verdict]:
    """Judge every checkpoint, oldest step first."""
    ordered = sorted(facts, key=lambda each: each.step)
    if not ordered:
        return []
    newest = ordered[-1].step
    last_committed = _last_committed(ordered)
    counted = {each.step for each in (ordered if policy.keep_count is None else ordered[-policy.keep_count :])}
    best = _best_steps(ordered, policy.best)
    # A restart passes over the suspect ones, however many there are.
    trusted = [each for each in ordered if not each.suspect]
    restorable = {_last_committed(trusted), trusted[-1].step} if trusted else set()

    def judge(each: Facts) -> Verdict:
        if each.step == newest:
            return Verdict(each.step, keep=True, reason="it is the newest")
        # After a restart from an older step, what is saved next is not the newest step, and yet what counts.
        if each.step == last_committed:
            return Verdict(each.step, keep=True, reason="it was committed last")
        if each.step in restorable:
            return Verdict(each.step, keep=True, reason="it is the newest that is not suspect")
        if each.pinned:
            return Verdict(each.step, keep=True, reason="it is pinned")
        if each.step in in_use:
            return Verdict(each.step, keep=True, reason="it is being read")
        if policy.ttl_s is not None and now_s - each.created_s > policy.ttl_s:
            return Verdict(each.step, keep=False, reason=f"it is older than {policy.ttl_s:g} s")
        if each.step in counted:
            return Verdict(each.step, keep=True, reason=f"it is among the newest {policy.keep_count or 'of all'}")
        if policy.keep_every is not None and each.step % policy.keep_every == 0:
            return Verdict(each.step, keep=True, reason=f"it is a multiple of {policy.keep_every}")
        if each.step in best and policy.best is not None:
            return Verdict(each.step, keep=True, reason=f"it is among the best by {policy.best.metric}")
        return Verdict(each.step, keep=False, reason=f"there are {policy.keep_count} newer ones")

    return [judge(each) for each in ordered]


def _last_committed(facts: Iterable[Facts]) -> int:
    return max(facts, key=lambda each: (each.created_s, each.step)).step


def _best_steps(ordered: list[Facts], best: Best | None) -> set[int]:
    if best is None:
        return set()
    sign = 1 if best.mode == "min" else -1
    scored = []
    for each in ordered:
        value = each.metadata.get(best.metric)
        # A NaN is equal to nothing, itself included: it is never the best.
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
            # Of equals, the newer one is as good and closer.
            scored.append((sign * value, -each.step))
    return {-step for _, step in sorted(scored)[: best.count]}


def find_unneeded(victims: Iterable[Facts], kept: Iterable[Facts], stored: Iterable[str]) -> list[str]:
    """The objects that only deleted checkpoints needed; a chunk that a kept one points at stays."""
    kept = list(kept)
    needed = {path for each in kept for path in each.objects}
    alive = {each.step for each in kept}
    gone = list(victims)
    steps = {each.step for each in gone}
    referenced = {path for each in gone for path in each.objects}
    return sorted(
        path
        for path in stored
        if path not in needed
        and (step := layout.step_of(path)) is not None
        and step not in alive
        and (step in steps or path in referenced)
    )


def find_debris(
    stored: Iterable[ObjectInfo],
    kept: Iterable[Facts],
    *,
    now_s: float,
    policy: RetentionPolicy,
    untouchable: Collection[int] = (),
) -> list[str]:
    """What dead saves left: objects that no checkpoint needs, and that no save under way can be writing.

    In a step that is committed, whatever its manifest does not name is of a save that was too late. Elsewhere, what
    nobody wrote for a grace time goes, and of the younger the oldest first while all of it takes too much: a run that
    crashes in every save does not fill the disk. ``untouchable`` are steps that are being saved here, and those with a
    manifest that cannot be read.
    """
    kept = list(kept)
    needed = {path for each in kept for path in each.objects}
    for each in kept:
        needed |= {layout.manifest_name(each.step), layout.pin_name(each.step)}
    committed = {each.step for each in kept}
    room = max([policy.debris_bytes, *(2 * each.size_bytes for each in kept)])
    going: list[str] = []
    unneeded = [
        info
        for info in stored
        if info.path not in needed and (step := layout.step_of(info.path)) is not None and step not in untouchable
    ]
    for info in sorted(unneeded, key=lambda info: -info.modified_s):
        age_s = now_s - info.modified_s
        room -= info.size_bytes
        is_late = layout.step_of(info.path) in committed and layout.part_of_report(info.path) is None
        if age_s > policy.grace_s or (age_s > YOUNG_S and (is_late or room < 0)):
            going.append(info.path)
    return sorted(going)
