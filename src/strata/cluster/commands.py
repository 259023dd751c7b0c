"""What the cluster can be asked to do: immutable values, each with all that deciding it needs.

A command that changes durable state is journaled before its reply is sent. The others are said again by the workers
after a restart of the coordinator, so losing them loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from strata.sharding import DataOrder

BARRIER_TIMEOUT_S = 300.0


class WorkerState(StrEnum):
    """Where a worker is in its life; :data:`strata.cluster.membership.TRANSITIONS` says what may follow what."""

    INITIALIZING = "initializing"
    IDLE = "idle"
    LOADING_DATA = "loading_data"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    RECOVERING = "recovering"
    FAILED = "failed"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A command to one job."""

    durable: ClassVar[bool] = True
    job_id: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand(JobCommand):
    """A command of one worker; ``incarnation`` is new after each restart of its process."""

    worker_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedCommand(WorkerCommand):
    """A command that only means something within the generation that it was sent in."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureJob(JobCommand):
    """Set how many workers a job needs to run and may have at the most."""

    min_workers: int = 1
    max_workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterWorker(WorkerCommand):
    """Join a job. The same incarnation again changes nothing; a new one replaces the old."""

    address: str = ""
    gpu_count: int = 0
    memory_bytes: int = 0
    preferred_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(WorkerCommand):
    """A sign of life, with what the worker is doing."""

    durable: ClassVar[bool] = False
    state: WorkerState = WorkerState.IDLE
    step: int = 0
    epoch: int = 0
    resources: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouch(WorkerCommand):
    """A process beside the worker says that it lives, although it cannot say so itself at the moment."""

    durable: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye(WorkerCommand):
    """Leave on purpose."""

    reason: str = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLost(WorkerCommand):
    """The worker's connection closed without goodbye: it has a short grace to come back."""

    durable: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWorkers(JobCommand):
    """Declare workers dead; made by :meth:`Cluster.due`, so that the journal holds the decision and not the clock."""

    workers: tuple[tuple[str, str], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArriveAtBarrier(FencedCommand):
    """Meet the others; with a payload, everyone gets everyone's. The same arrival again changes nothing."""

    durable: ClassVar[bool] = False
    name: str
    expected: int | None = None
    timeout_s: float = BARRIER_TIMEOUT_S
    payload: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBarrier(JobCommand):
    """Send everyone who waits at a barrier away."""

    durable: ClassVar[bool] = False
    name: str
    reason: str = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterDataset(JobCommand):
    """Make a dataset known; the same one again changes nothing."""

    dataset_id: str
    total_samples: int
    shard_size: int
    shuffle: bool = False
    seed: int = 0
    data_order: DataOrder = DataOrder.STICKY


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRestorePoint(FencedCommand):
    """Ask from which checkpoint this generation goes on; all its workers get the same answer.

    The first one to ask sets the ledger back to that checkpoint: what was reported after it is void.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeHand(FencedCommand):
    """Ask for the worker's next samples of an epoch; the first one of a generation to ask has what is left dealt.

    ``ticket`` counts a worker's questions of a generation from 1 on; an empty hand means that there is no more.
    """

    dataset_id: str
    epoch: int
    ticket: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProgress(FencedCommand):
    """Samples that the model has seen in ``step``: rows (shard, start, stop), as the hand gives them.

    ``sequence`` counts the reports of an incarnation from 1 on, so that one that is sent twice counts once.
    """

    sequence: int
    dataset_id: str
    epoch: int
    step: int
    spans: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSamples(FencedCommand):
    """Samples [start, stop) of a dataset that could not be read and are left out on purpose; progress counts them."""

    dataset_id: str
    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AckPart(FencedCommand):
    """The worker's part of a checkpoint is durable in storage, and all its progress up to ``step`` was reported."""

    step: int
    epoch: int
    part: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmCommit(WorkerCommand):
    """The manifest of a step is in storage: the checkpoint is committed, whoever wrote it, and whoever confirms it.

    ``generation`` is that of the workers whose parts it has, which may be over.
    """

    step: int
    epoch: int
    generation: int
    manifest: str
    cursors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCommit(WorkerCommand):
    """Ask how the checkpoint is doing that this part was acknowledged for; changes nothing."""

    durable: ClassVar[bool] = False
    step: int
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpCheckpoint(WorkerCommand):
    """The manifest of a step cannot be written, whoever tries: its parts do not make up one state, say."""

    step: int
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectCheckpoint(FencedCommand):
    """What this generation goes on from cannot be restored, because storage lost it or damaged it.

    That ends the generation, so that all its workers go back to an older checkpoint together.
    """

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortCheckpoint(JobCommand):
    """Give a checkpoint up; made by :meth:`Cluster.due` when it takes too long, or by an operator."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForManifest(JobCommand):
    """Ask the next worker to write a manifest that is still missing; made by :meth:`Cluster.due`."""

    durable: ClassVar[bool] = False
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireBarrier(JobCommand):
    """Send everyone away from a barrier whose time is up; made by :meth:`Cluster.due`."""

    durable: ClassVar[bool] = False
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptCheckpoints(JobCommand):
    """Take committed checkpoints into the index from a listing of storage, which holds the truth."""

    checkpoints: tuple[tuple[int, int, str, str], ...]
    """Rows of (step, epoch, manifest path, data cursors as JSON)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCheckpoints(JobCommand):
    """Take deleted checkpoints out of the index; the newest stays whatever is asked."""

    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetKey(JobCommand):
    """Set a small value if its token is still the one given; 0 stands for a key that is not there.

    ``writer`` is new with each call and the same when that call is repeated, so that a lost reply is no lost race.
    """

    key: str
    value: bytes
    token: int
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKey(JobCommand):
    """Ask for a small value and its token."""

    durable: ClassVar[bool] = False
    key: str
