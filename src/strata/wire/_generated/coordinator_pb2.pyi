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
    __slots__ = ("configure_job", "register_worker", "heartbeat", "goodbye", "channel_lost", "fail_workers", "arrive_at_barrier", "cancel_barrier", "register_dataset", "ask_restore_point", "lease_shards", "report_progress", "report_part", "confirm_commit", "abort_checkpoint", "ask_for_manifest", "expire_barrier", "adopt_checkpoints", "forget_checkpoints", "set_key", "get_key", "ask_commit", "give_up_checkpoint", "keep_alive", "skip_samples", "reject_checkpoint", "offer_releases", "bring_release", "forget_workers", "remove_job", "rewind_job", "report_stall", "assign_shards", "report_repair", "end_repair", "ask_checkpoints", "drop_checkpoints", "create_tenant", "set_tenant", "remove_tenant", "create_token", "revoke_token", "forget_tokens", "by", "address", "rules")
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
    LEASE_SHARDS_FIELD_NUMBER: _ClassVar[int]
    REPORT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REPORT_PART_FIELD_NUMBER: _ClassVar[int]
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
    KEEP_ALIVE_FIELD_NUMBER: _ClassVar[int]
    SKIP_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REJECT_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    OFFER_RELEASES_FIELD_NUMBER: _ClassVar[int]
    BRING_RELEASE_FIELD_NUMBER: _ClassVar[int]
    FORGET_WORKERS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_JOB_FIELD_NUMBER: _ClassVar[int]
    REWIND_JOB_FIELD_NUMBER: _ClassVar[int]
    REPORT_STALL_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_SHARDS_FIELD_NUMBER: _ClassVar[int]
    REPORT_REPAIR_FIELD_NUMBER: _ClassVar[int]
    END_REPAIR_FIELD_NUMBER: _ClassVar[int]
    ASK_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    DROP_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TENANT_FIELD_NUMBER: _ClassVar[int]
    SET_TENANT_FIELD_NUMBER: _ClassVar[int]
    REMOVE_TENANT_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVOKE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FORGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
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
    lease_shards: LeaseShards
    report_progress: ReportProgress
    report_part: ReportPart
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
    keep_alive: KeepAlive
    skip_samples: SkipSamples
    reject_checkpoint: RejectCheckpoint
    offer_releases: OfferReleases
    bring_release: BringRelease
    forget_workers: ForgetWorkers
    remove_job: RemoveJob
    rewind_job: RewindJob
    report_stall: ReportStall
    assign_shards: AssignShards
    report_repair: ReportRepair
    end_repair: EndRepair
    ask_checkpoints: AskCheckpoints
    drop_checkpoints: DropCheckpoints
    create_tenant: CreateTenant
    set_tenant: SetTenant
    remove_tenant: RemoveTenant
    create_token: CreateToken
    revoke_token: RevokeToken
    forget_tokens: ForgetTokens
    by: str
    address: str
    rules: int
    def __init__(self, configure_job: _Optional[_Union[ConfigureJob, _Mapping]] = ..., register_worker: _Optional[_Union[RegisterWorker, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., channel_lost: _Optional[_Union[ChannelLost, _Mapping]] = ..., fail_workers: _Optional[_Union[FailWorkers, _Mapping]] = ..., arrive_at_barrier: _Optional[_Union[ArriveAtBarrier, _Mapping]] = ..., cancel_barrier: _Optional[_Union[CancelBarrier, _Mapping]] = ..., register_dataset: _Optional[_Union[RegisterDataset, _Mapping]] = ..., ask_restore_point: _Optional[_Union[AskRestorePoint, _Mapping]] = ..., lease_shards: _Optional[_Union[LeaseShards, _Mapping]] = ..., report_progress: _Optional[_Union[ReportProgress, _Mapping]] = ..., report_part: _Optional[_Union[ReportPart, _Mapping]] = ..., confirm_commit: _Optional[_Union[ConfirmCommit, _Mapping]] = ..., abort_checkpoint: _Optional[_Union[AbortCheckpoint, _Mapping]] = ..., ask_for_manifest: _Optional[_Union[AskForManifest, _Mapping]] = ..., expire_barrier: _Optional[_Union[ExpireBarrier, _Mapping]] = ..., adopt_checkpoints: _Optional[_Union[AdoptCheckpoints, _Mapping]] = ..., forget_checkpoints: _Optional[_Union[ForgetCheckpoints, _Mapping]] = ..., set_key: _Optional[_Union[SetKey, _Mapping]] = ..., get_key: _Optional[_Union[GetKey, _Mapping]] = ..., ask_commit: _Optional[_Union[AskCommit, _Mapping]] = ..., give_up_checkpoint: _Optional[_Union[GiveUpCheckpoint, _Mapping]] = ..., keep_alive: _Optional[_Union[KeepAlive, _Mapping]] = ..., skip_samples: _Optional[_Union[SkipSamples, _Mapping]] = ..., reject_checkpoint: _Optional[_Union[RejectCheckpoint, _Mapping]] = ..., offer_releases: _Optional[_Union[OfferReleases, _Mapping]] = ..., bring_release: _Optional[_Union[BringRelease, _Mapping]] = ..., forget_workers: _Optional[_Union[ForgetWorkers, _Mapping]] = ..., remove_job: _Optional[_Union[RemoveJob, _Mapping]] = ..., rewind_job: _Optional[_Union[RewindJob, _Mapping]] = ..., report_stall: _Optional[_Union[ReportStall, _Mapping]] = ..., assign_shards: _Optional[_Union[AssignShards, _Mapping]] = ..., report_repair: _Optional[_Union[ReportRepair, _Mapping]] = ..., end_repair: _Optional[_Union[EndRepair, _Mapping]] = ..., ask_checkpoints: _Optional[_Union[AskCheckpoints, _Mapping]] = ..., drop_checkpoints: _Optional[_Union[DropCheckpoints, _Mapping]] = ..., create_tenant: _Optional[_Union[CreateTenant, _Mapping]] = ..., set_tenant: _Optional[_Union[SetTenant, _Mapping]] = ..., remove_tenant: _Optional[_Union[RemoveTenant, _Mapping]] = ..., create_token: _Optional[_Union[CreateToken, _Mapping]] = ..., revoke_token: _Optional[_Union[RevokeToken, _Mapping]] = ..., forget_tokens: _Optional[_Union[ForgetTokens, _Mapping]] = ..., by: _Optional[str] = ..., address: _Optional[str] = ..., rules: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("id", "error", "done", "registered", "heartbeat_reply", "restore_point", "shard_lease", "key_value", "commit_progress", "data_shards", "committed_steps")
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_REPLY_FIELD_NUMBER: _ClassVar[int]
    RESTORE_POINT_FIELD_NUMBER: _ClassVar[int]
    SHARD_LEASE_FIELD_NUMBER: _ClassVar[int]
    KEY_VALUE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_SHARDS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    id: int
    error: Error
    done: Done
    registered: Registered
    heartbeat_reply: HeartbeatReply
    restore_point: RestorePoint
    shard_lease: ShardLease
    key_value: KeyValue
    commit_progress: CommitProgress
    data_shards: DataShards
    committed_steps: CommittedSteps
    def __init__(self, id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., registered: _Optional[_Union[Registered, _Mapping]] = ..., heartbeat_reply: _Optional[_Union[HeartbeatReply, _Mapping]] = ..., restore_point: _Optional[_Union[RestorePoint, _Mapping]] = ..., shard_lease: _Optional[_Union[ShardLease, _Mapping]] = ..., key_value: _Optional[_Union[KeyValue, _Mapping]] = ..., commit_progress: _Optional[_Union[CommitProgress, _Mapping]] = ..., data_shards: _Optional[_Union[DataShards, _Mapping]] = ..., committed_steps: _Optional[_Union[CommittedSteps, _Mapping]] = ...) -> None: ...

class Effect(_message.Message):
    __slots__ = ("generation_changed", "barrier_released", "barrier_failed", "manifest_wanted", "checkpoint_committed", "checkpoint_aborted", "release_wanted", "repair_wanted")
    GENERATION_CHANGED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_RELEASED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FAILED_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_WANTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ABORTED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_WANTED_FIELD_NUMBER: _ClassVar[int]
    REPAIR_WANTED_FIELD_NUMBER: _ClassVar[int]
    generation_changed: GenerationChanged
    barrier_released: BarrierReleased
    barrier_failed: BarrierFailed
    manifest_wanted: ManifestWanted
    checkpoint_committed: CheckpointCommitted
    checkpoint_aborted: CheckpointAborted
    release_wanted: ReleaseWanted
    repair_wanted: RepairWanted
    def __init__(self, generation_changed: _Optional[_Union[GenerationChanged, _Mapping]] = ..., barrier_released: _Optional[_Union[BarrierReleased, _Mapping]] = ..., barrier_failed: _Optional[_Union[BarrierFailed, _Mapping]] = ..., manifest_wanted: _Optional[_Union[ManifestWanted, _Mapping]] = ..., checkpoint_committed: _Optional[_Union[CheckpointCommitted, _Mapping]] = ..., checkpoint_aborted: _Optional[_Union[CheckpointAborted, _Mapping]] = ..., release_wanted: _Optional[_Union[ReleaseWanted, _Mapping]] = ..., repair_wanted: _Optional[_Union[RepairWanted, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("job_id", "worker_id", "incarnation", "state", "step", "epoch", "resources", "account")
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
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    state: str
    step: int
    epoch: int
    resources: _containers.ScalarMap[str, float]
    account: WorkerAccount
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., state: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ..., account: _Optional[_Union[WorkerAccount, _Mapping]] = ...) -> None: ...

class WorkerAccount(_message.Message):
    __slots__ = ("elapsed_s", "compute_s", "data_s", "save_s", "restore_s", "wait_s", "repeated_s", "other_s", "steps", "repeated_steps", "samples", "generation", "rank", "saves")
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    DATA_S_FIELD_NUMBER: _ClassVar[int]
    SAVE_S_FIELD_NUMBER: _ClassVar[int]
    RESTORE_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    REPEATED_S_FIELD_NUMBER: _ClassVar[int]
    OTHER_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    elapsed_s: float
    compute_s: float
    data_s: float
    save_s: float
    restore_s: float
    wait_s: float
    repeated_s: float
    other_s: float
    steps: int
    repeated_steps: int
    samples: int
    generation: int
    rank: int
    saves: _containers.RepeatedCompositeFieldContainer[SaveNote]
    def __init__(self, elapsed_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., data_s: _Optional[float] = ..., save_s: _Optional[float] = ..., restore_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., repeated_s: _Optional[float] = ..., other_s: _Optional[float] = ..., steps: _Optional[int] = ..., repeated_steps: _Optional[int] = ..., samples: _Optional[int] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., saves: _Optional[_Iterable[_Union[SaveNote, _Mapping]]] = ...) -> None: ...

class SaveNote(_message.Message):
    __slots__ = ("step", "blocked_s", "stage_s", "write_s", "commit_s", "full_bytes", "is_failed", "is_diverged")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_S_FIELD_NUMBER: _ClassVar[int]
    STAGE_S_FIELD_NUMBER: _ClassVar[int]
    WRITE_S_FIELD_NUMBER: _ClassVar[int]
    COMMIT_S_FIELD_NUMBER: _ClassVar[int]
    FULL_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_FAILED_FIELD_NUMBER: _ClassVar[int]
    IS_DIVERGED_FIELD_NUMBER: _ClassVar[int]
    step: int
    blocked_s: float
    stage_s: float
    write_s: float
    commit_s: float
    full_bytes: int
    is_failed: bool
    is_diverged: bool
    def __init__(self, step: _Optional[int] = ..., blocked_s: _Optional[float] = ..., stage_s: _Optional[float] = ..., write_s: _Optional[float] = ..., commit_s: _Optional[float] = ..., full_bytes: _Optional[int] = ..., is_failed: _Optional[bool] = ..., is_diverged: _Optional[bool] = ...) -> None: ...

class KeepAlive(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "reason", "cause")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    reason: str
    cause: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., reason: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class ReportStall(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "reason", "is_over")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    reason: str
    is_over: bool
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., reason: _Optional[str] = ..., is_over: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("job_id", "workers", "reason", "cause")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    workers: _containers.RepeatedCompositeFieldContainer[Incarnation]
    reason: str
    cause: str
    def __init__(self, job_id: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[Incarnation, _Mapping]]] = ..., reason: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class ForgetWorkers(_message.Message):
    __slots__ = ("job_id", "workers")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    workers: _containers.RepeatedCompositeFieldContainer[Incarnation]
    def __init__(self, job_id: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[Incarnation, _Mapping]]] = ...) -> None: ...

class RemoveJob(_message.Message):
    __slots__ = ("job_id", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Incarnation(_message.Message):
    __slots__ = ("worker_id", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class ArriveAtBarrier(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "name", "expected", "timeout_s", "payload", "round")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    name: str
    expected: int
    timeout_s: float
    payload: bytes
    round: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., name: _Optional[str] = ..., expected: _Optional[int] = ..., timeout_s: _Optional[float] = ..., payload: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class OfferReleases(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "meetings")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEETINGS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    meetings: _containers.RepeatedCompositeFieldContainer[Meeting]
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., meetings: _Optional[_Iterable[_Union[Meeting, _Mapping]]] = ...) -> None: ...

class Meeting(_message.Message):
    __slots__ = ("name", "round")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    name: str
    round: int
    def __init__(self, name: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class BringRelease(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "name", "round", "payloads", "waited_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    name: str
    round: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    waited_s: float
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., name: _Optional[str] = ..., round: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ..., waited_s: _Optional[float] = ...) -> None: ...

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
    __slots__ = ("job_id", "name", "round")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    round: int
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class RegisterDataset(_message.Message):
    __slots__ = ("job_id", "dataset_id", "total_samples", "shard_size", "shuffle", "seed", "data_order", "window_shards")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DATA_ORDER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SHARDS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    total_samples: int
    shard_size: int
    shuffle: bool
    seed: int
    data_order: str
    window_shards: int
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ..., total_samples: _Optional[int] = ..., shard_size: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., data_order: _Optional[str] = ..., window_shards: _Optional[int] = ...) -> None: ...

class AskRestorePoint(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "allow_suspect")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ALLOW_SUSPECT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    allow_suspect: bool
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., allow_suspect: _Optional[bool] = ...) -> None: ...

class AssignShards(_message.Message):
    __slots__ = ("job_id", "dataset_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    dataset_id: str
    def __init__(self, job_id: _Optional[str] = ..., dataset_id: _Optional[str] = ...) -> None: ...

class LeaseShards(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "dataset_id", "epoch", "sequence")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    dataset_id: str
    epoch: int
    sequence: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., dataset_id: _Optional[str] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class ReportProgress(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "sequence", "dataset_id", "epoch", "step", "spans", "is_passed_over")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    IS_PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    sequence: int
    dataset_id: str
    epoch: int
    step: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    is_passed_over: bool
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., sequence: _Optional[int] = ..., dataset_id: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., is_passed_over: _Optional[bool] = ...) -> None: ...

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

class ReportPart(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "generation", "step", "epoch", "report", "progress")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    generation: int
    step: int
    epoch: int
    report: PartReport
    progress: int
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., report: _Optional[_Union[PartReport, _Mapping]] = ..., progress: _Optional[int] = ...) -> None: ...

class ConfirmCommit(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "step", "epoch", "manifest", "cursors", "generation", "diverged")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    step: int
    epoch: int
    manifest: str
    cursors: str
    generation: int
    diverged: Divergence
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., manifest: _Optional[str] = ..., cursors: _Optional[str] = ..., generation: _Optional[int] = ..., diverged: _Optional[_Union[Divergence, _Mapping]] = ...) -> None: ...

