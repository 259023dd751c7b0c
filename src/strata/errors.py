"""Every error that Strata raises on purpose.

    StrataError
    ├── ConfigError         a setting has a value that cannot be used
    ├── InvalidIdError      a name that cannot become a storage path    (also a ValueError)
    ├── MissingExtraError   an optional library is not installed        (also an ImportError)
    ├── ShardingError       data cannot be handed out as asked
    │   ├── NoWorkersError         there is nobody to hand it to
    │   ├── UnknownWorkerError     no worker of that name is registered     (also a LookupError)
    │   ├── UnknownDatasetError    no dataset of that name is registered    (also a LookupError)
    │   ├── DatasetConflictError   the dataset is registered with other parameters
    │   └── DamagedRecordError     bytes that are not the record they claim to be
    ├── StorageError        a store did not do what was asked of it
    │   ├── ObjectNotFoundError       there is no such object
    │   ├── ObjectExistsError         there is one already, and it was to be new
    │   ├── StoragePermissionError    the store knows us and refuses, or does not know us
    │   ├── StorageFullError          no space left, or a quota is used up
    │   ├── StorageUnavailableError   no usable answer within the attempts and the time allowed
    │   ├── ObjectChangedError        it was replaced since the version that was asked for
    │   ├── CorruptObjectError        the object is not what was written
    │   ├── InvalidKeyError           a key that no store may be asked for   (also a ValueError)
    │   └── UnsafeStoreError          the store ignores put-if-absent, so commits would not be safe
    ├── ClusterError        the coordinator refuses, or what was waited for will not come
    │   ├── JournalUnavailableError     the coordinator cannot make anything durable now
    │   ├── JournalDamagedError         the coordinator's record is not what was written
    │   ├── CoordinatorLostError        no answer came in time           (also a TimeoutError)
    │   ├── OutboxFullError             too much waits for a coordinator that is away
    │   ├── PortTakenError              the coordinator cannot listen where it was told to
    │   ├── BadCommandError             a command that no one may send, or not like this   (also a ValueError)
    │   ├── UnknownJobError             no job of that name
    │   ├── StaleIncarnationError       the sender was replaced or declared dead: register again
    │   ├── StaleGenerationError        the membership changed since: rejoin
    │   ├── DuplicateWorkerError        another process has joined under this name
    │   ├── ProtocolMismatchError       the coordinator is of another version
    │   ├── WorldSizeError              started for another number of workers than the job needs
    │   ├── DatasetChangedError         the files are not those that the job began with
    │   ├── Reconfigure                 the membership changed: restore and go on
    │   ├── IllegalTransitionError      a state cannot follow the one before
    │   ├── JobFullError                the job has as many workers as it may
    │   ├── JobWaitingError             the job has not yet as many workers as it needs
    │   ├── QuotaExceededError          more of something than one job may have
    │   ├── OutOfOrderError             a report came before the one that precedes it
    │   ├── RestoreTooLateError         the data of this generation was dealt already
    │   ├── CommitPendingError          a checkpoint is about to be committed: ask again for the restore point
    │   ├── StepTakenError              that step is committed, or about to be
    │   ├── LastCheckpointError         a damaged checkpoint is the only one there is
    │   ├── PayloadTooLargeError        more than an exchange carries
    │   ├── BarrierTimeoutError         not everyone came in time
    │   ├── BarrierCancelledError       someone called it off
    │   └── GenerationChangedError      the membership changed while waiting
    ├── DataError           a dataset cannot be found, understood or read as asked
    │   ├── DatasetNotFoundError     there are no files to read                     (also a LookupError)
    │   ├── DatasetExistsError       there is something already where one was to be written
    │   ├── UnknownDataFormatError   no reader knows these files
    │   ├── MixedFormatsError        files of several formats are not one dataset
    │   ├── SchemaMismatchError      two files of one dataset have different columns
    │   ├── CorruptFileError         a file is not what its format says
    │   ├── StaleIndexError          files changed since the index was made
    │   ├── PositionMismatchError    a data position is of another dataset, or of other settings
    │   └── TransformProcessError    a process that transforms batches died
    └── CheckpointError     a checkpoint cannot be made, found or restored as asked
        ├── UnsavableStateError         the state holds what no checkpoint can keep      (also a TypeError)
        ├── CheckpointExistsError       the step is committed already
        ├── CheckpointNotFoundError     there is no such checkpoint                      (also a LookupError)
        ├── DamagedCheckpointError      what is stored is not what was saved
        ├── UnknownFormatError          the manifest is of a version that we cannot read
        ├── StateMismatchError          the checkpoint does not fit what it is to be loaded into
        ├── ForeignCheckpointError      the checkpoint was saved by another job
        ├── CheckpointBusyError         as many saves are pending as may be
        ├── CheckpointTimeoutError      a save or restore did not end in the time given  (also a TimeoutError)
        ├── CheckpointAbortedError      not every worker could do its part, so it was given up
        ├── IncompleteCheckpointError   parts are missing, so there is nothing to commit
        └── ConflictingPartsError       parts say different things about one leaf or tensor

    StrataWarning
    └── UnchangedStateWarning   two checkpoints in a row are the same bits

Each constructor takes typed fields and builds the message: what happened, to what, and what to do.
The fields stay on the error, so that code can act on them and a process boundary can carry them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class StrataError(Exception):
    """The root: ``except StrataError`` catches all that Strata raises on purpose, and no bug."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An error crosses process boundaries with its fields; the default would call the constructor
        # with the finished message and fail.
        return revive, (type(self), self.args, vars(self))


