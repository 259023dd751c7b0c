"""What the cluster can be asked to do: immutable values, each with all that deciding it needs.

A command that changes durable state is journaled before its reply is sent. The others are said again by the workers
after a restart of the coordinator, so losing them loses nothing.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import ClassVar

from strata.cluster.events import Cause
from strata.cluster.values import CommitRecord, Divergence, Incarnation, Meeting, PartReport, Span, WorkerAccount
from strata.immutable import immutable
from strata.sharding import DataOrder
from strata.sharding.order import GLOBAL_WINDOW_SHARDS

BARRIER_TIMEOUT_S = 300.0
DEFAULT_JOB = "default"


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


@immutable(frozen=True, slots=True, kw_only=True)
class Command:
    """Anything that the cluster can be asked to do."""

    durable: ClassVar[bool] = True
    is_sign_of_life: ClassVar[bool] = False
    """Whether the sender's lease is renewed before the command is carried out, whatever becomes of it."""


@immutable(frozen=True, slots=True, kw_only=True)
class JobCommand(Command):
    """A command to one job, by its full name: see :mod:`strata.cluster.access.names`."""

    job_id: str = DEFAULT_JOB


@immutable(frozen=True, slots=True, kw_only=True)
class WorkerCommand(JobCommand):
    """A command of one worker; ``incarnation`` is new after each restart of its process."""

    is_sign_of_life: ClassVar[bool] = True
    worker_id: str
    incarnation: str


@immutable(frozen=True, slots=True, kw_only=True)
class GenerationCommand(WorkerCommand):
    """A command that only means something within the generation that it was sent in."""

    generation: int


@immutable(frozen=True, slots=True, kw_only=True)
class ConfigureJob(JobCommand):
    """Set how many workers a job needs to run and may have at the most."""

    min_workers: int = 1
    max_workers: int | None = None


@immutable(frozen=True, slots=True, kw_only=True)
class RegisterWorker(WorkerCommand):
    """Join a job. The same incarnation again changes nothing; a new one replaces the old."""

    address: str = ""
    gpu_count: int = 0
    memory_bytes: int = 0
    preferred_rank: int | None = None


@immutable(frozen=True, slots=True, kw_only=True)
class Heartbeat(WorkerCommand):
    """A sign of life, with what the worker is doing."""

    durable: ClassVar[bool] = False
    # Its own handler renews the lease: heartbeats are most of all commands.
    is_sign_of_life: ClassVar[bool] = False
    state: WorkerState = WorkerState.IDLE
    step: int = 0
    epoch: int = 0
    resources: dict[str, float] = field(default_factory=dict)
    account: WorkerAccount | None = None


@immutable(frozen=True, slots=True, kw_only=True)
class KeepAlive(WorkerCommand):
    """A process beside the worker says that it lives, although it cannot say so itself at the moment."""

    durable: ClassVar[bool] = False
    is_sign_of_life: ClassVar[bool] = False


@immutable(frozen=True, slots=True, kw_only=True)
class Goodbye(WorkerCommand):
    """Leave on purpose."""

    reason: str = ""
    cause: Cause = Cause.LEFT


@immutable(frozen=True, slots=True, kw_only=True)
class ReportStall(WorkerCommand):
    """The worker's watchdog says that its training stands still, or that it goes on again; told to people, no more."""

    durable: ClassVar[bool] = False
    reason: str
    is_over: bool = False


@immutable(frozen=True, slots=True, kw_only=True)
class ChannelLost(WorkerCommand):
    """The worker's connection closed without goodbye: it has a short grace to come back."""

    durable: ClassVar[bool] = False
    is_sign_of_life: ClassVar[bool] = False


@immutable(frozen=True, slots=True, kw_only=True)
class FailWorkers(JobCommand):
    """Declare workers dead; made by :meth:`Cluster.due`, so that the journal holds the decision and not the clock."""

    workers: tuple[Incarnation, ...]
    reason: str
    cause: Cause = Cause.LEASE_ENDED


@immutable(frozen=True, slots=True, kw_only=True)
class ForgetWorkers(JobCommand):
    """Forget workers that left or failed long ago; made by :meth:`Cluster.due`."""

    workers: tuple[Incarnation, ...]


@immutable(frozen=True, slots=True, kw_only=True)
class RemoveJob(JobCommand):
    """Forget a job that nobody works on; made by an operator, or by :meth:`Cluster.due`. Its checkpoints stay."""

    reason: str = "removed by an operator"


