"""Errors for a worker that is not, or no longer, a member of its job's current generation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY

from strata.errors.base import Recovery, choices, with_fields
from strata.errors.cluster import ClusterError
from strata.errors.sharding import ShardingError


class MembershipError(ClusterError):
    """The sender is not, or no longer, a member of the generation that its command names."""

    recovery = Recovery.REJOIN


@with_fields
class UnknownWorkerError(MembershipError, ShardingError, LookupError):
    """No worker of that name is registered."""

    worker_id: str
    _: KW_ONLY
    known: Collection[str]

    def __post_init__(self) -> None:
        self.known = sorted(self.known)
        super().__post_init__()

    def message(self) -> str:
        """Return which worker, and some that there are."""
        return f"worker {self.worker_id!r} is not registered; {choices(list(self.known))}"


@with_fields
class UnknownJobError(MembershipError, LookupError):
    """No job of that name."""

    # A worker made its job when it joined: the coordinator lost its journal since, and makes it again when it joins.
    job_id: str
    _: KW_ONLY
    known: Collection[str]

    def __post_init__(self) -> None:
        self.known = sorted(self.known)
        super().__post_init__()

    def message(self) -> str:
        """Return which job, and some that there are."""
        return f"there is no job {self.job_id!r}; {choices(list(self.known))}"


@with_fields
class StaleIncarnationError(MembershipError):
    """The sender was replaced by a newer process of its name, or was declared dead."""

    worker_id: str
    incarnation: str
    _: KW_ONLY
    state: str

    template = "worker {worker_id!r}, incarnation {incarnation}, was replaced or is {state}; register again to continue"


@with_fields
class StaleGenerationError(MembershipError):
    """The command belongs to an older generation of the job."""

    worker_id: str
    _: KW_ONLY
    sent: int
    current: int

    template = (
        "worker {worker_id!r} sent a command of generation {sent}, but the job is in generation {current}; restore, "
        "and continue in that one"
    )


@with_fields
class GenerationChangedError(MembershipError):
    """The membership changed while workers waited at a barrier."""

    barrier: str
    generation: int

    template = "barrier {barrier!r} is cancelled: generation {generation} has begun; restore, and continue in it"


@with_fields
class OutOfOrderError(MembershipError):
    """A report or a lease sequence arrived before the one that precedes it."""

    # What precedes it was refused, mostly for an older generation: the count begins anew in the next one.
    worker_id: str
    _: KW_ONLY
    what: str
    expected: int
    sent: int

    template = "worker {worker_id!r} sent {what} {sent}, but {what} {expected} is next; send them in order"
