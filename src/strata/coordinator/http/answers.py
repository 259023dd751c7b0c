"""The answers of the HTTP API about what is now, as types; the OpenAPI document follows from them.

Times are seconds since 1970 UTC by the coordinator's clock, and never ages: so an answer changes only when something
happened. The header ``X-Strata-Time`` says what time it is there. Text of users is data; whoever shows it escapes it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from strata.cluster.lifecycle.job_state import JobState

T = TypeVar("T")


class Answer(BaseModel):
    """What all answers have in common: they are never changed once made."""

    model_config = ConfigDict(frozen=True)


class Problem(Answer):
    """Why a request was not answered as asked: what is wrong, and what to do."""

    detail: str


class Page(Answer, Generic[T]):
    """A part of a list; ``total`` counts all that match, and ``offset`` says where this part begins."""

    items: list[T]
    total: int
    offset: int
    limit: int


class Health(Answer):
    """Whether the coordinator's own loop answers."""

    status: str = Field(description="ok, or why not")
    version: str
    started_s: float


class ReplicaRole(StrEnum):
    """What a coordinator is among its replicas; one without any leads."""

    LEADER = "leader"
    STANDBY = "standby"


class Readiness(Answer):
    """Whether a leader takes commands that must be durable, or a standby could lead."""

    ready: bool
    reason: str = Field(description="Empty if it is ready.")
    role: ReplicaRole
    leader: str = Field(description="Where the leader's gRPC is; empty if no leader is known.")
    term: int = Field(description="Grows with every election; 0 without replicas.")


class CoordinatorStatus(Answer):
    """The coordinator itself."""

    version: str
    started_s: float
    journal: str = Field(description="Where its state is kept: sqlite, etcd or memory.")
    accepts_writes: bool
    reason: str = Field(description="Why the journal refuses, if it does.")
    channels: int = Field(
        description="How many connections of workers are open, of the tenants that the caller is shown."
    )
    jobs: int
    workers: int
    requests_total: int | None = Field(description="Of all tenants: null for a caller who is shown one of several.")
    requests_per_s: float | None = Field(description="Of the last ten seconds; null likewise.")
    grpc_port: int
    channel_port: int


class JobSummary(Answer):
    """One job at a glance."""

    job_id: str
    state: JobState
    reason: str = Field(description="Why it is in that state, in words; may be empty.")
    generation: int
    workers: int = Field(description="Workers present.")
    departed: int = Field(description="Workers that left or failed and are remembered.")
    waits_for: int = Field(description="How many workers are missing before it can run.")
    min_workers: int
    max_workers: int | None
    step: int
    epoch: int
    total_steps: int | None
    step_s: float | None = Field(description="Seconds a step takes, as the workers average it.")
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    last_step_s: float | None = Field(description="When a new step was last heard of.")
    committed_step: int | None
    steps_at_risk: int | None = Field(description="Steps done since the checkpoint that a restart would restore.")
    goodput: float | None = Field(description="Share of wall time that became kept steps, from 0 to 1.")
    failures: int
    last_failure_s: float | None


class Jobs(Answer):
    """All jobs that the coordinator remembers."""

    jobs: list[JobSummary]


class TimeParts(Answer):
    """Seconds by what they were spent on."""

    compute: float = Field(description="Steps that were kept so far.")
    data: float = Field(description="Waiting for the next batch.")
    save: float = Field(description="Held up by a save.")
    restore: float = Field(description="Restoring state.")
    wait: float = Field(description="Waiting for other workers.")
    repeated: float = Field(description="Steps that were lost, or done again after a restore.")
    other: float = Field(description="Everything else in the run.")


class Straggling(Answer):
    """A rank that is slower than the others."""

    worker_id: str
    rank: int
    steps: int = Field(description="For how many steps on end.")
    step_s: float = Field(description="Its own seconds a step, without waiting for others.")
    median_s: float = Field(description="The median of the others.")
    ratio: float
    cause: str = Field(description="Where the difference is: data, compute or save.")


class Stall(Answer):
    """A worker that makes no progress: its step takes more than three times as long as usual.

    Before its first step nobody knows what is usual, and half of its watchdog's limit counts.
    """

    stalled_s: float
    limit_s: float = Field(description="After so long its watchdog ends it.")
    waits_on_others: bool
    in_collective: bool
    paused: bool