class AskCommit(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "step", "path")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    step: int
    path: str
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., step: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class ReportRepair(_message.Message):
    __slots__ = ("job_id", "worker_id", "incarnation", "step", "generation", "repair")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker_id: str
    incarnation: str
    step: int
    generation: int
    repair: PartReport
    def __init__(self, job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., step: _Optional[int] = ..., generation: _Optional[int] = ..., repair: _Optional[_Union[PartReport, _Mapping]] = ...) -> None: ...

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

class EndRepair(_message.Message):
    __slots__ = ("job_id", "step")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

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
    checkpoints: _containers.RepeatedCompositeFieldContainer[CommitRecord]
    def __init__(self, job_id: _Optional[str] = ..., checkpoints: _Optional[_Iterable[_Union[CommitRecord, _Mapping]]] = ...) -> None: ...

class RewindJob(_message.Message):
    __slots__ = ("job_id", "number", "to_step", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    number: int
    to_step: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., number: _Optional[int] = ..., to_step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ForgetCheckpoints(_message.Message):
    __slots__ = ("job_id", "steps", "even_newest")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EVEN_NEWEST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    steps: _containers.RepeatedScalarFieldContainer[int]
    even_newest: bool
    def __init__(self, job_id: _Optional[str] = ..., steps: _Optional[_Iterable[int]] = ..., even_newest: _Optional[bool] = ...) -> None: ...

class AskCheckpoints(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class DropCheckpoints(_message.Message):
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

class Quotas(_message.Message):
    __slots__ = ("jobs", "workers", "datasets", "keys", "barriers", "channels", "requests_per_s", "journal_bytes", "checkpoint_soft_bytes", "checkpoint_bytes")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SOFT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    workers: int
    datasets: int
    keys: int
    barriers: int
    channels: int
    requests_per_s: float
    journal_bytes: int
    checkpoint_soft_bytes: int
    checkpoint_bytes: int
    def __init__(self, jobs: _Optional[int] = ..., workers: _Optional[int] = ..., datasets: _Optional[int] = ..., keys: _Optional[int] = ..., barriers: _Optional[int] = ..., channels: _Optional[int] = ..., requests_per_s: _Optional[float] = ..., journal_bytes: _Optional[int] = ..., checkpoint_soft_bytes: _Optional[int] = ..., checkpoint_bytes: _Optional[int] = ...) -> None: ...

class CreateTenant(_message.Message):
    __slots__ = ("tenant", "quotas")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    quotas: Quotas
    def __init__(self, tenant: _Optional[str] = ..., quotas: _Optional[_Union[Quotas, _Mapping]] = ...) -> None: ...

class SetTenant(_message.Message):
    __slots__ = ("tenant", "quotas")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    quotas: Quotas
    def __init__(self, tenant: _Optional[str] = ..., quotas: _Optional[_Union[Quotas, _Mapping]] = ...) -> None: ...

class RemoveTenant(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class CreateToken(_message.Message):
    __slots__ = ("tenant", "token_id", "sha256", "role", "jobs", "name", "expires_s")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    token_id: str
    sha256: str
    role: str
    jobs: str
    name: str
    expires_s: float
    def __init__(self, tenant: _Optional[str] = ..., token_id: _Optional[str] = ..., sha256: _Optional[str] = ..., role: _Optional[str] = ..., jobs: _Optional[str] = ..., name: _Optional[str] = ..., expires_s: _Optional[float] = ...) -> None: ...

class RevokeToken(_message.Message):
    __slots__ = ("tenant", "token_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    token_id: str
    def __init__(self, tenant: _Optional[str] = ..., token_id: _Optional[str] = ...) -> None: ...

class ForgetTokens(_message.Message):
    __slots__ = ("tenant", "token_ids")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    token_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., token_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTenants(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class Tenants(_message.Message):
    __slots__ = ("tenants",)
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    def __init__(self, tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ...) -> None: ...

class TenantStatus(_message.Message):
    __slots__ = ("tenant", "quotas", "use")
    class UseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    quotas: Quotas
    use: _containers.ScalarMap[str, float]
    def __init__(self, tenant: _Optional[str] = ..., quotas: _Optional[_Union[Quotas, _Mapping]] = ..., use: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ListTokens(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenStatus]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenStatus, _Mapping]]] = ...) -> None: ...

class TokenStatus(_message.Message):
    __slots__ = ("token_id", "tenant", "role", "jobs", "name", "created_s", "expires_s", "revoked_s")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    REVOKED_S_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    tenant: str
    role: str
    jobs: str
    name: str
    created_s: float
    expires_s: float
    revoked_s: float
    def __init__(self, token_id: _Optional[str] = ..., tenant: _Optional[str] = ..., role: _Optional[str] = ..., jobs: _Optional[str] = ..., name: _Optional[str] = ..., created_s: _Optional[float] = ..., expires_s: _Optional[float] = ..., revoked_s: _Optional[float] = ...) -> None: ...

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
    __slots__ = ("total_samples", "missing", "repeated", "skipped", "passed_over")
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    total_samples: int
    missing: SampleRanges
    repeated: SampleRanges
    skipped: SampleRanges
    passed_over: SampleRanges
    def __init__(self, total_samples: _Optional[int] = ..., missing: _Optional[_Union[SampleRanges, _Mapping]] = ..., repeated: _Optional[_Union[SampleRanges, _Mapping]] = ..., skipped: _Optional[_Union[SampleRanges, _Mapping]] = ..., passed_over: _Optional[_Union[SampleRanges, _Mapping]] = ...) -> None: ...

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
    checkpoints: _containers.RepeatedCompositeFieldContainer[CommitRecord]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CommitRecord, _Mapping]]] = ...) -> None: ...