@immutable(frozen=True, slots=True, kw_only=True)
class ArriveAtBarrier(GenerationCommand):
    """Meet the others; with a payload, everyone gets everyone's. The same arrival again changes nothing.

    ``round`` counts the times that the worker meets the others under this name in this generation, from 1 on.
    """

    durable: ClassVar[bool] = False
    name: str
    round: int = 1
    expected: int | None = None
    timeout_s: float = BARRIER_TIMEOUT_S
    payload: bytes | None = None


@immutable(frozen=True, slots=True, kw_only=True)
class OfferReleases(GenerationCommand):
    """The worker says which barriers of this generation were released to it, when it joins again.

    A coordinator that restarted has forgotten them, while others may not have been told: it asks for those that someone
    waits at, with a ReleaseWanted.
    """

    durable: ClassVar[bool] = False
    meetings: tuple[Meeting, ...]


@immutable(frozen=True, slots=True, kw_only=True)
class BringRelease(GenerationCommand):
    """What a meeting came to, from a worker that was told, for those that were not."""

    durable: ClassVar[bool] = False
    name: str
    round: int
    payloads: tuple[bytes, ...]
    waited_s: float


@immutable(frozen=True, slots=True, kw_only=True)
class CancelBarrier(JobCommand):
    """Send everyone who waits at a barrier away."""

    durable: ClassVar[bool] = False
    name: str
    reason: str = "cancelled"


@immutable(frozen=True, slots=True, kw_only=True)
class RegisterDataset(JobCommand):
    """Make a dataset known; the same one again changes nothing."""

    dataset_id: str
    total_samples: int
    shard_size: int
    shuffle: bool = False
    seed: int = 0
    data_order: DataOrder = DataOrder.STICKY
    window_shards: int = GLOBAL_WINDOW_SHARDS


@immutable(frozen=True, slots=True, kw_only=True)
class AskRestorePoint(GenerationCommand):
    """Ask from which checkpoint this generation goes on; all its workers get the same answer.

    The first one to ask sets the ledger back to that checkpoint: what was reported after it is discarded. Suspect
    checkpoints are passed over while there are others, unless it says ``allow_suspect``.
    """

    allow_suspect: bool = False


@immutable(frozen=True, slots=True, kw_only=True)
class AssignShards(JobCommand):
    """Assign the shards of a dataset to the present workers; the coordinator itself sends it before the first lookup.

    It is durable because the next assignment follows from this one, after a restart and on another replica too.
    """

    dataset_id: str


@immutable(frozen=True, slots=True, kw_only=True)
class LeaseShards(GenerationCommand):
    """Ask for the worker's next samples of an epoch; the first one of a generation to ask has what is left dealt.

    ``sequence`` counts a worker's questions of a generation from 1 on; an empty lease means that there is no more.
    """

    dataset_id: str
    epoch: int
    sequence: int = 1


@immutable(frozen=True, slots=True, kw_only=True)
class ReportProgress(GenerationCommand):
    """Samples that the model has seen in ``step``: rows (shard, start, stop), as the shard lease gives them.

    ``sequence`` counts the reports of an incarnation from 1 on, so that one that is sent twice counts once. With
    ``is_passed_over`` the model has not seen them: a rewind skips them.
    """

    sequence: int
    dataset_id: str
    epoch: int
    step: int
    spans: tuple[Span, ...]
    is_passed_over: bool = False


@immutable(frozen=True, slots=True, kw_only=True)
class SkipSamples(GenerationCommand):
    """Samples [start, stop) of a dataset that could not be read and are left out on purpose; progress counts them."""

    dataset_id: str
    start: int
    stop: int
    reason: str


@immutable(frozen=True, slots=True, kw_only=True)
class ReportPart(GenerationCommand):
    """The worker's part of a checkpoint is durable in storage, and all its progress up to ``step`` was reported.

    A worker reports its parts in the order of their steps: one of a later step says that an earlier one never comes.
    ``progress`` is the sequence of its last ReportProgress before this; a cut without one of those would be torn.
    """

    step: int
    epoch: int
    report: PartReport
    progress: int = 0


@immutable(frozen=True, slots=True, kw_only=True)
class ConfirmCommit(WorkerCommand):
    """The manifest of a step is in storage: the checkpoint is committed, whoever wrote it, and whoever confirms it.

    ``generation`` is that of the workers whose parts it has, which may be over: only a checkpoint of that generation
    that waits for its manifest is committed. ``cursors`` is what the manifest says, while the coordinator goes by its
    own. ``diverged`` says that the workers held different values of what should be the same on all.
    """

    step: int
    epoch: int
    generation: int
    manifest: str
    cursors: str
    diverged: Divergence | None = None