def revive(kind: type[StrataError], args: tuple[Any, ...], fields: dict[str, Any]) -> StrataError:
    """Make an error again from its message and fields, on the other side of a process boundary."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(fields)
    return error


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One wrong setting: its name, where it was set, the value as given, and what would be right."""

    name: str
    source: str
    value: str | None
    expected: str

    def __str__(self) -> str:
        given = self.name if self.value is None else f"{self.name}={self.value!r}"
        return f"{given} ({self.source}): expected {self.expected}"


class ConfigError(StrataError):
    """Settings that cannot be used; nothing was started with them."""

    def __init__(self, problems: list[ConfigProblem]) -> None:
        self.problems = problems
        super().__init__("; ".join(map(str, problems)))


class InvalidIdError(StrataError, ValueError):
    """A name that cannot become a storage path."""

    def __init__(self, kind: str, value: object, problem: str) -> None:
        self.kind = kind
        self.value = value
        self.problem = problem
        shown = repr(value)
        if len(shown) > 60:
            shown = f"{shown[:57]}..."
        super().__init__(
            f"{kind} {shown} {problem}; use 1 to 128 characters of A-Z a-z 0-9 . _ - that do not start with a dot"
        )


class MissingExtraError(StrataError, ImportError):
    """An optional library that this feature needs is not installed."""

    def __init__(self, extra: str, *, needed_for: str) -> None:
        self.extra = extra
        self.needed_for = needed_for
        super().__init__(f"{needed_for} needs an optional library: pip install 'strata-runtime[{extra}]'")


class ShardingError(StrataError):
    """Data cannot be handed out as asked; nothing was changed."""


class NoWorkersError(ShardingError):
    """There is nobody to hand the data to."""

    def __init__(self, wanted_for: str) -> None:
        self.wanted_for = wanted_for
        super().__init__(f"{wanted_for} cannot be placed: there are no workers; register one first")


class UnknownWorkerError(ShardingError, LookupError):
    """No worker of that name is registered."""

    def __init__(self, worker_id: str, *, known: Iterable[str]) -> None:
        self.worker_id = worker_id
        self.known = sorted(known)
        super().__init__(f"worker {worker_id!r} is not registered; {_choices(self.known)}")


class UnknownDatasetError(ShardingError, LookupError):
    """No dataset of that name is registered."""

    def __init__(self, dataset_id: str, *, known: Iterable[str]) -> None:
        self.dataset_id = dataset_id
        self.known = sorted(known)
        super().__init__(f"dataset {dataset_id!r} is not registered; {_choices(self.known)}")