class Worker(Answer):
    """One worker as the coordinator knows it."""

    worker_id: str
    incarnation: str
    rank: int | None = Field(description="None if it left or failed.")
    state: str
    is_present: bool
    step: int
    epoch: int
    lag: int | None = Field(description="Steps behind the furthest worker.")
    host: str
    gpu_count: int
    memory_bytes: int
    last_seen_s: float | None = Field(
        description="Its last heartbeat; None if none came since the coordinator started."
    )
    lease_until_s: float | None
    is_connected: bool
    step_s: float | None
    samples_per_s: float | None
    metrics: dict[str, float | None] = Field(
        description="What it reports of its last step, such as the loss; null for what is not a finite number."
    )
    parts: TimeParts | None = Field(description="Its own time since it joined.")
    own_step_s: float | None = Field(description="Seconds a step without waiting for others, lately.")
    straggles: Straggling | None
    stall: Stall | None


class ShardCount(Answer):
    """How many shards of a dataset a worker has."""

    worker_id: str
    shards: int


class EpochProgress(Answer):
    """What the model has seen of an epoch."""

    epoch: int
    seen_samples: int
    total_samples: int


class Dataset(Answer):
    """A dataset of a job."""

    dataset_id: str
    total_samples: int
    total_shards: int
    shard_size: int
    shuffle: bool
    seed: int
    order: str
    skipped_samples: int
    epochs: list[EpochProgress] = Field(description="The newest last; at most 20.")
    shards: list[ShardCount] = Field(description="Whole shards by worker, by rank; empty if nothing was dealt.")
    moved_shards: int | None = Field(
        description="Shards that changed hands at the last change of workers; None if not known."
    )


class SampleSet(Answer):
    """Samples that an audit found: how many, and the first ranges of them."""

    samples: int
    ranges: list[tuple[int, int]]


class Audit(Answer):
    """What the model has seen of an epoch, sample by sample."""

    epoch: int
    exactly_once: bool
    total_samples: int
    missing: SampleSet
    repeated: SampleSet
    skipped: SampleSet


class DatasetDetail(Answer):
    """A dataset, and the audit of one of its epochs."""

    dataset: Dataset
    audit: Audit


class CheckpointState(StrEnum):
    """Where a checkpoint is in its life."""

    COLLECTING = "collecting"
    WRITING = "writing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    REJECTED = "rejected"


class SavePhases(Answer):
    """Seconds of the slowest worker in each phase of a save."""

    blocked: float = Field(description="Training was held up.")
    stage: float = Field(description="Until the state was copied.")
    write: float = Field(description="Until the part was durable.")
    commit: float = Field(description="Until all workers were done and the manifest was written.")


class Checkpoint(Answer):
    """A checkpoint, from its first part on."""

    step: int
    epoch: int
    state: CheckpointState
    reason: str = Field(description="Why it was aborted or rejected.")
    manifest: str
    began_s: float | None = Field(description="When the first part was reported.")
    committed_s: float | None
    parts: int | None
    expected_parts: int | None
    missing: list[str] = Field(description="Workers whose parts are missing; at most 100.")
    size_bytes: int | None = Field(description="What the parts of this step have written.")
    full_bytes: int | None = Field(description="What the state takes in full; more than size_bytes for a delta.")
    bytes_per_s: float | None
    phases: SavePhases | None
    diverged: bool | None = Field(
        description="Whether ranks held different values of what should be the same; None if that was not compared."
    )
    divergence: str = Field(description="Which ranks, and of which tensor; empty if none.")


class MissingAtBarrier(Answer):
    """A worker that others wait for."""

    worker_id: str
    rank: int
    state: str
    step: int
    last_seen_s: float | None


class Barrier(Answer):
    """A barrier that someone waits at now."""

    name: str
    round: int
    arrived: int
    expected: int
    began_s: float = Field(description="When the first worker arrived.")
    deadline_s: float
    missing: list[MissingAtBarrier] = Field(description="At most 100.")
    missing_total: int


class ReleasedBarrier(Answer):
    """A barrier that was released."""

    name: str
    workers: int
    waited_s: float = Field(description="How long the first waited for the last.")
    last_worker: str
    released_s: float | None


class Barriers(Answer):
    """Barriers that are open, the last that were released, and how long they took."""

    open: list[Barrier]
    released: list[ReleasedBarrier] = Field(description="The newest last; at most 50.")
    released_total: int = Field(description="Since the coordinator started.")
    wait_p50_s: float | None = Field(description="Of the last 1,024 that were released.")
    wait_p99_s: float | None


class EventEntry(Answer):
    """Something that happened."""

    position: str = Field(description="Ask for what comes after it with ?after=.")
    at_s: float
    job_id: str
    worker_id: str | None
    kind: str
    reason: str
    cause: str | None
    is_failure: bool
    by: str = Field(description="The name of the token whose command caused it; empty for what time did.")
    address: str = Field(description="From where that command came.")


class Events(Answer):
    """Events in the order in which they happened."""

    items: list[EventEntry]
    next: str = Field(description="Pass it as ?after= to get what comes next.")
    has_more: bool = Field(description="Whether more matches now.")
    lost: bool = Field(description="Whether events after the position asked for are no longer known.")
