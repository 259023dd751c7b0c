"""The dispatcher: commands from any transport, one after the other, to the cluster and the journal.

It keeps the cluster's contract: no reply and no effect leaves before everything that was applied until then is durable.
Commands that wait for the disk are written together, so that one fsync serves all that came while the last one ran.
When nothing waits for the disk, an answer leaves at once: a heartbeat costs no task and no thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from strata.clock import Clock
from strata.cluster import Cluster, Limits
from strata.cluster.commands import JobCommand
from strata.cluster.events import Effect
from strata.cluster.replies import Reply
from strata.coordinator.journal import Entry, Journal
from strata.errors import BadCommandError, JournalUnavailableError, StrataError

log = logging.getLogger(__name__)

Answer = Callable[[Reply | StrataError], None]
TICK_S = 0.1
# A snapshot is taken after so many entries, so that a restart replays few.
SNAPSHOT_ENTRIES = 10_000
# How often a journal that refused is asked whether it takes writes again.
PROBE_S = 1.0


class Dispatcher:
    """The cluster behind its journal. All methods belong to one event loop; ``deliver`` is given every effect."""

    def __init__(self, journal: Journal, *, limits: Limits, clock: Clock, deliver: Callable[[Effect], None]) -> None:
        self._journal = journal
        self._limits = limits
        self._clock = clock
        self._deliver = deliver
        self._entries: list[Entry] = []
        self._outputs: list[Callable[[StrataError | None], None]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._since_snapshot = 0
        self._refusal: JournalUnavailableError | None = None
        self.cluster = self._replay()

    async def run(self) -> None:
        """Do what time demands, until cancelled; what waits for the disk is written before this ends."""
        try:
            while True:
                await asyncio.sleep(TICK_S)
                for demand in self.cluster.due(self._clock.monotonic_s()):
                    self.dispatch(demand, _log_refusal)
        finally:
            if self._probing is not None:
                self._probing.cancel()
            while self._flushing is not None:
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(self._flushing)

    def dispatch(self, command: JobCommand, answer: Answer) -> None:
        """Apply a command; ``answer`` is called with its reply or error when that may be told."""
        if command.durable and self._refusal is not None:
            answer(self._refusal)
            return
        now_s = self._clock.monotonic_s()
        effects: list[Effect] = []
        reply: Reply | StrataError
        try:
            reply, effects = self.cluster.apply(command, now_s)
        except StrataError as error:
            reply = error
        except ValueError as error:
            reply = BadCommandError(str(error))
        else:
            if command.durable:
                self._entries.append((command, now_s))
        if not self._entries and self._flushing is None:
            answer(reply)
            for effect in effects:
                self._deliver(effect)
            return

        def release(failure: StrataError | None) -> None:
            answer(failure or reply)
            if failure is None:
                for effect in effects:
                    self._deliver(effect)

        self._outputs.append(release)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush(), name="journal")

    def when_durable(self, tell: Callable[[], None]) -> None:
        """Tell the answer to a question when all that it may rest on is durable: now, if nothing waits for the disk."""
        if not self._entries and self._flushing is None:
            tell()
        else:
            self._outputs.append(lambda _: tell())

    async def settled(self) -> None:
        """Return when all that was applied until now is durable."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_durable(lambda: None if future.done() else future.set_result(None))
        await future

    def now_s(self) -> float:
        """Return the time that the cluster goes by."""
        return self._clock.monotonic_s()

    def wall_of(self, at_s: float) -> float:
        """Return a time of the cluster as seconds since 1970, for people."""
        return self._clock.wall_s() - self._clock.monotonic_s() + at_s

    async def ask(self, command: JobCommand) -> Reply:
        """Apply a command and return its reply, or raise its error."""
        future: asyncio.Future[Reply | StrataError] = asyncio.get_running_loop().create_future()
        self.dispatch(command, lambda answer: None if future.done() else future.set_result(answer))
        answer = await future
        if isinstance(answer, StrataError):
            raise answer
        return answer

    async def _flush(self) -> None:
        try:
            while self._entries or self._outputs:
                entries, self._entries = self._entries, []
                outputs, self._outputs = self._outputs, []
                failure = await self._write(entries) if entries else None
                for output in outputs:
                    output(failure)
        finally:
            self._flushing = None

    async def _write(self, entries: list[Entry]) -> JournalUnavailableError | None:
        try:
            await asyncio.to_thread(self._journal.append, entries)
        except JournalUnavailableError as error:
            # What was applied is not durable, so nobody may learn of it: back to what the journal holds.
            log.exception("the journal refuses; durable commands are refused until it takes them again")
            self._refusal = error
            self.cluster = await asyncio.to_thread(self._replay)
            # Also what came meanwhile was applied to what is void now.
            self._entries.clear()
            outputs, self._outputs = self._outputs, []
            for output in outputs:
                output(error)
            self._probing = asyncio.get_running_loop().create_task(self._probe(), name="journal probe")
            return error
        self._since_snapshot += len(entries)
        if self._since_snapshot >= SNAPSHOT_ENTRIES and not self._entries:
            self._since_snapshot = 0
            with suppress(JournalUnavailableError):  # the entries are all there; the next one may succeed
                await asyncio.to_thread(self._journal.snapshot, self.cluster.snapshot())
        return None

    async def _probe(self) -> None:
        """Ask the journal again and again; when it takes an empty write, durable commands are welcome again."""
        while self._refusal is not None:
            await asyncio.sleep(PROBE_S)
            try:
                await asyncio.to_thread(self._journal.snapshot, self.cluster.snapshot())
            except JournalUnavailableError as error:
                self._refusal = error
            else:
                log.warning("the journal takes writes again")
                # Who came back meanwhile could not register, so silence until now proves nothing.
                self.cluster.restart(self._clock.monotonic_s())
                self._refusal = None

    def _replay(self) -> Cluster:
        cluster = Cluster(self._limits)
        state, entries = self._journal.load()
        if state is not None:
            cluster.restore(state)
        for command, at_s in entries:
            cluster.apply(command, at_s)
        cluster.restart(self._clock.monotonic_s())
        self._since_snapshot = len(entries)
        return cluster


def _log_refusal(answer: Reply | StrataError) -> None:
    if isinstance(answer, StrataError):
        log.warning("what is due cannot be done: %s", answer)
