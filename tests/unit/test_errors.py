"""Errors keep their fields, cross process boundaries, and stand in the tree that is drawn."""

from __future__ import annotations

import inspect
import pickle

import pytest

from strata import errors
from strata.errors import (
    BadCommandError,
    BarrierCancelledError,
    BarrierTimeoutError,
    CheckpointAbortedError,
    CheckpointBusyError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    CommitPendingError,
    ConfigError,
    ConfigProblem,
    ConflictingPartsError,
    CoordinatorLostError,
    CorruptFileError,
    CorruptObjectError,
    DamagedCheckpointError,
    DamagedRecordError,
    DatasetChangedError,
    DatasetConflictError,
    DatasetExistsError,
    DatasetNotFoundError,
    DuplicateWorkerError,
    ForeignCheckpointError,
    GenerationChangedError,
    IllegalTransitionError,
    IncompleteCheckpointError,
    InvalidIdError,
    InvalidKeyError,
    JobFullError,
    JobWaitingError,
    JournalDamagedError,
    JournalUnavailableError,
    LastCheckpointError,
    MissingExtraError,
    MissingWorker,
    MixedFormatsError,
    NoWorkersError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    OutboxFullError,
    OutOfOrderError,
    PayloadTooLargeError,
    PortTakenError,
    PositionMismatchError,
    ProtocolMismatchError,
    QuotaExceededError,
    Reconfigure,
    RestoreTooLateError,
    SchemaMismatchError,
    StaleGenerationError,
    StaleIncarnationError,
    StaleIndexError,
    StateMismatchError,
    StepTakenError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
    StrataError,
    TransformProcessError,
    UnknownDataFormatError,
    UnknownDatasetError,
    UnknownFormatError,
    UnknownJobError,
    UnknownWorkerError,
    UnsafeStoreError,
    UnsavableStateError,
    WorldSizeError,
)

