"""SaveHandle: how a save is doing, and how it ended. A failure is kept here and raised only to who asks."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from strata.errors import CheckpointTimeoutError

if TYPE_CHECKING:
    from collections.abc import Generator

Phase = Literal["staging", "staged", "writing", "written", "committing", "committed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint as a listing shows it. Without ``committed`` it is one part that waits for its commit."""

    job_id: str
    step: int
    epoch: int
    created_s: float
    size_bytes: int
    path: str
    parts: int = 1
    generation: int = 0
    parent: int | None = None
    pinned: bool = False
    committed: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
    cursors: dict[str, Any] = field(default_factory=dict)


class SaveHandle:
    """One save under way. All of it may be asked from any thread; ``await handle`` waits on any event loop.

    ``bytes_done`` went to storage and are durable when the save ends, and ``blocked_s`` is how long the caller was held
    up. ``waits_for`` are the workers that a checkpoint of several still waits for, as last heard.
    ``took_s`` is how long it took from the call to its end, once it ended well.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.phase: Phase = "staging"
        self.bytes_total = 0
        self.bytes_done = 0
        self.blocked_s = 0.0
        self.took_s: float | None = None
        self._began_s = time.monotonic()
        self.waits_for: tuple[str, ...] = ()
        self._future: Future[CheckpointInfo] = Future()

    def __repr__(self) -> str:
        return f"SaveHandle(step={self.step}, {self.phase}, {self.bytes_done}/{self.bytes_total} bytes)"

    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._future.done()

    def error(self) -> BaseException | None:
        """Why it failed or was skipped; None if it did not, or has not ended."""
        return self._future.exception() if self._future.done() else None

    def result(self, timeout: float | None = None) -> CheckpointInfo:
        """Wait until the checkpoint is committed; raise what made it fail, or CheckpointTimeoutError."""
        try:
            return self._future.result(timeout)
        except FutureTimeoutError:
            if self._future.done() or timeout is None:
                raise
            raise CheckpointTimeoutError(
                f"the save of step {self.step}", phase=self.phase, timeout_s=timeout, waits_for=self.waits_for
            ) from None

    def __await__(self) -> Generator[Any, None, CheckpointInfo]:
        # Shielded: who stops waiting does not stop the save.
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def note_bytes(self, done: int) -> None:
        """Say how many bytes went to storage; from any thread, in any order."""
        self.bytes_done = max(self.bytes_done, done)

    def end(self, info: CheckpointInfo) -> None:
        """Say that the checkpoint is committed, or its part durable; for the manager alone."""
        self.bytes_done = self.bytes_total
        self.phase = "committed" if info.committed else "written"
        self.took_s = time.monotonic() - self._began_s
        self._future.set_result(info)

    def fail(self, error: BaseException, *, phase: Literal["failed", "skipped"] = "failed") -> None:
        """Say why there is no checkpoint; for the manager alone."""
        self.phase = phase
        self._future.set_exception(error)