class Describe(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("channel_url", "protocol", "http_url", "leader", "is_leader", "term", "applied", "replicas")
    CHANNEL_URL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    HTTP_URL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    IS_LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    channel_url: str
    protocol: int
    http_url: str
    leader: str
    is_leader: bool
    term: int
    applied: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, channel_url: _Optional[str] = ..., protocol: _Optional[int] = ..., http_url: _Optional[str] = ..., leader: _Optional[str] = ..., is_leader: _Optional[bool] = ..., term: _Optional[int] = ..., applied: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ...) -> None: ...

class GetStatus(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job_id", "generation", "waits_for", "workers", "datasets", "barriers", "checkpoints", "pending", "rejected", "total_checkpoints", "present", "state", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    generation: int
    waits_for: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetStatus]
    barriers: _containers.RepeatedCompositeFieldContainer[BarrierStatus]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CommitRecord]
    pending: _containers.RepeatedCompositeFieldContainer[PendingStatus]
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedStatus]
    total_checkpoints: int
    present: int
    state: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., generation: _Optional[int] = ..., waits_for: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., datasets: _Optional[_Iterable[_Union[DatasetStatus, _Mapping]]] = ..., barriers: _Optional[_Iterable[_Union[BarrierStatus, _Mapping]]] = ..., checkpoints: _Optional[_Iterable[_Union[CommitRecord, _Mapping]]] = ..., pending: _Optional[_Iterable[_Union[PendingStatus, _Mapping]]] = ..., rejected: _Optional[_Iterable[_Union[RejectedStatus, _Mapping]]] = ..., total_checkpoints: _Optional[int] = ..., present: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker_id", "rank", "state", "step", "epoch", "silent_s", "address", "gpu_count", "resources", "process")
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
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    rank: int
    state: str
    step: int
    epoch: int
    silent_s: float
    address: str
    gpu_count: int
    resources: _containers.ScalarMap[str, float]
    process: str
    def __init__(self, worker_id: _Optional[str] = ..., rank: _Optional[int] = ..., state: _Optional[str] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., silent_s: _Optional[float] = ..., address: _Optional[str] = ..., gpu_count: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ..., process: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("time_s", "job_id", "worker_id", "kind", "reason", "cause", "by", "address")
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    job_id: str
    worker_id: str
    kind: str
    reason: str
    cause: str
    by: str
    address: str
    def __init__(self, time_s: _Optional[float] = ..., job_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., kind: _Optional[str] = ..., reason: _Optional[str] = ..., cause: _Optional[str] = ..., by: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

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

class HeartbeatReply(_message.Message):
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
    checkpoint: CommitRecord
    def __init__(self, checkpoint: _Optional[_Union[CommitRecord, _Mapping]] = ...) -> None: ...

class CommitProgress(_message.Message):
    __slots__ = ("phase", "missing", "reason")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    phase: str
    missing: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, phase: _Optional[str] = ..., missing: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class CommitRecord(_message.Message):
    __slots__ = ("step", "epoch", "manifest", "cursors", "diverged")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    manifest: str
    cursors: str
    diverged: Divergence
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., manifest: _Optional[str] = ..., cursors: _Optional[str] = ..., diverged: _Optional[_Union[Divergence, _Mapping]] = ...) -> None: ...

class Divergence(_message.Message):
    __slots__ = ("ranks", "tensor", "tensors", "suspect")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    tensor: str
    tensors: int
    suspect: bool
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., tensor: _Optional[str] = ..., tensors: _Optional[int] = ..., suspect: _Optional[bool] = ...) -> None: ...

