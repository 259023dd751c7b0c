"""Where checkpoints are: a directory, a URL, or a prefix in the bucket of the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, get_args

from strata import storage
from strata.config import StorageBackend, load_settings
from strata.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from strata.storage import Storage

_SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}


def find_storage(path: str | os.PathLike[str] | None, backend: str | None) -> Storage:
    """Return the storage that the arguments name, and where they are silent the settings."""
    if backend is not None and backend not in get_args(StorageBackend):
        expected = f"one of {', '.join(get_args(StorageBackend))}"
        raise ConfigError([ConfigProblem("backend", "argument", backend, expected)])
    text = None if path is None else os.fspath(path)
    if text is None:
        return storage.storage_from_env(storage_backend=backend)
    if backend is None or "://" in text:
        return storage.open_storage(text)
    if backend == "local":
        return storage.LocalStorage(text)
    if backend == "memory":
        return storage.MemoryStorage()
    bucket = load_settings().checkpoint_bucket
    if bucket is None:
        expected = f"a bucket name, because backend is {backend!r} and path is a prefix in it"
        raise ConfigError([ConfigProblem("CHECKPOINT_BUCKET", "not set", None, expected)])
    prefix = text.strip("/")
    return storage.open_storage(f"{_SCHEMES[backend]}://{bucket}/{prefix}")
