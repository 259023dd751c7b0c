"""SavePolicy: how a manager saves. A value, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

# What becomes of a save when as many are staged as may be.
WhenBusy = Literal["wait", "skip", "fail"]
# What becomes of a checkpoint whose replicas are not the same.
OnDivergence = Literal["majority", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePolicy:
    """How many saves may be staged at a time, what is written of each, and how long a commit may take.

    At most ``max_pending`` saves are staged, and staging memory is at most that many times the state; one more waits
    (at most ``wait_timeout_s``), is skipped, or fails. With ``delta`` only changed chunks are written, and every
    ``full_every``-th checkpoint is full. Replicas that differ are repaired before the commit, as the majority of the
    workers of a coordinator has them, are committed with a warning, or fail the save. A commit of several workers that
    is not there after ``commit_timeout_s`` fails on this worker's handle.
    """

    max_pending: int = 1
    when_busy: WhenBusy = "wait"
    wait_timeout_s: float = 600.0
    delta: bool = False
    full_every: int = 10
    on_divergence: OnDivergence = "majority"
    commit_timeout_s: float = 1_800.0

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("when_busy", self.when_busy, get_args(WhenBusy)),
            ("on_divergence", self.on_divergence, get_args(OnDivergence)),
        ):
            if value not in choices:
                raise ValueError(f"{name}={value!r} must be one of {', '.join(choices)}")
        for name, count in (("max_pending", self.max_pending), ("full_every", self.full_every)):
            if count < 1:
                raise ValueError(f"{name}={count} must be 1 or more")