class ShardLease(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class CommittedSteps(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, steps: _Optional[_Iterable[int]] = ...) -> None: ...

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
    __slots__ = ("job_id", "to", "generation", "reason", "cause")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    reason: str
    cause: str
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class BarrierReleased(_message.Message):
    __slots__ = ("job_id", "to", "name", "generation", "payloads", "waited_s", "round")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    name: str
    generation: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    waited_s: float
    round: int
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ..., waited_s: _Optional[float] = ..., round: _Optional[int] = ...) -> None: ...

class BarrierFailed(_message.Message):
    __slots__ = ("job_id", "to", "name", "error", "round")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    name: str
    error: Error
    round: int
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., round: _Optional[int] = ...) -> None: ...

class ReleaseWanted(_message.Message):
    __slots__ = ("job_id", "to", "name", "generation", "round")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    name: str
    generation: int
    round: int
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class ManifestWanted(_message.Message):
    __slots__ = ("job_id", "to", "step", "epoch", "generation", "reports", "cursors", "repairs")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    REPAIRS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    step: int
    epoch: int
    generation: int
    reports: _containers.RepeatedCompositeFieldContainer[PartReport]
    cursors: str
    repairs: _containers.RepeatedCompositeFieldContainer[PartReport]
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[PartReport, _Mapping]]] = ..., cursors: _Optional[str] = ..., repairs: _Optional[_Iterable[_Union[PartReport, _Mapping]]] = ...) -> None: ...

class RepairWanted(_message.Message):
    __slots__ = ("job_id", "to", "step", "generation", "reports")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    to: _containers.RepeatedScalarFieldContainer[str]
    step: int
    generation: int
    reports: _containers.RepeatedCompositeFieldContainer[PartReport]
    def __init__(self, job_id: _Optional[str] = ..., to: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., generation: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[PartReport, _Mapping]]] = ...) -> None: ...

class PartReport(_message.Message):
    __slots__ = ("path", "size_bytes", "digest", "replicas")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    digest: str
    replicas: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ..., replicas: _Optional[str] = ...) -> None: ...

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