class DatasetConflictError(ShardingError):
    """The dataset is registered with other parameters, and running jobs count on those."""

    def __init__(self, dataset_id: str, *, registered: str, given: str) -> None:
        self.dataset_id = dataset_id
        self.registered = registered
        self.given = given
        super().__init__(
            f"dataset {dataset_id!r} is registered with {registered}, and now comes with {given}; "
            "use the same parameters, or another dataset id"
        )


class DamagedRecordError(ShardingError):
    """Bytes or JSON that are not the record they claim to be; nothing of them was used."""

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        self.problem = problem
        super().__init__(f"this is not a whole {kind}: {problem}; get it again from where it was made")


def _choices(known: list[str], *, shown: int = 5) -> str:
    if not known:
        return "none is; register it first"
    more = f" and {len(known) - shown} more" if len(known) > shown else ""
    return f"there are {', '.join(known[:shown])}{more}"


class ClusterError(StrataError):
    """The coordinator refuses a command, or what was waited for will not come; nothing was changed."""


class JournalUnavailableError(ClusterError):
    """The coordinator's disk takes no writes: nothing durable is promised until it does."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(
            f"the journal {path} cannot be written: {problem}; nothing was changed, and training may go on. "
            "Make room or mend the disk, and the coordinator takes commands again by itself"
        )


class JournalDamagedError(ClusterError):
    """The coordinator's record was changed by something else; it is not guessed what it said."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(
            f"the journal {path} is damaged: {problem}. Restore the file from a backup, or move it away to begin anew: "
            "committed checkpoints are in storage and are found there"
        )


class CoordinatorLostError(ClusterError, TimeoutError):
    """No answer came in time; the coordinator may be away, and the command may or may not have been carried out."""

    def __init__(self, address: str, *, waited_s: float) -> None:
        self.address = address
        self.waited_s = waited_s
        problem = f"has not answered for {waited_s:.3g} s" if waited_s >= 1 else "cannot be reached"
        super().__init__(f"the coordinator at {address} {problem}; see whether it runs there. Asking again is harmless")


class OutboxFullError(ClusterError):
    """Too much waits for a coordinator that is away."""

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"{limit} commands wait for a coordinator that does not answer; bring it back, or report less often"
        )


class PortTakenError(ClusterError):
    """The coordinator cannot listen where it was told to."""

    def __init__(self, what: str, address: str, problem: str) -> None:
        self.what = what
        self.address = address
        self.problem = problem
        super().__init__(
            f"{what} cannot listen on {address}: {problem}; another coordinator may run there, or choose another port"
        )


class BadCommandError(ClusterError, ValueError):
    """A command that cannot be carried out as it is; nothing was changed."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"the coordinator refuses a command: {problem}")


class UnknownJobError(ClusterError, LookupError):
    """No job of that name."""

    def __init__(self, job_id: str, *, known: Iterable[str]) -> None:
        self.job_id = job_id
        self.known = sorted(known)
        super().__init__(f"there is no job {job_id!r}; {_choices(self.known)}")


class StaleIncarnationError(ClusterError):
    """The sender is not, or no longer, the worker that it says it is."""

    def __init__(self, worker_id: str, incarnation: str, *, state: str) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.state = state
        super().__init__(
            f"worker {worker_id!r} of incarnation {incarnation} was replaced or is {state}; register again to go on"
        )


class DuplicateWorkerError(ClusterError):
    """Another process has joined under this worker's name, and the newest counts."""

    def __init__(self, job_id: str, worker_id: str) -> None:
        self.job_id = job_id
        self.worker_id = worker_id
        super().__init__(
            f"another process has joined job {job_id!r} as worker {worker_id!r}, so this one is out; give each worker "
            "its own WORKER_ID (strata run: --name), or end the older process"
        )


class ProtocolMismatchError(ClusterError):
    """The coordinator speaks another version of the contract."""

    def __init__(self, address: str, *, theirs: int, ours: int) -> None:
        self.address = address
        self.theirs = theirs
        self.ours = ours
        older = "coordinator" if theirs < ours else "worker"
        super().__init__(
            f"the coordinator at {address} speaks version {theirs} of the contract and this worker {ours}; "
            f"update Strata on the {older}"
        )


