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
    └── StorageError        a store did not do what was asked of it
        ├── ObjectNotFoundError       there is no such object
        ├── ObjectExistsError         there is one already, and it was to be new
        ├── StoragePermissionError    the store knows us and refuses, or does not know us
        ├── StorageFullError          no space left, or a quota is used up
        ├── StorageUnavailableError   no usable answer within the attempts and the time allowed
        ├── CorruptObjectError        the object is not what was written
        ├── InvalidKeyError           a key that no store may be asked for   (also a ValueError)
        └── UnsafeStoreError          the store ignores put-if-absent, so commits would not be safe

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
        return _revive, (type(self), self.args, vars(self))


def _revive(kind: type[StrataError], args: tuple[Any, ...], fields: dict[str, Any]) -> StrataError:
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


def _shorten(text: str) -> str:
    """Show a path as it is, and one that is long or has odd characters as a bounded literal."""
    if len(text) <= 300 and text.isprintable() and text:
        return text
    return repr(text) if len(text) <= 300 else f"{text[:200]!r}... ({len(text)} characters)"
