"""Every error that Strata raises on purpose, in one file for each layer; all are imported from here.

    StrataError
    ├── CheckpointError
    │   ├── UnsavableStateError (and TypeError)
    │   ├── CheckpointExistsError
    │   ├── CheckpointNotFoundError (and LookupError)
    │   ├── CheckpointPinnedError (and ValueError)
    │   ├── RewindError (and ValueError)
    │   ├── UnfinishedRewindError
    │   ├── DamagedCheckpointError
    │   ├── SuspectCheckpointError
    │   ├── UnknownFormatError
    │   ├── ForeignFormatError
    │   ├── StateMismatchError
    │   ├── ForeignCheckpointError
    │   ├── CheckpointBusyError
    │   ├── CheckpointTimeoutError (and TimeoutError)
    │   ├── ManagerClosedError (and RuntimeError)
    │   ├── CheckpointAbortedError
    │   ├── IncompleteCheckpointError
    │   ├── ConflictingPartsError
    │   ├── ReplicasDivergedError
    │   └── StateChangedError
    ├── ClusterError
    │   ├── JournalUnavailableError
    │   ├── JournalDamagedError
    │   ├── JournalBrokenError
    │   ├── JournalVersionError
    │   ├── JournalNotEmptyError
    │   ├── UnusableJournalError
    │   ├── CoordinatorLostError (and TimeoutError)
    │   ├── ClientClosedError (and RuntimeError)
    │   ├── NotLeaderError
    │   ├── OutboxFullError
    │   ├── PortTakenError
    │   ├── BadCommandError (and ValueError)
    │   ├── DuplicateWorkerError
    │   ├── WorkerActiveError
    │   ├── ProtocolMismatchError
    │   ├── IllegalTransitionError
    │   ├── JobFullError
    │   ├── JobWaitingError
    │   ├── JobBusyError
    │   ├── QuotaExceededError
    │   ├── RestoreTooLateError
    │   ├── CommitPendingError
    │   ├── StepTakenError
    │   ├── CommitRefusedError
    │   ├── LastCheckpointError
    │   ├── PayloadTooLargeError
    │   ├── BarrierTimeoutError (and TimeoutError)
    │   ├── BarrierCancelledError
    │   ├── MembershipError
    │   │   ├── UnknownWorkerError (and ShardingError, LookupError)
    │   │   ├── UnknownJobError (and LookupError)
    │   │   ├── StaleIncarnationError
    │   │   ├── StaleGenerationError
    │   │   ├── GenerationChangedError
    │   │   └── OutOfOrderError
    │   ├── WorldSizeError
    │   ├── DatasetChangedError
    │   ├── DatasetOptionsError
    │   ├── Reconfigure
    │   │   └── GroupRestart (and SystemExit)
    │   └── AccessError
    │       ├── AccessDeniedError
    │       ├── UnknownTenantError (and LookupError)
    │       ├── TenantExistsError
    │       ├── TenantBusyError
    │       ├── UnknownTokenError (and LookupError)
    │       ├── TokenExistsError
    │       ├── UnauthenticatedError
    │       ├── UntrustedCoordinatorError
    │       ├── UnsafeTokenError
    │       ├── UnsafeListenError
    │       └── TokenFileError
    ├── ConfigError
    ├── InvalidIdError (and ValueError)
    ├── MissingProgramError
    ├── MissingExtraError (and ImportError)
    ├── DataError
    │   ├── DatasetNotFoundError (and LookupError)
    │   ├── DatasetExistsError
    │   ├── UnknownDataFormatError
    │   ├── MixedFormatsError
    │   ├── SeveralSplitsError
    │   ├── SchemaMismatchError
    │   ├── CorruptFileError
    │   ├── StaleIndexError
    │   ├── PositionMismatchError
    │   ├── RayUnavailableError
    │   └── TransformProcessError
    ├── ShardingError
    │   ├── NoWorkersError
    │   ├── UnknownDatasetError (and LookupError)
    │   ├── DatasetConflictError
    │   ├── SavedDatasetError
    │   └── DamagedRecordError
    └── StorageError
        ├── ObjectNotFoundError
        ├── ObjectExistsError
        ├── StoragePermissionError
        ├── StorageFullError
        ├── StorageUnavailableError
        ├── ObjectChangedError
        ├── CorruptObjectError
        ├── InvalidKeyError (and ValueError)
        └── UnsafeStoreError

Each class declares its fields and builds its message from them: what happened, to what, and what to do. The fields
stay on the error, so that code can act on them and a process boundary can carry them. ``recovery`` says what a caller
may do; docs/errors.md has it for every class.
"""

from __future__ import annotations