class WorldSizeError(ClusterError):
    """A worker was started for another number of workers than its job needs."""

    def __init__(self, job_id: str, *, given: int, needed: int) -> None:
        self.job_id = job_id
        self.given = given
        self.needed = needed
        super().__init__(
            f"this worker was started with WORLD_SIZE={given}, but job {job_id!r} needs {needed} workers to run; start "
            "all workers with the same WORLD_SIZE, or lower the job's minimum"
        )


class DatasetChangedError(ClusterError):
    """A dataset is not the one that the job began with."""

    def __init__(self, dataset_id: str, *, url: str) -> None:
        self.dataset_id = dataset_id
        self.url = url
        super().__init__(
            f"the files of dataset {dataset_id!r} ({url}) are not those that this job began with, so its data position "
            "means nothing in them; bring the old files back, or use another job id or dataset name"
        )


class Reconfigure(ClusterError):  # noqa: N818 - it is news, and no failure
    """The membership of the job changed: what was done since the last checkpoint is void; restore and go on."""

    def __init__(self, generation: int, reason: str) -> None:
        self.generation = generation
        self.reason = reason
        super().__init__(
            f"generation {generation} is over: {reason or 'the membership changed'}; call run.restore(state) and go "
            "on, or loop over run.steps(state), which does"
        )


class StaleGenerationError(ClusterError):
    """The command belongs to a membership that is no more."""

    def __init__(self, worker_id: str, *, sent: int, current: int) -> None:
        self.worker_id = worker_id
        self.sent = sent
        self.current = current
        super().__init__(
            f"worker {worker_id!r} speaks of generation {sent}, but it is {current} now; restore and go on in that one"
        )


class IllegalTransitionError(ClusterError):
    """A worker cannot go from one state to the other."""

    def __init__(self, worker_id: str, *, current: str, wanted: str) -> None:
        self.worker_id = worker_id
        self.current = current
        self.wanted = wanted
        super().__init__(f"worker {worker_id!r} is {current} and cannot become {wanted}; say what it is doing instead")


class JobFullError(ClusterError):
    """The job has as many workers as it may."""

    def __init__(self, job_id: str, worker_id: str, *, max_workers: int) -> None:
        self.job_id = job_id
        self.worker_id = worker_id
        self.max_workers = max_workers
        super().__init__(
            f"worker {worker_id!r} cannot join job {job_id!r}, which has its {max_workers} workers; "
            "wait for one to leave, or raise the job's maximum"
        )


class JobWaitingError(ClusterError):
    """The job has fewer workers than it needs to run."""

    def __init__(self, job_id: str, *, missing: int, min_workers: int) -> None:
        self.job_id = job_id
        self.missing = missing
        self.min_workers = min_workers
        super().__init__(
            f"job {job_id!r} waits for {missing} more of the {min_workers} workers that it needs; "
            "ask again when the generation changes"
        )


class QuotaExceededError(ClusterError):
    """More of something than may be."""

    def __init__(self, what: str, *, limit: int) -> None:
        self.what = what
        self.limit = limit
        super().__init__(f"no more than {limit} {what} are allowed; remove some, or raise the limit")


class OutOfOrderError(ClusterError):
    """A report or a ticket came before the one that precedes it."""

    def __init__(self, worker_id: str, *, what: str, expected: int, sent: int) -> None:
        self.worker_id = worker_id
        self.what = what
        self.expected = expected
        self.sent = sent
        super().__init__(
            f"worker {worker_id!r} sent {what} {sent} where {what} {expected} was to come; send them in order"
        )


class RestoreTooLateError(ClusterError):
    """The data of this generation was dealt before anyone asked where to restore."""

    def __init__(self, worker_id: str, *, generation: int) -> None:
        self.worker_id = worker_id
        self.generation = generation
        super().__init__(
            f"worker {worker_id!r} asks where generation {generation} restores, but its data was dealt already; "
            "ask before the first worker takes data"
        )


