"""The channel on a gRPC stream: the same frames and the same bounds, for clients behind a firewall."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.entry.gate import Caller
from strata.coordinator.flow import MAX_UNSENT_BYTES, RATE_LOOK_S, UnsentBudget
from strata.coordinator.sessions import Session, Sessions

log = logging.getLogger(__name__)

# Smaller answers to single calls are not counted: the number of calls under way bounds them.
SMALL_BYTES = 64 << 10
# Who does not read so many bytes of answers is not asked for more questions.
MAX_UNREAD_BYTES = 64 << 10

Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def lasting_call(context: Context) -> AsyncIterator[Callable[[str], None]]:
    """Yield what ends the current call, with the reason for it: gRPC lets only the call itself do so.

    The client learns of it when it has read what was sent before.
    """
    task = asyncio.current_task()
    assert task is not None
    # The first message would take it along, and a call that is ended meanwhile cannot send it again with its status.
    await context.send_initial_metadata(())
    reason: str | None = None

    def end(why: str) -> None:
        nonlocal reason
        if reason is None:
            reason = why
            task.cancel()

    try:
        yield end
        if reason is None:
            reason = "it is over"
            return
        # It came to its end by itself as it was ended: the cancellation arrives here.
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if reason is None:
            raise
        task.uncancel()
    except grpc.aio.InternalError:
        # A message could not be sent: the client is gone, and nobody is left to be told.
        reason = "it is over"
        return
    await context.abort(grpc.StatusCode.UNAVAILABLE, reason)


class FrameStream:
    """One stream, from its first frame until either side ends it; ``end`` is that of its lasting call."""

    def __init__(
        self,
        sessions: Sessions,
        dispatcher: Dispatcher,
        budget: UnsentBudget,
        context: Context,
        caller: Caller,
        end: Callable[[str], None],
    ) -> None:
        self._budget = budget
        self._context = context
        self._end = end
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._changed = asyncio.Event()
        self._may_read = asyncio.Event()
        self._is_closed = False
        self._session = Session(sessions, dispatcher, self._send, self.hang_up, caller.principal, caller.address)

    async def serve(self, frames: AsyncIterator[bytes]) -> None:
        """Carry frames both ways until the stream ends."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._receive(frames))
                group.create_task(self._write())
        except* EOFError:
            pass
        finally:
            self._is_closed = True
            self._budget.note(self, 0)
            self._session.lost()

    def unsent_bytes(self) -> int:
        """Return how many bytes the client has not taken."""
        return self._unsent_bytes

    def hang_up(self, reason: str) -> None:
        """End the stream at once; its client connects again."""
        if self._is_closed:
            return
        log.warning("a stream is closed: %s", reason)
        self._is_closed = True
        self._unsent.clear()
        self._end(reason)

    async def _receive(self, frames: AsyncIterator[bytes]) -> None:
        async for frame in frames:
            self._session.receive(frame)
            if self._session.wait_s:
                await self._wait_for_rate(self._session.wait_s)
            while self._session.is_full or self._unsent_bytes > MAX_UNREAD_BYTES:
                self._may_read.clear()
                await self._may_read.wait()
            if self._session.is_busy:
                turn = asyncio.Event()
                self._session.when_read(turn.set)
                await turn.wait()
        raise EOFError

    async def _wait_for_rate(self, wait_s: float) -> None:
        """Return when the time is over, or soon after the quota was changed."""
        rate_per_s, until_s = self._session.rate_per_s, time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0 and self._session.rate_per_s == rate_per_s:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(min(left_s, RATE_LOOK_S))

    async def _write(self) -> None:
        while True:
            while not self._unsent:
                self._changed.clear()
                await self._changed.wait()
            data = self._unsent.popleft()
            try:
                await self._context.write(data)
            except grpc.aio.InternalError:
                # The client is gone, which is noticed here before its half of the stream ends.
                raise EOFError from None
            self._unsent_bytes -= len(data)
            self._may_read.set()
            self._budget.note(self, self._unsent_bytes)

    def _send(self, data: bytes) -> None:
        if self._is_closed:
            return
        if self._unsent_bytes and self._unsent_bytes + len(data) > MAX_UNSENT_BYTES:
            self.hang_up("it does not read what it is sent")
            return
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self._changed.set()
        self._may_read.set()
        self._budget.note(self, self._unsent_bytes)


class UnaryAnswers:
    """The answers to single calls that their clients have not taken yet, bounded for each client and in total.

    gRPC takes no answer back that it was given. So one that has no room is refused, and what waits for a client that is
    gone is dropped with its connection, which is asked for a sign of life.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._total_bytes = 0
        self._of_client: Counter[str] = Counter()

    async def keep(self, context: Context, size_bytes: int) -> None:
        """Account for an answer until its call is over, or end the call: too much waits for its client, or for all."""
        if size_bytes < SMALL_BYTES:
            return
        client = context.peer()
        waiting_bytes = self._of_client[client]
        if waiting_bytes and waiting_bytes + size_bytes > MAX_UNSENT_BYTES:
            words = f"{waiting_bytes} bytes of answers wait for this client; let it read those first"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        if self._total_bytes and self._total_bytes + size_bytes > self._limit_bytes:
            words = f"{self._total_bytes} bytes of answers wait for clients that do not read them; ask again later"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        self._of_client[client] += size_bytes
        self._total_bytes += size_bytes

        def done(_: object) -> None:
            self._total_bytes -= size_bytes
            self._of_client[client] -= size_bytes
            if not self._of_client[client]:
                del self._of_client[client]

        context.add_done_callback(done)  # type: ignore[arg-type]  # the stubs want a callback without argument
