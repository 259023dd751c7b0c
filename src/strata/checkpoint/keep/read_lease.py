"""Read leases: while a process reads a checkpoint, an object beside it says so, and no other process prunes it.

A lease is a small object that its reader writes again and again, and that ends by itself: it counts for as long as its
name says after the time that the store shows for it. Storage that this process may not write has no lease; whoever
reads there lists again before it believes that a checkpoint is damaged.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from strata.checkpoint.format import layout
from strata.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from strata.storage import ObjectInfo, Storage

log = logging.getLogger(__name__)

# How long a reader that died protects what it read.
LEASE_S = 120
RENEWALS_PER_LEASE = 4
# A store that takes longer is read without a lease.
WRITE_TIMEOUT_S = 10.0
# How much the clocks of the store and of the pruning process may differ.
MARGIN_S = 60.0


@asynccontextmanager
async def hold_lease(storage: Storage, directory: str, step: int) -> AsyncIterator[None]:
    """Protect a step from pruning while the block runs, if the storage can be written."""
    path = f"{directory}/{layout.lease_name(step, uuid.uuid4().hex[:12], LEASE_S)}"
    if not await _write(storage, path):
        yield
        return
    renewing = asyncio.create_task(_renew(storage, path), name=f"lease of step {step}")
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(StorageError):  # it ends by itself
            await storage.delete(path)


def leased_steps(objects: Iterable[ObjectInfo], *, now_s: float) -> set[int]:
    """Return the steps that a reader protects now."""
    found: set[int] = set()
    for info in objects:
        lease = layout.lease_of(info.path)
        if lease is not None and now_s - info.modified_s < lease[1] + MARGIN_S:
            found.add(lease[0])
    return found


async def _renew(storage: Storage, path: str) -> None:
    while True:
        await asyncio.sleep(LEASE_S / RENEWALS_PER_LEASE)
        await _write(storage, path)


async def _write(storage: Storage, path: str) -> bool:
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await storage.write(path, b"{}")
    except (StorageError, TimeoutError) as error:
        log.debug("no read lease at %s: %s", path, error)
        return False
    return True