class CommitPendingError(ClusterError):
    """All parts of a checkpoint are durable and its manifest is being written; a restore waits for it."""

    def __init__(self, job_id: str, step: int) -> None:
        self.job_id = job_id
        self.step = step
        super().__init__(
            f"step {step} of job {job_id!r} is about to be committed, and the job goes on from there; ask again soon"
        )


class StepTakenError(ClusterError):
    """A step is committed, or all its parts are in."""

    def __init__(self, job_id: str, step: int) -> None:
        self.job_id = job_id
        self.step = step
        super().__init__(f"step {step} of job {job_id!r} has its checkpoint already; save at another step")


class LastCheckpointError(ClusterError):
    """A checkpoint cannot be restored, and there is no other one to go back to."""

    def __init__(self, job_id: str, step: int) -> None:
        self.job_id = job_id
        self.step = step
        super().__init__(
            f"step {step} is the only checkpoint of job {job_id!r}, so there is none to go back to; "
            "bring its files back from a copy, or begin a new job"
        )


class PayloadTooLargeError(ClusterError):
    """More than an exchange carries."""

    def __init__(self, barrier: str, *, size_bytes: int, limit_bytes: int) -> None:
        self.barrier = barrier
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"{size_bytes} bytes are too many for exchange {barrier!r}, which carries {limit_bytes} from each; "
            "put large data into storage and exchange its path"
        )


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """Someone who did not come to a barrier, and what is last known of it."""

    worker_id: str
    rank: int
    state: str
    step: int
    silent_s: float

    def __str__(self) -> str:
        return f"{self.worker_id} (rank {self.rank}, {self.state}, step {self.step}, silent for {self.silent_s:.1f} s)"


class BarrierTimeoutError(ClusterError, TimeoutError):
    """Not everyone came in time."""

    def __init__(self, barrier: str, arrived: int, expected: int, missing: list[MissingWorker]) -> None:
        self.barrier = barrier
        self.arrived = arrived
        self.expected = expected
        self.missing = missing
        names = ", ".join(map(str, missing[:5])) or "workers that never registered"
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        super().__init__(
            f"barrier {barrier!r} timed out with {arrived} of {expected}: missing {names}{more}; look at their logs"
        )


class BarrierCancelledError(ClusterError):
    """Someone called the barrier off."""

    def __init__(self, barrier: str, reason: str) -> None:
        self.barrier = barrier
        self.reason = reason
        super().__init__(f"barrier {barrier!r} was called off: {reason}")


class GenerationChangedError(ClusterError):
    """The membership changed while waiting."""

    def __init__(self, barrier: str, generation: int) -> None:
        self.barrier = barrier
        self.generation = generation
        super().__init__(
            f"barrier {barrier!r} is void: the membership is that of generation {generation} now; restore in it"
        )


class DataError(StrataError):
    """A dataset cannot be found, understood or read as asked."""


class DatasetNotFoundError(DataError, LookupError):
    """There are no files to read at this place."""

    def __init__(self, url: str, problem: str, *, hint: str) -> None:
        self.url = url
        self.problem = problem
        self.hint = hint
        super().__init__(f"{_shorten(url)}: {problem}; {hint}")


class DatasetExistsError(DataError):
    """There is something already where a dataset was to be written; it was left as it is."""

    def __init__(self, url: str, problem: str) -> None:
        self.url = url
        self.problem = problem
        super().__init__(f"{_shorten(url)}: {problem}; choose another place, or clear this one yourself")


class UnknownDataFormatError(DataError):
    """No reader knows these files, or the one that was named cannot read them."""

    def __init__(self, path: str, problem: str, *, known: Iterable[str]) -> None:
        self.path = path
        self.problem = problem
        self.known = sorted(known)
        super().__init__(f"{_shorten(path)}: {problem}; name one of these formats: {', '.join(self.known)}")


class MixedFormatsError(DataError):
    """Files of several formats lie together, so it is not clear which of them are the dataset."""

    def __init__(self, url: str, examples: dict[str, str]) -> None:
        self.url = url
        self.examples = examples
        found = ", ".join(f"{kind} ({_shorten(path)})" for kind, path in sorted(examples.items()))
        super().__init__(
            f"{_shorten(url)}: files of several formats lie together: {found}; "
            "name the format that is meant, or give a pattern such as data/*.parquet"
        )