@immutable(frozen=True, slots=True, kw_only=True)
class AskCommit(WorkerCommand):
    """Ask how the checkpoint is doing that has the part with this report; changes nothing."""

    durable: ClassVar[bool] = False
    step: int
    path: str


@immutable(frozen=True, slots=True, kw_only=True)
class ReportRepair(WorkerCommand):
    """The worker's answer to RepairWanted: a part with the blocks that it repairs is durable, or it has none."""

    step: int
    generation: int
    repair: PartReport | None = None


@immutable(frozen=True, slots=True, kw_only=True)
class GiveUpCheckpoint(WorkerCommand):
    """The manifest of a step cannot be written, whoever tries: its parts do not make up one state, say."""

    step: int
    generation: int
    reason: str


@immutable(frozen=True, slots=True, kw_only=True)
class RejectCheckpoint(GenerationCommand):
    """What this generation goes on from cannot be restored, because storage lost it or damaged it.

    That ends the generation, so that all its workers go back to an older checkpoint together.
    """

    step: int
    reason: str


@immutable(frozen=True, slots=True, kw_only=True)
class AbortCheckpoint(JobCommand):
    """Give a checkpoint up; made by :meth:`Cluster.due` when it takes too long, or by an operator."""

    step: int
    reason: str


@immutable(frozen=True, slots=True, kw_only=True)
class EndRepair(JobCommand):
    """Have the manifest written with what was repaired until now; made by :meth:`Cluster.due`.

    It is durable because repairs that come after it do not count, on another replica or after a restart too.
    """

    step: int


@immutable(frozen=True, slots=True, kw_only=True)
class AskForManifest(JobCommand):
    """Ask the next worker to write a manifest that is still missing; made by :meth:`Cluster.due`."""

    durable: ClassVar[bool] = False
    step: int


@immutable(frozen=True, slots=True, kw_only=True)
class ExpireBarrier(JobCommand):
    """Send everyone away from a barrier whose time is up; made by :meth:`Cluster.due`."""

    durable: ClassVar[bool] = False
    name: str
    round: int = 1


@immutable(frozen=True, slots=True, kw_only=True)
class AdoptCheckpoints(JobCommand):
    """Take committed checkpoints into the index from a listing of storage, which holds the truth."""

    checkpoints: tuple[CommitRecord, ...]


@immutable(frozen=True, slots=True, kw_only=True)
class RewindJob(JobCommand):
    """An operator rewound the job in storage: it goes on from ``to_step``, and what is newer is no longer in the index.

    ``number`` counts the rewinds of a job from 1 on, so that one that is told by several counts once.
    """

    number: int
    to_step: int
    reason: str


@immutable(frozen=True, slots=True, kw_only=True)
class ForgetCheckpoints(JobCommand):
    """Take deleted checkpoints out of the index; the newest stays, unless an operator says that it cannot be used."""

    steps: tuple[int, ...]
    even_newest: bool = False


@immutable(frozen=True, slots=True, kw_only=True)
class AskCheckpoints(JobCommand):
    """Ask which checkpoints the index has, to compare it with storage; changes nothing."""

    durable: ClassVar[bool] = False


@immutable(frozen=True, slots=True, kw_only=True)
class DropCheckpoints(JobCommand):
    """Take checkpoints out of the index that storage has no longer, as a worker found; the last one stays."""

    steps: tuple[int, ...]


@immutable(frozen=True, slots=True, kw_only=True)
class SetKey(JobCommand):
    """Set a small value if its token is still the one given; 0 stands for a key that is not there.

    ``writer`` is new with each call and the same when that call is repeated, so that a lost reply is no lost race.
    """

    key: str
    value: bytes
    token: int
    writer: str


@immutable(frozen=True, slots=True, kw_only=True)
class GetKey(JobCommand):
    """Ask for a small value and its token."""

    durable: ClassVar[bool] = False
    key: str


COMMANDS: tuple[type[JobCommand], ...] = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, JobCommand) and "Command" not in kind.__name__
)
"""Every kind of command to a job. The wire and the cluster derive their tables from it."""


@immutable(frozen=True, slots=True, kw_only=True)
class ArriveAgain(ArriveAtBarrier):
    """Repeat an arrival for a call that waits, as the coordinator does: it is no sign of life of the worker.

    It is not among the COMMANDS, because no client sends it.
    """

    is_sign_of_life: ClassVar[bool] = False