from strata.errors.base import (
    Recovery,
    StrataError,
    StrataWarning,
    field_names,
    fields_of,
    revive,
)
from strata.errors.checkpoint import (
    CheckpointAbortedError,
    CheckpointBusyError,
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointPinnedError,
    CheckpointTimeoutError,
    ConflictingPartsError,
    DamagedCheckpointError,
    DivergedReplicasWarning,
    ForeignCheckpointError,
    ForeignFormatError,
    IncompleteCheckpointError,
    ManagerClosedError,
    ReplicasDivergedError,
    RewindError,
    StateChangedError,
    StateMismatchError,
    SuspectCheckpointError,
    UnchangedStateWarning,
    UnfinishedRewindError,
    UnknownFormatError,
    UnsavableStateError,
)
from strata.errors.cluster import (
    BadCommandError,
    BarrierCancelledError,
    BarrierTimeoutError,
    ClientClosedError,
    ClusterError,
    CommitPendingError,
    CommitRefusedError,
    CoordinatorLostError,
    DuplicateWorkerError,
    IllegalTransitionError,
    JobBusyError,
    JobFullError,
    JobWaitingError,
    JournalBrokenError,
    JournalDamagedError,
    JournalNotEmptyError,
    JournalUnavailableError,
    JournalVersionError,
    LastCheckpointError,
    MissingWorker,
    NotLeaderError,
    OutboxFullError,
    PayloadTooLargeError,
    PortTakenError,
    ProtocolMismatchError,
    QuotaExceededError,
    RestoreTooLateError,
    StepTakenError,
    UnusableJournalError,
    WorkerActiveError,
)
from strata.errors.config import (
    ConfigError,
    ConfigProblem,
    InvalidIdError,
    MissingExtraError,
    MissingProgramError,
)
from strata.errors.data import (
    CorruptFileError,
    DataError,
    DatasetExistsError,
    DatasetNotFoundError,
    MixedFormatsError,
    PositionMismatchError,
    RayUnavailableError,
    SchemaMismatchError,
    SeveralSplitsError,
    StaleIndexError,
    TransformProcessError,
    UnknownDataFormatError,
)
from strata.errors.membership import (
    GenerationChangedError,
    MembershipError,
    OutOfOrderError,
    StaleGenerationError,
    StaleIncarnationError,
    UnknownJobError,
    UnknownWorkerError,
)
from strata.errors.run import (
    DatasetChangedError,
    DatasetOptionsError,
    GroupRestart,
    Reconfigure,
    WorldSizeError,
)
from strata.errors.security import (
    TokenFileError,
    UnauthenticatedError,
    UnsafeListenError,
    UnsafeTokenError,
    UntrustedCoordinatorError,
)
from strata.errors.sharding import (
    DamagedRecordError,
    DatasetConflictError,
    NoWorkersError,
    SavedDatasetError,
    ShardingError,
    UnknownDatasetError,
)
from strata.errors.storage import (
    CorruptObjectError,
    InvalidKeyError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
    UnsafeStoreError,
)
from strata.errors.tenants import (
    AccessDeniedError,
    AccessError,
    TenantBusyError,
    TenantExistsError,
    TokenExistsError,
    UnknownTenantError,
    UnknownTokenError,
)

__all__ = [
    "AccessDeniedError",
    "AccessError",
    "BadCommandError",
    "BarrierCancelledError",
    "BarrierTimeoutError",
    "CheckpointAbortedError",
    "CheckpointBusyError",
    "CheckpointError",
    "CheckpointExistsError",
    "CheckpointNotFoundError",
    "CheckpointPinnedError",
    "CheckpointTimeoutError",
    "ClientClosedError",
    "ClusterError",
    "CommitPendingError",
    "CommitRefusedError",
    "ConfigError",
    "ConfigProblem",
    "ConflictingPartsError",
    "CoordinatorLostError",
    "CorruptFileError",
    "CorruptObjectError",
    "DamagedCheckpointError",
    "DamagedRecordError",
    "DataError",
    "DatasetChangedError",
    "DatasetConflictError",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "DatasetOptionsError",
    "DivergedReplicasWarning",
    "DuplicateWorkerError",
    "ForeignCheckpointError",
    "ForeignFormatError",
    "GenerationChangedError",
    "GroupRestart",
    "IllegalTransitionError",
    "IncompleteCheckpointError",
    "InvalidIdError",
    "InvalidKeyError",
    "JobBusyError",
    "JobFullError",
    "JobWaitingError",
    "JournalBrokenError",
    "JournalDamagedError",
    "JournalNotEmptyError",
    "JournalUnavailableError",
    "JournalVersionError",
    "LastCheckpointError",
    "ManagerClosedError",
    "MembershipError",
    "MissingExtraError",
    "MissingProgramError",
    "MissingWorker",
    "MixedFormatsError",
    "NoWorkersError",
    "NotLeaderError",
    "ObjectChangedError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "OutOfOrderError",
    "OutboxFullError",
    "PayloadTooLargeError",
    "PortTakenError",
    "PositionMismatchError",
    "ProtocolMismatchError",
    "QuotaExceededError",
    "RayUnavailableError",
    "Reconfigure",
    "Recovery",
    "ReplicasDivergedError",
    "RestoreTooLateError",
    "RewindError",
    "SavedDatasetError",
    "SchemaMismatchError",
    "SeveralSplitsError",
    "ShardingError",
    "StaleGenerationError",
    "StaleIncarnationError",
    "StaleIndexError",
    "StateChangedError",
    "StateMismatchError",
    "StepTakenError",
    "StorageError",
    "StorageFullError",
    "StoragePermissionError",
    "StorageUnavailableError",
    "StrataError",
    "StrataWarning",
    "SuspectCheckpointError",
    "TenantBusyError",
    "TenantExistsError",
    "TokenExistsError",
    "TokenFileError",
    "TransformProcessError",
    "UnauthenticatedError",
    "UnchangedStateWarning",
    "UnfinishedRewindError",
    "UnknownDataFormatError",
    "UnknownDatasetError",
    "UnknownFormatError",
    "UnknownJobError",
    "UnknownTenantError",
    "UnknownTokenError",
    "UnknownWorkerError",
    "UnsafeListenError",
    "UnsafeStoreError",
    "UnsafeTokenError",
    "UnsavableStateError",
    "UntrustedCoordinatorError",
    "UnusableJournalError",
    "WorkerActiveError",
    "WorldSizeError",
    "field_names",
    "fields_of",
    "revive",
]