class SchemaMismatchError(DataError):
    """Two files of one dataset have different columns, so their rows do not fit together."""

    def __init__(self, first: str, second: str, problem: str) -> None:
        self.first = first
        self.second = second
        self.problem = problem
        super().__init__(
            f"{_shorten(first)} and {_shorten(second)} differ in their columns: {problem}; "
            "write them with one schema, or read them as two datasets"
        )


class CorruptFileError(DataError):
    """A file is not what its format says; ``part`` and ``offset`` say where, as far as it is known."""

    def __init__(
        self, path: str, problem: str, *, kind: str, part: str | None = None, offset: int | None = None, hint: str = ""
    ) -> None:
        self.path = path
        self.problem = problem
        self.kind = kind
        self.part = part
        self.offset = offset
        self.hint = hint or "bring a good copy of the file, or take it out of the dataset and index it again"
        where = [each for each in (part, None if offset is None else f"byte {offset}") if each]
        place = f" ({', '.join(where)})" if where else ""
        super().__init__(f"{_shorten(path)}{place} is not a good {kind} file: {problem}; {self.hint}")


class StaleIndexError(DataError):
    """Files changed since the index was made, so row numbers would not mean what they meant."""

    def __init__(self, url: str, path: str, problem: str) -> None:
        self.url = url
        self.path = path
        self.problem = problem
        super().__init__(
            f"{_shorten(path)} {problem} since {_shorten(url)} was indexed; put the file back as it was, or run "
            "'strata data index' again: data positions that were saved before belong to the old files"
        )


class PositionMismatchError(DataError):
    """A saved position means nothing here: what it depends on is not what it was."""

    def __init__(self, saved: dict[str, Any], here: dict[str, Any]) -> None:
        self.saved = saved
        self.here = here
        differ = [name for name in here if saved.get(name) != here[name]]
        told = ", ".join(f"{name} was {saved.get(name)!r} and is {here[name]!r}" for name in differ)
        super().__init__(
            f"the data position cannot be loaded: {told}; open the dataset with what it was saved with, or begin anew"
        )


