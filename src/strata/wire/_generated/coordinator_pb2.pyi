from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientFrame(_message.Message):
    __slots__ = ("id", "command", "get_data_shard")
    ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    GET_DATA_SHARD_FIELD_NUMBER: _ClassVar[int]
    id: int
    command: Command
    get_data_shard: GetDataShard
    def __init__(self, id: _Optional[int] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., get_data_shard: _Optional[_Union[GetDataShard, _Mapping]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("reply", "effect")
    REPLY_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    reply: Reply
    effect: Effect
    def __init__(self, reply: _Optional[_Union[Reply, _Mapping]] = ..., effect: _Optional[_Union[Effect, _Mapping]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("configure_job", "register_worker", "heartbeat", "goodbye", "channel_lost", "fail_workers", "arrive_at_barrier", "cancel_barrier", "register_dataset", "ask_restore_point", "take_hand", "report_progress", "ack_part", "confirm_commit", "abort_checkpoint", "ask_for_manifest", "expire_barrier", "adopt_checkpoints", "forget_checkpoints", "set_key", "get_key", "ask_commit", "give_up_checkpoint", "vouch", "skip_samples", "reject_checkpoint")
    CONFIGURE_JOB_FIELD_NUMBER: _ClassVar[int]
    REGISTER_WORKER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_LOST_FIELD_NUMBER: _ClassVar[int]
    FAIL_WORKERS_FIELD_NUMBER: _ClassVar[int]
    ARRIVE_AT_BARRIER_FIELD_NUMBER: _ClassVar[int]
    CANCEL_BARRIER_FIELD_NUMBER: _ClassVar[int]
    REGISTER_DATASET_FIELD_NUMBER: _ClassVar[int]
    ASK_RESTORE_POINT_FIELD_NUMBER: _ClassVar[int]
    TAKE_HAND_FIELD_NUMBER: _ClassVar[int]
    REPORT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ACK_PART_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ASK_FOR_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_BARRIER_FIELD_NUMBER: _ClassVar[int]
    ADOPT_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FORGET_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    SET_KEY_FIELD_NUMBER: _ClassVar[int]
    GET_KEY_FIELD_NUMBER: _ClassVar[int]
    ASK_COMMIT_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    VOUCH_FIELD_NUMBER: _ClassVar[int]
    SKIP_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REJECT_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    configure_job: ConfigureJob
    register_worker: RegisterWorker
    heartbeat: Heartbeat
    goodbye: Goodbye
    channel_lost: ChannelLost
    fail_workers: FailWorkers
    arrive_at_barrier: ArriveAtBarrier
    cancel_barrier: CancelBarrier
    register_dataset: RegisterDataset
    ask_restore_point: AskRestorePoint
    take_hand: TakeHand
    report_progress: ReportProgress
    ack_part: AckPart
    confirm_commit: ConfirmCommit
    abort_checkpoint: AbortCheckpoint
    ask_for_manifest: AskForManifest
    expire_barrier: ExpireBarrier
    adopt_checkpoints: AdoptCheckpoints
    forget_checkpoints: ForgetCheckpoints
    set_key: SetKey
    get_key: GetKey
    ask_commit: AskCommit
    give_up_checkpoint: GiveUpCheckpoint
    vouch: Vouch
    skip_samples: SkipSamples
    reject_checkpoint: RejectCheckpoint
    def __init__(self, configure_job: _Optional[_Union[ConfigureJob, _Mapping]] = ..., register_worker: _Optional[_Union[RegisterWorker, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., channel_lost: _Optional[_Union[ChannelLost, _Mapping]] = ..., fail_workers: _Optional[_Union[FailWorkers, _Mapping]] = ..., arrive_at_barrier: _Optional[_Union[ArriveAtBarrier, _Mapping]] = ..., cancel_barrier: _Optional[_Union[CancelBarrier, _Mapping]] = ..., register_dataset: _Optional[_Union[RegisterDataset, _Mapping]] = ..., ask_restore_point: _Optional[_Union[AskRestorePoint, _Mapping]] = ..., take_hand: _Optional[_Union[TakeHand, _Mapping]] = ..., report_progress: _Optional[_Union[ReportProgress, _Mapping]] = ..., ack_part: _Optional[_Union[AckPart, _Mapping]] = ..., confirm_commit: _Optional[_Union[ConfirmCommit, _Mapping]] = ..., abort_checkpoint: _Optional[_Union[AbortCheckpoint, _Mapping]] = ..., ask_for_manifest: _Optional[_Union[AskForManifest, _Mapping]] = ..., expire_barrier: _Optional[_Union[ExpireBarrier, _Mapping]] = ..., adopt_checkpoints: _Optional[_Union[AdoptCheckpoints, _Mapping]] = ..., forget_checkpoints: _Optional[_Union[ForgetCheckpoints, _Mapping]] = ..., set_key: _Optional[_Union[SetKey, _Mapping]] = ..., get_key: _Optional[_Union[GetKey, _Mapping]] = ..., ask_commit: _Optional[_Union[AskCommit, _Mapping]] = ..., give_up_checkpoint: _Optional[_Union[GiveUpCheckpoint, _Mapping]] = ..., vouch: _Optional[_Union[Vouch, _Mapping]] = ..., skip_samples: _Optional[_Union[SkipSamples, _Mapping]] = ..., reject_checkpoint: _Optional[_Union[RejectCheckpoint, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("id", "error", "done", "registered", "heard", "restore_point", "hand", "key_value", "commit_progress", "data_shards")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    RESTORE_POINT_FIELD_NUMBER: _ClassVar[int]
    HAND_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_SHARDS_FIELD_NUMBER: _ClassVar[int]
    id: int
    error: Error
    done: Done
    registered: Registered
    heard: Heard
    restore_point: RestorePoint
    hand: Hand
    key_value: KeyValue
    commit_progress: CommitProgress
    data_shards: DataShards
    def __init__(self, id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., registered: _Optional[_Union[Registered, _Mapping]] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ..., restore_point: _Optional[_Union[RestorePoint, _Mapping]] = ..., hand: _Optional[_Union[Hand, _Mapping]] = ..., key_value: _Optional[_Union[KeyValue, _Mapping]] = ..., commit_progress: _Optional[_Union[CommitProgress, _Mapping]] = ..., data_shards: _Optional[_Union[DataShards, _Mapping]] = ...) -> None: ...

class Effect(_message.Message):
    __slots__ = ("generation_changed", "barrier_released", "barrier_failed", "manifest_wanted", "checkpoint_committed", "checkpoint_aborted")
    GENERATION_CHANGED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_RELEASED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FAILED_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_WANTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ABORTED_FIELD_NUMBER: _ClassVar[int]
    generation_changed: GenerationChanged
    barrier_released: BarrierReleased
    barrier_failed: BarrierFailed
    manifest_wanted: ManifestWanted
    checkpoint_committed: CheckpointCommitted
    checkpoint_aborted: CheckpointAborted
    def __init__(self, generation_changed: _Optional[_Union[GenerationChanged, _Mapping]] = ..., barrier_released: _Optional[_Union[BarrierReleased, _Mapping]] = ..., barrier_failed: _Optional[_Union[BarrierFailed, _Mapping]] = ..., manifest_wanted: _Optional[_Union[ManifestWanted, _Mapping]] = ..., checkpoint_committed: _Optional[_Union[CheckpointCommitted, _Mapping]] = ..., checkpoint_aborted: _Optional[_Union[CheckpointAborted, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("kind", "message", "fields")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    fields: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., fields: _Optional[str] = ...) -> None: ...

class ConfigureJob(_message.Message):
    __slots__ = ("job_id", "min_workers", "max_workers")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    min_workers: int
    max_workers: int
    def __init__(self, job_id: _Optional[str] = ..., min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ...) -> None: ...

class RegisterWorker(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "address", "gpu_count", "memory_bytes", "preferred_rank")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_RANK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    address: str
    gpu_count: int
    memory_bytes: int
    preferred_rank: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., gpu_count: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., preferred_rank: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "state", "step", "epoch", "resources")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    state: str
    step: int
    epoch: int
    resources: _containers.ScalarMap[str, float]
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., state: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Vouch(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ChannelLost(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class FailWorkers(_message.Message):
    __slots__ = ("job_id", "workers", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    workers: _containers.RepeatedCompositeFieldContainer[Incarnation]
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[Incarnation, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class Incarnation(_message.Message):
    __slots__ = ("worker_id", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class ArriveAtBarrier(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "name", "expected", "timeout_s", "payload")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    name: str
    expected: int
    timeout_s: float
    payload: bytes
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., name: _Optional[str] = ..., expected: _Optional[int] = ..., timeout_s: _Optional[float] = ..., payload: _Optional[bytes] = ...) -> None: ...

class CancelBarrier(_message.Message):
    __slots__ = ("job_id", "name", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ExpireBarrier(_message.Message):
    __slots__ = ("job_id", "name")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class RegisterDataset(_message.Message):
    __slots__ = ("job_id", "dataset_id", "total_samples", "shard_size", "shuffle", "seed", "data_order")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DATA_ORDER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    total_samples: int
    shard_size: int
    shuffle: bool
    seed: int
    data_order: str
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., total_samples: _Optional[int] = ..., shard_size: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., data_order: _Optional[str] = ...) -> None: ...

class AskRestorePoint(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class TakeHand(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "dataset_id", "epoch", "ticket")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    dataset_id: str
    epoch: int
    ticket: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., dataset_id: _Optional[str] = ..., epoch: _Optional[int] = ..., ticket: _Optional[int] = ...) -> None: ...

class ReportProgress(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "sequence", "dataset_id", "epoch", "step", "spans")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    sequence: int
    dataset_id: str
    epoch: int
    step: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., sequence: _Optional[int] = ..., dataset_id: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("shard", "start", "stop")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    shard: int
    start: int
    stop: int
    def __init__(self, shard: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class SkipSamples(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "dataset_id", "start", "stop", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    dataset_id: str
    start: int
    stop: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., dataset_id: _Optional[str] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AckPart(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "step", "epoch", "part", "size_bytes", "digest")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    step: int
    epoch: int
    part: str
    size_bytes: int
    digest: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., part: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class ConfirmCommit(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "step", "epoch", "manifest", "cursors", "generation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    step: int
    epoch: int
    manifest: str
    cursors: str
    generation: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., manifest: _Optional[str] = ..., cursors: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class AskCommit(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "step", "part")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    step: int
    part: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., step: _Optional[int] = ..., part: _Optional[str] = ...) -> None: ...

class GiveUpCheckpoint(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "step", "generation", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    step: int
    generation: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., step: _Optional[int] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RejectCheckpoint(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "step", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    step: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortCheckpoint(_message.Message):
    __slots__ = ("job_id", "step", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AskForManifest(_message.Message):
    __slots__ = ("job_id", "step")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class AdoptCheckpoints(_message.Message):
    __slots__ = ("job_id", "checkpoints")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    def __init__(self, job_id: _Optional[str] = ..., checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ...) -> None: ...

class ForgetCheckpoints(_message.Message):
    __slots__ = ("job_id", "steps")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job_id: _Optional[str] = ..., steps: _Optional[_Iterable[int]] = ...) -> None: ...

class SetKey(_message.Message):
    __slots__ = ("job_id", "key", "value", "token", "writer")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    key: str
    value: bytes
    token: int
    writer: str
    def __init__(self, job_id: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ..., token: _Optional[int] = ..., writer: _Optional[str] = ...) -> None: ...

class GetKey(_message.Message):
    __slots__ = ("job_id", "key")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    key: str
    def __init__(self, job_id: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class GetDataShard(_message.Message):
    __slots__ = ("job_id", "dataset_id", "worker_id", "epoch", "rank")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    worker_id: str
    epoch: int
    rank: int
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class DataShards(_message.Message):
    __slots__ = ("total_shards", "shards")
    TOTAL_SHARDS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    total_shards: int
    shards: _containers.RepeatedCompositeFieldContainer[DataShard]
    def __init__(self, total_shards: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[DataShard, _Mapping]]] = ...) -> None: ...

class DataShard(_message.Message):
    __slots__ = ("shard_id", "start_index", "end_index")
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    START_INDEX_FIELD_NUMBER: _ClassVar[int]
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    shard_id: int
    start_index: int
    end_index: int
    def __init__(self, shard_id: _Optional[int] = ..., start_index: _Optional[int] = ..., end_index: _Optional[int] = ...) -> None: ...

class AuditData(_message.Message):
    __slots__ = ("job_id", "dataset_id", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class DataAudit(_message.Message):
    __slots__ = ("total_samples", "missing", "repeated", "skipped")
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    total_samples: int
    missing: SampleRanges
    repeated: SampleRanges
    skipped: SampleRanges
    def __init__(self, total_samples: _Optional[int] = ..., missing: _Optional[_Union[SampleRanges, _Mapping]] = ..., repeated: _Optional[_Union[SampleRanges, _Mapping]] = ..., skipped: _Optional[_Union[SampleRanges, _Mapping]] = ...) -> None: ...

class SampleRanges(_message.Message):
    __slots__ = ("samples", "ranges")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    samples: int
    ranges: _containers.RepeatedCompositeFieldContainer[SampleRange]
    def __init__(self, samples: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[SampleRange, _Mapping]]] = ...) -> None: ...

class SampleRange(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class GetLatestCheckpoint(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListCheckpoints(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class Checkpoints(_message.Message):
    __slots__ = ("checkpoints",)
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ...) -> None: ...

class GetStatus(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job_id", "generation", "waits_for", "workers", "datasets", "barriers", "checkpoints", "pending", "rejected")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    generation: int
    waits_for: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetStatus]
    barriers: _containers.RepeatedCompositeFieldContainer[BarrierStatus]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    pending: _containers.RepeatedCompositeFieldContainer[PendingStatus]
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedStatus]
    def __init__(self, job_id: _Optional[str] = ..., generation: _Optional[int] = ..., waits_for: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., datasets: _Optional[_Iterable[_Union[DatasetStatus, _Mapping]]] = ..., barriers: _Optional[_Iterable[_Union[BarrierStatus, _Mapping]]] = ..., checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., pending: _Optional[_Iterable[_Union[PendingStatus, _Mapping]]] = ..., rejected: _Optional[_Iterable[_Union[RejectedStatus, _Mapping]]] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker_id", "rank", "state", "step", "epoch", "silent_s", "address", "gpu_count", "resources")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    rank: int
    state: str
    step: int
    epoch: int
    silent_s: float
    address: str
    gpu_count: int
    resources: _containers.ScalarMap[str, float]
    def __init__(self, worker_id: _Optional[str] = ..., rank: _Optional[int] = ..., state: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., silent_s: _Optional[float] = ..., address: _Optional[str] = ..., gpu_count: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ...) -> None: ...

class DatasetStatus(_message.Message):
    __slots__ = ("dataset_id", "total_samples", "total_shards")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SHARDS_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    total_samples: int
    total_shards: int
    def __init__(self, dataset_id: _Optional[str] = ..., total_samples: _Optional[int] = ..., total_shards: _Optional[int] = ...) -> None: ...

class BarrierStatus(_message.Message):
    __slots__ = ("name", "arrived", "expected", "missing")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    name: str
    arrived: int
    expected: int
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., arrived: _Optional[int] = ..., expected: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class PendingStatus(_message.Message):
    __slots__ = ("step", "writing", "missing")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WRITING_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    step: int
    writing: bool
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[int] = ..., writing: _Optional[bool] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class RejectedStatus(_message.Message):
    __slots__ = ("step", "reason")
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    step: int
    reason: str
    def __init__(self, step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StreamEvents(_message.Message):
    __slots__ = ("job_id", "once")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    once: bool
    def __init__(self, job_id: _Optional[str] = ..., once: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("time_s", "job_id", "worker_id", "kind", "reason")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    job_id: str
    worker_id: str
    kind: str
    reason: str
    def __init__(self, time_s: _Optional[float] = ..., job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., kind: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Registered(_message.Message):
    __slots__ = ("rank", "world_size", "generation", "waits_for", "lease_s", "channel_url", "protocol")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_URL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    rank: int
    world_size: int
    generation: int
    waits_for: int
    lease_s: float
    channel_url: str
    protocol: int
    def __init__(self, rank: _Optional[int] = ..., world_size: _Optional[int] = ..., generation: _Optional[int] = ..., waits_for: _Optional[int] = ..., lease_s: _Optional[float] = ..., channel_url: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("rank", "world_size", "generation", "waits_for")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    rank: int
    world_size: int
    generation: int
    waits_for: int
    def __init__(self, rank: _Optional[int] = ..., world_size: _Optional[int] = ..., generation: _Optional[int] = ..., waits_for: _Optional[int] = ...) -> None: ...

class RestorePoint(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class CommitProgress(_message.Message):
    __slots__ = ("phase", "missing", "reason")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    phase: str
    missing: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, phase: _Optional[str] = ..., missing: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("step", "epoch", "manifest", "cursors")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    manifest: str
    cursors: str
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., manifest: _Optional[str] = ..., cursors: _Optional[str] = ...) -> None: ...

class Hand(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("value", "token", "is_set")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    IS_SET_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    token: int
    is_set: bool
    def __init__(self, value: _Optional[bytes] = ..., token: _Optional[int] = ..., is_set: _Optional[bool] = ...) -> None: ...

class GenerationChanged(_message.Message):
    __slots__ = ("job_id", "to", "generation", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class BarrierReleased(_message.Message):
    __slots__ = ("job_id", "to", "name", "generation", "payloads", "waited_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    name: str
    generation: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    waited_s: float
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ..., waited_s: _Optional[float] = ...) -> None: ...

class BarrierFailed(_message.Message):
    __slots__ = ("job_id", "to", "name", "error")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    name: str
    error: Error
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ManifestWanted(_message.Message):
    __slots__ = ("job_id", "to", "step", "epoch", "generation", "parts", "cursors")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    step: int
    epoch: int
    generation: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    cursors: str
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., cursors: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("path", "size_bytes", "digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    digest: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class CheckpointCommitted(_message.Message):
    __slots__ = ("job_id", "to", "step", "manifest")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    step: int
    manifest: str
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., manifest: _Optional[str] = ...) -> None: ...

class CheckpointAborted(_message.Message):
    __slots__ = ("job_id", "to", "step", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    step: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
