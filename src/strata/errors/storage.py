"""Errors of the stores."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from typing import Any

from strata.errors.base import Recovery, StrataError, with_fields


@with_fields
class StorageError(StrataError):
    """A storage operation failed; ``path`` names the object, ``hint`` says what to do."""

    path: str = field(kw_only=True)
    problem: str
    _: KW_ONLY
    backend: str
    hint: str

    template = "{backend}: {path!p}: {problem}; {hint}"


@with_fields
class ObjectNotFoundError(StorageError):
    """There is no object at this path."""

    path: str
    problem: str = field(default="there is no such object", init=False)
    hint: str = field(
        default="list the store to see what it holds; a checkpoint appears only when it is committed", init=False
    )


@with_fields
class ObjectExistsError(StorageError):
    """An object already exists at this path; it was not changed."""

    path: str
    problem: str = field(default="the object already exists", init=False)
    hint: str = field(default="it was not changed; another worker was first, or the path was used before", init=False)


@with_fields
class StoragePermissionError(StorageError):
    """The store denied access: missing permissions, wrong or missing credentials, or a read-only file system."""

    path: str
    problem: str = field(kw_only=True)


@with_fields
class StorageFullError(StorageError):
    """No space is left, or a quota is used up; nothing of the new object was kept."""

    path: str
    problem: str = field(kw_only=True)
    hint: str = field(
        default="nothing of the new object was kept; free space, raise the quota or keep fewer checkpoints", init=False
    )


@with_fields
class StorageUnavailableError(StorageError):
    """The store gave no usable reply within the allowed attempts and time."""

    path: str
    problem: str = field(kw_only=True)
    reason: str = field(init=False)
    _: KW_ONLY
    attempts: int
    elapsed_s: float

    recovery = Recovery.RETRY

    def __post_init__(self) -> None:
        self.reason = self.problem
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        self.problem = f"{self.reason} ({tries} in {self.elapsed_s:.1f} s)"
        super().__post_init__()


@with_fields
class ObjectChangedError(StorageError):
    """The object was replaced since the requested version; nothing of the new one was returned."""

    # The version that was asked for never comes back, so the same call fails again: stop, as all of these do.
    path: str
    problem: str = field(default="it was replaced since it was listed", init=False)
    hint: str = field(default="list it again for its new version", init=False)


@with_fields
class CorruptObjectError(StorageError):
    """The object is damaged: it is shorter than the requested range, or its digest differs."""

    path: str
    problem: str = field(kw_only=True)
    hint: str = field(default="restore an older checkpoint, or write the object again", init=False)


@with_fields
class InvalidKeyError(StorageError, ValueError):
    """The key is not allowed in any store; nothing was sent to the store."""

    path: Any  # what is no key may be of any type
    problem: str
    backend: str = field(default="storage", kw_only=True)
    hint: str = field(default="use relative keys such as job/checkpoints/step_100/model.bin", init=False)

    def __post_init__(self) -> None:
        self.path = self.path if isinstance(self.path, str) else repr(self.path)
        super().__post_init__()


@with_fields
class UnsafeStoreError(StorageError):
    """The store ignores put-if-absent, so two workers could both commit; nothing was written."""

    path: str
    problem: str = field(
        default="the store accepts put-if-absent but overwrites anyway, so two workers could both commit",
        init=False,
    )
    hint: str = field(
        default="use a store that honours If-None-Match, or pass allow_unsafe=True and accept that risk", init=False
    )