SAMPLES = [
    ConfigError([ConfigProblem("RANK", "environment", "two", "a whole number")]),
    InvalidIdError("job id", "a/b", "contains '/'"),
    MissingExtraError("s3", needed_for="s3:// storage"),
    NoWorkersError("dataset 'imagenet'"),
    UnknownWorkerError("w9", known=["w1", "w0"]),
    UnknownDatasetError("imagenet", known=[]),
    DatasetConflictError("imagenet", registered="seed 1", given="seed 2"),
    DamagedRecordError("assignment", "its digest differs"),
    ObjectNotFoundError("a/b", backend="local"),
    ObjectExistsError("a/b", backend="s3://bucket"),
    StoragePermissionError("a/b", backend="local", problem="Read-only file system", hint="remount it"),
    StorageFullError("a/b", backend="local", problem="No space left on device"),
    StorageUnavailableError("a/b", backend="s3", problem="no answer", attempts=3, elapsed_s=1.5, hint="wait"),
    ObjectChangedError("a/b", backend="s3://bucket"),
    CorruptObjectError("a/b", backend="local", problem="it has 3 bytes, but 5 were asked for"),
    InvalidKeyError("../a", "the key has the segment '..'"),
    UnsafeStoreError("a/b", backend="s3://bucket"),
    CoordinatorLostError("host:50051", waited_s=3.0),
    OutboxFullError(limit=10),
    PortTakenError("gRPC", "127.0.0.1:50051", "in use"),
    BadCommandError("FailWorkers is for the coordinator alone"),
    JournalUnavailableError("/state", "disk is full"),
    JournalDamagedError("/state", "entry 7 is missing"),
    UnknownJobError("llm", known=["default"]),
    DuplicateWorkerError("llm", "w1"),
    ForeignCheckpointError(5, found="one", expected="two"),
    ProtocolMismatchError("host:50051", theirs=2, ours=1),
    WorldSizeError("llm", given=2, needed=4),
    DatasetChangedError("imagenet", url="s3://b/d"),
    Reconfigure(7, "w1 failed: lease ended"),
    StaleIncarnationError("w1", "i7", state="failed"),
    StaleGenerationError("w1", sent=3, current=4),
    IllegalTransitionError("w1", current="failed", wanted="training"),
    JobFullError("llm", "w9", max_workers=8),
    JobWaitingError("llm", missing=2, min_workers=8),
    QuotaExceededError("jobs", limit=10),
    OutOfOrderError("w1", what="report", expected=2, sent=4),
    RestoreTooLateError("w1", generation=4),
    CommitPendingError("llm", 100),
    StepTakenError("llm", 100),
    LastCheckpointError("llm", 100),
    PayloadTooLargeError("grads", size_bytes=2, limit_bytes=1),
    BarrierTimeoutError("epoch", 1, 2, [MissingWorker("w1", 1, "training", 7, 3.5)]),
    BarrierCancelledError("epoch", "operator"),
    GenerationChangedError("epoch", 4),
    DatasetNotFoundError("/data", "there are no files in it", hint="check the path"),
    DatasetExistsError("/data", "there is something already"),
    UnknownDataFormatError("a.xyz", "its ending is that of no format", known=["parquet", "csv"]),
    MixedFormatsError("/data", {"csv": "a.csv", "parquet": "b.parquet"}),
    SchemaMismatchError("a.parquet", "b.parquet", "column 'x' is only in the first"),
    CorruptFileError("a.parquet", "bad page", kind="parquet", part="row group 3", offset=4096),
    StaleIndexError("/data", "/data/a.parquet", "was written again"),
    PositionMismatchError({"seed": 1}, {"seed": 2}),
    TransformProcessError(4),
    UnsavableStateError("model.hook", "function", "cannot be kept in a checkpoint"),
    CheckpointExistsError(100, path="default/checkpoints/step_100"),
    CheckpointNotFoundError(100, path="default/checkpoints", known=[50]),
    DamagedCheckpointError(100, "its digest differs", part="model.bin", tensor="w", start=0, end=4096),
    UnknownFormatError(100, found="version 2", known="version 1"),
    StateMismatchError(100, "model.w", "it has another shape"),
    CheckpointBusyError(100, pending=["step 50 (writing)"], waited_s=1.5),
    CheckpointTimeoutError("saving step 100", phase="writing", timeout_s=5),
    CheckpointAbortedError(100, "w failed: lease ended"),
    IncompleteCheckpointError(100, "part 2 of 2 is missing", missing=[2]),
    ConflictingPartsError(100, "lr", "parts 1 and 2 differ"),
]


def kinds() -> list[type[StrataError]]:
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StrataError)]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_a_process_boundary_with_message_and_fields(error: StrataError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_every_error_has_a_sample_here() -> None:
    assert {type(sample) for sample in SAMPLES} == {kind for kind in kinds() if not kind.__subclasses__()}


def test_every_error_stands_in_the_drawn_tree_below_its_parent() -> None:
    drawn = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = next((word for word in line.split() if word.endswith(("Error", "Reconfigure"))), None)
        if name is None or line.strip(" │├└─").split()[0] != name:
            continue
        depth = line.index(name) // 4
        path = [*path[: depth - 1], name]
        drawn[name] = path[-2] if len(path) > 1 else "Exception"
    assert drawn == {kind.__name__: kind.__bases__[0].__name__ for kind in kinds()}


def test_a_missing_extra_says_what_to_install_and_is_an_import_error() -> None:
    error = MissingExtraError("s3", needed_for="s3:// storage")
    assert str(error) == "s3:// storage needs an optional library: pip install 'strata-runtime[s3]'"
    assert isinstance(error, ImportError)


def test_an_unknown_name_lists_a_few_of_the_known_ones() -> None:
    error = UnknownWorkerError("w9", known=[f"w{number}" for number in range(8)])
    assert str(error) == "worker 'w9' is not registered; there are w0, w1, w2, w3, w4 and 3 more"
    assert str(UnknownDatasetError("d", known=[])) == "dataset 'd' is not registered; none is; register it first"