class TransformProcessError(DataError):
    """A process that transforms batches died, so the batches that it had will not come."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        super().__init__(
            f"one of the {processes} processes that transform batches died: it was killed (is there enough memory?), "
            "the transform ended it, or the main script has no 'if __name__ == \"__main__\":'; iterate again to go on "
            "from the last batch that was delivered"
        )


class StorageError(StrataError):
    """A store did not do what was asked of it; ``path`` says for which object, ``hint`` what to do."""

    def __init__(self, problem: str, *, path: str, backend: str, hint: str) -> None:
        self.problem = problem
        self.path = path
        self.backend = backend
        self.hint = hint
        super().__init__(f"{backend}: {_shorten(path)}: {problem}; {hint}")


class ObjectNotFoundError(StorageError):
    """There is no object at this path."""

    def __init__(self, path: str, *, backend: str) -> None:
        super().__init__(
            "there is no such object",
            path=path,
            backend=backend,
            hint="list the store to see what is there; a checkpoint that was not committed is never there",
        )


class ObjectExistsError(StorageError):
    """There is an object at this path already; it was left as it is."""

    def __init__(self, path: str, *, backend: str) -> None:
        super().__init__(
            "there is an object already",
            path=path,
            backend=backend,
            hint="it was left as it is; another worker was first, or the path was used before",
        )


class StoragePermissionError(StorageError):
    """The store refuses: missing rights, wrong or missing credentials, or a read-only file system."""

    def __init__(self, path: str, *, backend: str, problem: str, hint: str) -> None:
        super().__init__(problem, path=path, backend=backend, hint=hint)


class StorageFullError(StorageError):
    """No space is left, or a quota is used up; nothing of the new object was kept."""

    def __init__(self, path: str, *, backend: str, problem: str) -> None:
        super().__init__(
            problem,
            path=path,
            backend=backend,
            hint="nothing of the new object was kept; free space, raise the quota or keep fewer checkpoints",
        )


class StorageUnavailableError(StorageError):
    """No usable answer came within the attempts and the time allowed."""

    def __init__(self, path: str, *, backend: str, problem: str, attempts: int, elapsed_s: float, hint: str) -> None:
        self.reason = problem
        self.attempts = attempts
        self.elapsed_s = elapsed_s
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"{problem} ({tries} in {elapsed_s:.1f} s)", path=path, backend=backend, hint=hint)


class ObjectChangedError(StorageError):
    """The object was replaced since the version that was asked for; nothing of the new one was given."""

    def __init__(self, path: str, *, backend: str) -> None:
        super().__init__(
            "it was replaced since it was listed", path=path, backend=backend, hint="list it again for its new version"
        )


class CorruptObjectError(StorageError):
    """The object is not what was written: it is shorter than what is asked of it, or its digest differs."""

    def __init__(self, path: str, *, backend: str, problem: str) -> None:
        super().__init__(
            problem, path=path, backend=backend, hint="restore an older checkpoint, or write the object again"
        )


class InvalidKeyError(StorageError, ValueError):
    """A key that no store may be asked for; nothing was asked."""

    def __init__(self, path: object, problem: str, *, backend: str = "storage") -> None:
        super().__init__(
            problem,
            path=path if isinstance(path, str) else repr(path),
            backend=backend,
            hint="use relative keys such as job/checkpoints/step_100/model.bin",
        )


class UnsafeStoreError(StorageError):
    """The store ignores put-if-absent, so that two workers could both commit; nothing was written."""

    def __init__(self, path: str, *, backend: str) -> None:
        super().__init__(
            "the store accepts put-if-absent and overwrites all the same, so two workers could both commit",
            path=path,
            backend=backend,
            hint="use a store that honours If-None-Match, or pass allow_unsafe=True and accept that risk",
        )


class CheckpointError(StrataError):
    """A checkpoint cannot be made, found or restored as asked; what was committed before is untouched."""


class UnsavableStateError(CheckpointError, TypeError):
    """The state holds something that no checkpoint can keep; nothing was written."""

    def __init__(self, path: str, kind: str, problem: str) -> None:
        self.path = path
        self.kind = kind
        self.problem = problem
        where = _shorten(path) if path else "the state itself"
        super().__init__(
            f"{where} is of type {kind}, which {problem}; nothing was written: remove it from the state, "
            "or turn it into tensors, numbers, strings, bytes, None, or dicts, lists and tuples of these"
        )


class CheckpointExistsError(CheckpointError):
    """The step is committed already; that checkpoint was left as it is."""

    def __init__(self, step: int, *, path: str) -> None:
        self.step = step
        self.path = path
        super().__init__(
            f"step {step} is committed already ({_shorten(path)}) and was left as it is; "
            "save another step, or use another job id for another run"
        )


class CheckpointNotFoundError(CheckpointError, LookupError):
    """There is no such committed checkpoint, or none at all."""

    def __init__(self, step: int | None, *, path: str, known: Iterable[int] = ()) -> None:
        self.step = step
        self.path = path
        self.known = sorted(known)
        wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        there = _choices([str(each) for each in reversed(self.known)]) if self.known else "none was committed yet"
        super().__init__(f"{_shorten(path)}: there is {wanted}; {there}")


class DamagedCheckpointError(CheckpointError):
    """What is stored is not what was saved; nothing of it was returned."""

    def __init__(
        self,
        step: int,
        problem: str,
        *,
        part: str,
        tensor: str | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        self.step = step
        self.problem = problem
        self.part = part
        self.tensor = tensor
        self.start = start
        self.end = end
        where = _shorten(part)
        if start is not None and end is not None:
            where += f", bytes {start} to {end}"
        if tensor is not None:
            where += f", tensor {_shorten(tensor)}"
        super().__init__(f"step {step} is damaged: {where}: {problem}; load an older step, or without a step")


class UnknownFormatError(CheckpointError):
    """The manifest is of a version or a kind that this version of Strata cannot read."""

    def __init__(self, step: int, *, found: str, known: str) -> None:
        self.step = step
        self.found = found
        self.known = known
        super().__init__(
            f"step {step} has a manifest of {found}, and this version of Strata reads {known}; update Strata"
        )


class StateMismatchError(CheckpointError):
    """The checkpoint does not fit what it is to be loaded into."""

    def __init__(self, step: int, path: str, problem: str) -> None:
        self.step = step
        self.path = path
        self.problem = problem
        where = _shorten(path) if path else "the state itself"
        super().__init__(
            f"step {step} does not fit `like`: {where}: {problem}; see `strata ckpt show` for what the checkpoint holds"
        )


class ForeignCheckpointError(CheckpointError):
    """The checkpoint was saved by another job, so its data position is not this one's."""

    def __init__(self, step: int, *, found: str, expected: str) -> None:
        self.step = step
        self.found = found
        self.expected = expected
        super().__init__(
            f"step {step} was saved by job {found!r}, and this is job {expected!r}; run with JOB_ID={found} to go on "
            "with it, or load it with CheckpointManager and begin a job of its own"
        )


