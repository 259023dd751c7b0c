"""Errors keep their fields, cross process boundaries, say what to do, and stand in the tree that is drawn."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import re
from pathlib import Path

import pytest

from scripts.error_tree import draw_tree, errors_page, walk
from strata import errors
from strata.errors import (
    AccessDeniedError,
    AccessError,
    BadCommandError,
    BarrierCancelledError,
    BarrierTimeoutError,
    CheckpointAbortedError,
    CheckpointBusyError,
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointPinnedError,
    CheckpointTimeoutError,
    ClientClosedError,
    ClusterError,
    CommitPendingError,
    CommitRefusedError,
    ConfigError,
    ConfigProblem,
    ConflictingPartsError,
    CoordinatorLostError,
    CorruptFileError,
    CorruptObjectError,
    DamagedCheckpointError,
    DamagedRecordError,
    DataError,
    DatasetChangedError,
    DatasetConflictError,
    DatasetExistsError,
    DatasetNotFoundError,
    DatasetOptionsError,
    DuplicateWorkerError,
    ForeignCheckpointError,
    ForeignFormatError,
    GenerationChangedError,
    GroupRestart,
    IllegalTransitionError,
    IncompleteCheckpointError,
    InvalidIdError,
    InvalidKeyError,
    JobBusyError,
    JobFullError,
    JobWaitingError,
    JournalBrokenError,
    JournalDamagedError,
    JournalNotEmptyError,
    JournalUnavailableError,
    JournalVersionError,
    LastCheckpointError,
    ManagerClosedError,
    MembershipError,
    MissingExtraError,
    MissingProgramError,
    MissingWorker,
    MixedFormatsError,
    NotLeaderError,
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
    RayUnavailableError,
    Reconfigure,
    Recovery,
    ReplicasDivergedError,
    RestoreTooLateError,
    RewindError,
    SavedDatasetError,
    SchemaMismatchError,
    SeveralSplitsError,
    ShardingError,
    StaleGenerationError,
    StaleIncarnationError,
    StaleIndexError,
    StateChangedError,
    StateMismatchError,
    StepTakenError,
    StorageError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
    StrataError,
    SuspectCheckpointError,
    TenantBusyError,
    TenantExistsError,
    TokenExistsError,
    TokenFileError,
    TransformProcessError,
    UnauthenticatedError,
    UnfinishedRewindError,
    UnknownDataFormatError,
    UnknownDatasetError,
    UnknownFormatError,
    UnknownJobError,
    UnknownTenantError,
    UnknownTokenError,
    UnknownWorkerError,
    UnsafeListenError,
    UnsafeStoreError,
    UnsafeTokenError,
    UnsavableStateError,
    UntrustedCoordinatorError,
    UnusableJournalError,
    WorkerActiveError,
    WorldSizeError,
)

ROOT = Path(__file__).parents[2]

RETRY = {
    UntrustedCoordinatorError,
    JournalUnavailableError,
    CoordinatorLostError,
    NotLeaderError,
    OutboxFullError,
    CommitPendingError,
    JobWaitingError,
    BarrierTimeoutError,
    StorageUnavailableError,
    CheckpointBusyError,
    CheckpointTimeoutError,
    WorkerActiveError,
    IncompleteCheckpointError,
    TransformProcessError,
    RayUnavailableError,
}
REJOIN = {
    MembershipError,
    StaleGenerationError,
    StaleIncarnationError,
    GenerationChangedError,
    UnknownWorkerError,
    UnknownJobError,
    OutOfOrderError,
    RestoreTooLateError,
    Reconfigure,
    GroupRestart,
}
STOP = {
    CommitRefusedError,
    AccessError,
    UnauthenticatedError,
    UnsafeTokenError,
    UnsafeListenError,
    TokenFileError,
    StrataError,
    CheckpointError,
    UnsavableStateError,
    CheckpointAbortedError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointPinnedError,
    RewindError,
    UnfinishedRewindError,
    SuspectCheckpointError,
    DamagedCheckpointError,
    SuspectCheckpointError,
    UnknownFormatError,
    ForeignFormatError,
    StateMismatchError,
    ForeignCheckpointError,
    ConflictingPartsError,
    ReplicasDivergedError,
    StateChangedError,
    ManagerClosedError,
    ClusterError,
    ClientClosedError,
    AccessError,
    AccessDeniedError,
    UnknownTenantError,
    TenantExistsError,
    TenantBusyError,
    UnknownTokenError,
    TokenExistsError,
    JournalBrokenError,
    JournalDamagedError,
    JournalNotEmptyError,
    JournalVersionError,
    UnusableJournalError,
    PortTakenError,
    BadCommandError,
    DuplicateWorkerError,
    ProtocolMismatchError,
    IllegalTransitionError,
    JobBusyError,
    JobFullError,
    QuotaExceededError,
    StepTakenError,
    LastCheckpointError,
    PayloadTooLargeError,
    BarrierCancelledError,
    WorldSizeError,
    DatasetChangedError,
    DatasetOptionsError,
    ConfigError,
    InvalidIdError,
    MissingExtraError,
    MissingProgramError,
    DataError,
    DatasetNotFoundError,
    DatasetExistsError,
    UnknownDataFormatError,
    MixedFormatsError,
    SeveralSplitsError,
    SchemaMismatchError,
    CorruptFileError,
    StaleIndexError,
    PositionMismatchError,
    ShardingError,
    NoWorkersError,
    UnknownDatasetError,
    DatasetConflictError,
    SavedDatasetError,
    DamagedRecordError,
    StorageError,
    ObjectNotFoundError,
    ObjectExistsError,
    StoragePermissionError,
    StorageFullError,
    ObjectChangedError,
    CorruptObjectError,
    InvalidKeyError,
    UnsafeStoreError,
}

SAMPLES = [
    UnauthenticatedError("it brought no token"),
    UntrustedCoordinatorError("host:50051", "certificate has expired"),
    UnsafeTokenError("host:50051"),
    UnsafeListenError("0.0.0.0", "TLS and tokens"),
    TokenFileError("/run/token", "Permission denied"),
    ConfigError([ConfigProblem("RANK", "environment", "two", "a whole number")]),
    InvalidIdError("job id", "a/b", "contains '/'"),
    MissingProgramError("etcd", needed_for="strata demo --ha", install="apt-get install etcd-server"),
    MissingExtraError("s3", needed_for="s3:// storage"),
    NoWorkersError("dataset 'imagenet'"),
    UnknownWorkerError("w9", known=["w1", "w0"]),
    UnknownDatasetError("imagenet", known=[]),
    DatasetConflictError("imagenet", registered="seed 1", given="seed 2"),
    SavedDatasetError("imagenet", registered="seed=1", saved="seed=2"),
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
    ClientClosedError("worker-1"),
    JournalVersionError("/state/journal.db", found="format 2", known="format 1"),
    ManagerClosedError("the save of step 5"),
    NotLeaderError("b:50051", term=3),
    OutboxFullError(limit=10),
    PortTakenError("gRPC", "127.0.0.1:50051", "in use"),
    BadCommandError("FailWorkers is for the coordinator alone"),
    JournalUnavailableError("/state", "disk is full"),
    JournalNotEmptyError("etcd://a:2379/strata"),
    UnusableJournalError("backup.jsonl", "it is damaged"),
    JournalDamagedError("/state", "entry 7 is missing"),
    JournalBrokenError("/state", "disk I/O error (SQLITE_IOERR_FSYNC)"),
    UnknownJobError("llm", known=["default"]),
    DuplicateWorkerError("llm", "w1"),
    WorkerActiveError("llm", "w1"),
    ForeignCheckpointError(5, found="one", expected="two"),
    ProtocolMismatchError("host:50051", theirs=2, ours=1),
    WorldSizeError("llm", given=2, needed=4),
    DatasetChangedError("imagenet", url="s3://b/d"),
    DatasetOptionsError("d", "drop_last", job_id="j", worker_id="b", given=True, first="a", registered=False),
    Reconfigure(7, "w1 failed: lease ended"),
    GroupRestart(7, "w1 failed: lease ended"),
    AccessDeniedError("ci", "use job 'llm'"),
    UnknownTenantError("vision"),
    TenantExistsError("vision"),
    TenantBusyError("vision", jobs=["vision/llm"]),
    UnknownTokenError("vision", "k1"),
    TokenExistsError("k1"),
    StaleIncarnationError("w1", "i7", state="failed"),
    StaleGenerationError("w1", sent=3, current=4),
    IllegalTransitionError("w1", current="failed", wanted="training"),
    JobFullError("llm", "w9", max_workers=8),
    JobWaitingError("llm", missing=2, min_workers=8),
    JobBusyError("j", workers=["a"]),
    QuotaExceededError("jobs", limit=10),
    OutOfOrderError("w1", what="report", expected=2, sent=4),
    RestoreTooLateError("w1", generation=4),
    CommitPendingError("llm", 100),
    CommitRefusedError("llm", 100, generation=3, problem="no worker has reported a part of it"),
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
    SeveralSplitsError("/data", ["test", "train"]),
    SchemaMismatchError("a.parquet", "b.parquet", "column 'x' is only in the first"),
    CorruptFileError("a.parquet", "bad page", kind="parquet", part="row group 3", offset=4096),
    StaleIndexError("/data", "/data/a.parquet", "was written again"),
    PositionMismatchError({"seed": 1}, {"seed": 2}),
    RayUnavailableError("10.0.0.5:6379", "timed out"),
    TransformProcessError(4),
    UnsavableStateError("model.hook", "function", "cannot be kept in a checkpoint"),
    CheckpointExistsError(100, path="default/checkpoints/step_100"),
    CheckpointNotFoundError(100, path="default/checkpoints", known=[50]),
    CheckpointPinnedError(5),
    RewindError("llm", "there is no committed checkpoint of step 7; the nearest are 5 and 10"),
    UnfinishedRewindError("llm", to_step=10),
    ForeignFormatError("model.pt", "torch does not load it"),
    SuspectCheckpointError(100, ranks=(1,), tensor="model.w"),
    DamagedCheckpointError(100, "its digest differs", part="model.bin", tensor="w", start=0, end=4096),
    SuspectCheckpointError(100, ranks=[2], tensor="w"),
    UnknownFormatError(100, found="version 2", known="version 1"),
    StateMismatchError(100, "model.w", "it has another shape"),
    CheckpointBusyError(100, pending=["step 50 (writing)"], waited_s=1.5),
    CheckpointTimeoutError("saving step 100", phase="writing", timeout_s=5),
    CheckpointAbortedError(100, "w failed: lease ended"),
    IncompleteCheckpointError(100, "part 2 of 2 is missing", missing=[2]),
    ConflictingPartsError(100, "lr", "parts 1 and 2 differ"),
    ReplicasDivergedError(100, ranks=[2], tensor="w", tensors=3),
    StateChangedError(100, "w"),
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
    # Reconfigure is raised itself, and has a subclass.
    raised = {kind for kind in kinds() if not kind.__subclasses__()} | {Reconfigure}
    assert {type(sample) for sample in SAMPLES} == raised


def test_the_tree_that_is_drawn_is_the_tree_that_is() -> None:
    drawn = [line[4:] for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    assert drawn == list(draw_tree())
    assert set(walk()) == set(kinds())


def test_the_table_in_the_docs_is_that_of_the_classes() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == errors_page()


def test_all_that_the_files_of_the_package_define_is_imported_from_one_place() -> None:
    defined = {"fields_of", "field_names", "revive"}
    for file in pkgutil.iter_modules(errors.__path__):
        module = importlib.import_module(f"strata.errors.{file.name}")
        classes = inspect.getmembers(module, inspect.isclass)
        defined |= {name for name, kind in classes if kind.__module__ == module.__name__ and not name.startswith("_")}
    assert defined == set(errors.__all__)


def test_nobody_imports_from_a_file_of_the_package() -> None:
    package = ROOT / "src" / "strata" / "errors"
    files = [file for folder in ("src", "tests", "scripts", "examples") for file in (ROOT / folder).rglob("*.py")]
    found = [file for file in files if re.search(r"^\s*(from|import) strata\.errors\.", file.read_text(), re.MULTILINE)]
    assert [file for file in found if package not in file.parents] == []


def test_every_error_says_on_purpose_what_its_caller_may_do() -> None:
    recovery = {Recovery.RETRY: RETRY, Recovery.REJOIN: REJOIN, Recovery.STOP: STOP}
    assert {kind: {each for each in kinds() if each.recovery is kind} for kind in Recovery} == recovery


def test_a_class_with_fields_takes_them_in_its_constructor() -> None:
    annotated = {kind for kind in kinds() if kind is not StrataError and kind.__annotations__}
    assert annotated
    assert all("__dataclass_fields__" in vars(kind) for kind in annotated)


def test_errors_are_compared_and_shown_as_all_exceptions_are() -> None:
    one, other = StepTakenError("llm", 1), StepTakenError("llm", 1)
    assert len({one, other}) == 2
    assert repr(one) == f"StepTakenError({str(one)!r})"


def test_a_note_crosses_a_process_boundary() -> None:
    error = StepTakenError("llm", 1)
    error.add_note("seen twice")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen twice"]


def test_a_missing_extra_says_what_to_install_and_is_an_import_error() -> None:
    error = MissingExtraError("s3", needed_for="s3:// storage")
    assert str(error) == "s3:// storage needs an optional library: pip install 'strata-runtime[s3]'"
    assert isinstance(error, ImportError)


def test_an_unknown_name_lists_a_few_of_the_known_ones() -> None:
    error = UnknownWorkerError("w9", known=[f"w{number}" for number in range(8)])
    assert str(error) == "worker 'w9' is not registered; there are w0, w1, w2, w3, w4 and 3 more"
    assert str(UnknownDatasetError("d", known=[])) == "dataset 'd' is not registered; none is registered yet"
