"""Probe: does a store honour put-if-absent? Some accept the condition and overwrite all the same."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import obstore

from strata.errors import ObjectExistsError, ObjectNotFoundError, StoragePermissionError
from strata.storage.object.error_mapping import translated

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)


async def honours_put_if_absent(store: ObjectStore, directory: str, *, backend: str) -> bool:
    """Put one small object twice on condition that it is absent; say whether the second was refused."""
    key = f"{directory}/{uuid.uuid4().hex}"
    with translated(key, backend):
        await obstore.put_async(store, key, b"first", mode="create")
    try:
        with translated(key, backend):
            await obstore.put_async(store, key, b"second", mode="create")
    except ObjectExistsError:
        return True
    else:
        return False
    finally:
        await _remove(store, key, backend=backend)


async def _remove(store: ObjectStore, key: str, *, backend: str) -> None:
    try:
        with translated(key, backend):
            await obstore.delete_async(store, key)
    except ObjectNotFoundError:
        pass
    except StoragePermissionError:
        # Credentials without the right to delete are a choice; the few bytes stay, out of every listing.
        log.warning("%s: not allowed to delete the probe %s; it stays", backend, key)
