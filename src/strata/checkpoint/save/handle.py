"""SaveHandle: how a save is doing, and how it ended. A failure is kept here and raised only to who asks."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from strata.checkpoint.save.progress import Phase, SaveProgress
from strata.errors import CheckpointTimeoutError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from strata.checkpoint.format.rewind_record import Rewind
    from strata.cluster.values import Divergence


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint as a listing shows it. Without ``committed`` it is one part that waits for its commit.

    ``diverged`` says which ranks held other values than the others of what should be the same on all. ``rewinds`` are
    those that the job had gone through when it was saved, and ``rewound`` the number of the one that set it aside.
    """

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
    diverged: Divergence | None = None
    rewinds: tuple[Rewind, ...] = ()
    rewound: int | None = None


class SaveHandle:
    """One save under way. All of it may be asked from any thread; ``await handle`` waits on any event loop.

    ``blocked_s`` is how long the caller was held up. ``took_s`` is how long it took from the call to its end, once it
    ended well; ``staged_s`` and ``written_s`` say the same of the copy of the state, and of its bytes in storage.
    """

    def __init__(self, step: int, progress: SaveProgress | None = None) -> None:
        self.step = step
        self.blocked_s = 0.0
        self.took_s: float | None = None
        self.staged_s: float | None = None
        self._progress = progress or SaveProgress()
        self.began_s = time.monotonic()
        self._future: Future[CheckpointInfo] = Future()
        self._staged = threading.Event()

    @property
    def phase(self) -> Phase:
        """What is being done, or how it ended."""
        return self._progress.phase

    @property
    def written_s(self) -> float | None:
        """How long it took until the bytes were in storage; None before."""
        written_at_s = self.moments.get("written")
        return None if written_at_s is None else written_at_s - self.began_s

    @property
    def moments(self) -> Mapping[str, float]:
        """When each phase and event of the save came, by the monotonic clock."""
        return self._progress.moments

    @property
    def bytes_total(self) -> int:
        """How many bytes there are to write."""
        return self._progress.bytes_total

    @property
    def bytes_done(self) -> int:
        """How many bytes went to storage; they are durable when the save ends."""
        return self._progress.bytes_done

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The workers that a checkpoint of several still waits for, as last heard."""
        return self._progress.waits_for

    def __repr__(self) -> str:
        return f"SaveHandle(step={self.step}, {self.phase}, {self.bytes_done}/{self.bytes_total} bytes)"

    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._future.done()

    def error(self) -> BaseException | None:
        """Why it failed or was skipped; None if it did not, or has not ended."""
        return self._future.exception() if self._future.done() else None

    def result(self, timeout_s: float | None = None) -> CheckpointInfo:
        """Wait until the checkpoint is committed; raise what made it fail, or CheckpointTimeoutError."""
        try:
            return self._future.result(timeout_s)
        except FutureTimeoutError:
            if self._future.done() or timeout_s is None:
                raise
            raise CheckpointTimeoutError(
                f"the save of step {self.step}", phase=self.phase, timeout_s=timeout_s, waits_for=self.waits_for
            ) from None

    def __await__(self) -> Generator[Any, None, CheckpointInfo]:
        # Shielded: who stops waiting does not stop the save.
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def wait_staged(self, timeout_s: float | None = None) -> None:
        """Wait until the state may change, whatever became of the save; raise CheckpointTimeoutError if it may not."""
        if not self.wait_for_staging(timeout_s):
            assert timeout_s is not None
            raise CheckpointTimeoutError(f"the staging of step {self.step}", phase="under way", timeout_s=timeout_s)

    def wait_for_staging(self, timeout_s: float | None) -> bool:
        """Wait as :meth:`wait_staged`, count the time as blocked, and return whether the state may change."""
        if self._staged.is_set():
            return True
        began_s = time.monotonic()
        is_staged = self._staged.wait(timeout_s)
        self.blocked_s += time.monotonic() - began_s
        return is_staged

    def note_staged(self) -> None:
        """Say that the state may change; for the manager alone."""
        if self.staged_s is None:
            self.staged_s = time.monotonic() - self.began_s
        if self.phase == "staging":
            self._progress.phase = "staged"
        self._staged.set()

    def end(self, info: CheckpointInfo) -> None:
        """Say that the checkpoint is committed, or its part durable; for the manager alone."""
        self._progress.note_bytes(self.bytes_total)
        self._progress.phase = "committed" if info.committed else "written"
        self.took_s = time.monotonic() - self.began_s
        self._staged.set()
        self._future.set_result(info)

    def fail(self, error: BaseException, *, phase: Literal["failed", "skipped"] = "failed") -> None:
        """Say why there is no checkpoint; for the manager alone."""
        self._progress.phase = phase
        self._staged.set()
        self._future.set_exception(error)
