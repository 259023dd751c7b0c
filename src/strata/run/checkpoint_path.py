"""Whether checkpoints can go where they are told to, asked before anything waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from pathlib import Path

from strata.checkpoint.format.layout import checkpoints_directory
from strata.config import Settings, source_of
from strata.errors import ConfigError, ConfigProblem, StorageError, StoragePermissionError
from strata.storage import RetryPolicy, Storage, open_storage, storage_from_env

log = logging.getLogger(__name__)

# Someone waits at a terminal: a store that is away is reported sooner than to a training run.
PATIENCE_S = 20.0
_SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}


def check_checkpoint_path(path: str | os.PathLike[str], *, source: str, name: str = "checkpoints") -> None:
    """Raise ConfigError with the directory and the reason, if nothing can be written to a local path."""
    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        return
    wanted = Path(text.removeprefix("file://")).expanduser().absolute()
    there = next((each for each in (wanted, *wanted.parents) if os.path.lexists(each)), Path("/"))
    reason = _find_problem(there)
    if reason is not None:
        problem = ConfigProblem(name, source, str(wanted), f"a directory that can be written, but {reason}")
        raise ConfigError([problem])


def _find_problem(there: Path) -> str | None:
    if not there.exists():
        return f"{there} is a link to nothing"
    if not there.is_dir():
        return f"{there} is a file"
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        return f"{there} is on a file system that is read-only"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} may not be written by this user"
    return None


def check_checkpoint_store(settings: Settings) -> None:
    """Raise ConfigError with the bucket and the reason, if the object store of the settings cannot be written."""
    scheme = _SCHEMES.get(settings.storage_backend)
    if scheme is None:
        return
    bucket = settings.checkpoint_bucket
    if bucket is None:
        storage_from_env()  # raises what is missing
    assert bucket is not None
    storage = open_storage(f"{scheme}://{bucket}", retry=RetryPolicy(max_elapsed_s=PATIENCE_S))
    key = f"{checkpoints_directory(settings.job_id)}/start-{uuid.uuid4().hex}"
    try:
        asyncio.run(_write(storage, key))
    except StorageError as error:
        expected = f"a bucket in {settings.storage_backend} that can be written, but {error.problem}: {error.hint}"
        problem = ConfigProblem("CHECKPOINT_BUCKET", source_of("checkpoint_bucket"), bucket, expected)
        raise ConfigError([problem]) from error


async def _write(storage: Storage, key: str) -> None:
    await storage.write_new(key, b"")
    try:
        await storage.delete(key)
    except StoragePermissionError:
        # Credentials without the right to delete are a choice; the empty object is in nobody's way.
        log.warning("%s may be written, but nothing may be deleted there, so %s stays", storage, key)