class CheckpointBusyError(CheckpointError):
    """As many saves are pending as may be, so this one was not begun."""

    def __init__(self, step: int, *, pending: Iterable[str], waited_s: float) -> None:
        self.step = step
        self.pending = list(pending)
        self.waited_s = waited_s
        super().__init__(
            f"step {step} was not saved: {', '.join(self.pending) or 'another save'} was still under way "
            f"after {waited_s:.1f} s; save less often, or raise max_pending if there is memory for it"
        )


class CheckpointTimeoutError(CheckpointError, TimeoutError):
    """A save or restore did not end in the time given; it goes on."""

    def __init__(self, what: str, *, phase: str, timeout_s: float, waits_for: Iterable[str] = ()) -> None:
        self.what = what
        self.phase = phase
        self.timeout_s = timeout_s
        self.waits_for = list(waits_for)
        whom = f", waiting for {', '.join(self.waits_for[:5])}" if self.waits_for else ""
        super().__init__(
            f"{what} is still {phase}{whom} after {timeout_s:g} s; it goes on: wait longer, or look at the "
            f"{'workers' if whom else 'store'}"
        )


class CheckpointAbortedError(CheckpointError):
    """A checkpoint of several workers was given up; none of it is listed, and older ones stay."""

    def __init__(self, step: int, reason: str) -> None:
        self.step = step
        self.reason = reason
        super().__init__(
            f"the checkpoint of step {step} was given up: {reason}; training goes on, and a later step can be saved"
        )


class IncompleteCheckpointError(CheckpointError):
    """Parts are missing, so there is nothing to commit yet."""

    def __init__(self, step: int, problem: str, *, missing: Iterable[int] = ()) -> None:
        self.step = step
        self.problem = problem
        self.missing = list(missing)
        super().__init__(f"step {step} cannot be committed: {problem}; save what is missing, then commit again")


class ConflictingPartsError(CheckpointError):
    """Two parts say different things about one leaf or tensor, so they are not of one state."""

    def __init__(self, step: int, path: str, problem: str) -> None:
        self.step = step
        self.path = path
        self.problem = problem
        where = _shorten(path) if path else "the state itself"
        super().__init__(
            f"step {step} cannot be committed: {where}: {problem}; "
            "keep what differs between workers under a key of its own, such as the rank"
        )


class StrataWarning(UserWarning):
    """The root of what Strata warns of."""


class UnchangedStateWarning(StrataWarning):
    """Two checkpoints in a row hold the same bits, which is nearly always a bug in the training loop."""

    def __init__(self, step: int, previous_step: int) -> None:
        self.step = step
        self.previous_step = previous_step
        super().__init__(
            f"every tensor of step {step} is bit-identical to step {previous_step}; "
            "is the state that is saved the one that is trained?"
        )


def _shorten(text: str) -> str:
    """Show a path as it is, and one that is long or has odd characters as a bounded literal."""
    if len(text) <= 300 and text.isprintable() and text:
        return text
    return repr(text) if len(text) <= 300 else f"{text[:200]!r}... ({len(text)} characters)"
