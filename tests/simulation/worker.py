"""A simulated worker: joins, restores, trains in step with the others, saves, and survives what it is told."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.commits import CommitProgress
from strata.cluster.replies import Hand, Heard, Registered, RestorePoint
from strata.errors import (
    CheckpointAbortedError,
    CommitPendingError,
    LastCheckpointError,
    StaleIncarnationError,
    StepTakenError,
    StrataError,
    UnknownJobError,
    UnknownWorkerError,
)
from strata.sharding import DataOrder
from tests.simulation.manifests import list_storage, write_manifest
from tests.simulation.store import Manifest, Part, StoreError

if TYPE_CHECKING:
    from tests.simulation.world import World

Span = tuple[int, int, int]

RETRY_S = 1.0
HEARTBEAT_S = 2.0
SAVE_EVERY = 3
# A save that failed, or that someone else made, does not stop training.
_HARMLESS = (CheckpointAbortedError, StepTakenError)


class RejoinError(Exception):
    """What the worker was doing is void; it goes on in the generation that is now."""


class Worker:
    """One process, as a coroutine that yields what it waits for: ("ask", command) or ("meet", command)."""

    def __init__(self, world: World, worker_id: str, incarnation: str) -> None:
        self.world = world
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.alive = True
        self.paused_until_s = 0.0
        self.held_until_s = 0.0
        self.unreachable_until_s = 0.0
        self.finished = False
        self.generation = 0
        self.rank = 0
        self.world_size = 1
        self.step = 0
        self._ticket = 0
        self._rest: list[Span] = []
        self._part = ""
        self._sequence = 0
        self._trained_in = 0
        self._waiting: tuple[int, str, c.JobCommand] | None = None
        self._wait_number = 0
        self._run = self._live()
        self._resume(lambda: next(self._run))

    # What the world does to it.

    def receive_reply(self, number: int, answer: object) -> None:
        """Take the answer to what it waits for; at a barrier, only a refusal ends the wait."""
        current = self.alive and self._waiting and self._waiting[0] == number
        if current and self._waiting and (self._waiting[1] == "ask" or isinstance(answer, StrataError)):
            self._go_on(answer)

    def receive_effect(self, effect: e.Effect) -> None:
        """Take what the coordinator says by itself."""
        if not self.alive:
            return
        match effect:
            case e.ManifestWanted():
                write_manifest(self.world, self, effect)
            case e.BarrierReleased() | e.BarrierFailed():
                if self._waiting and self._waiting[1] == "meet" and self._waiting[2].name == effect.name:  # type: ignore[attr-defined]
                    self._go_on(effect)
            case e.GenerationChanged(generation=generation) if generation > self.generation and self._waiting:
                if self._waiting[1] == "meet":
                    self._go_on(effect)

    def beat(self) -> None:
        """Say that it lives; outside of the coroutine, as a thread would."""
        if self.alive and not self.finished and self.generation:
            state = c.WorkerState.TRAINING
            beat = c.Heartbeat(worker_id=self.worker_id, incarnation=self.incarnation, state=state, step=self.step)
            self.world.say(self, beat, self._hear)

    # What it does by itself.

    def _hear(self, answer: object) -> None:
        """Learn from the answer to a heartbeat that the generation is another one, or that it was declared dead."""
        behind = isinstance(answer, Heard) and answer.generation > self.generation
        dead = isinstance(answer, (StaleIncarnationError, UnknownWorkerError, UnknownJobError))
        if self.alive and (behind or dead) and self._waiting and self._waiting[1] == "meet":
            self._go_on(answer)

    def _live(self) -> Generator[tuple[str, c.JobCommand], Any, None]:
        if not self.world.is_plain:
            # What storage holds is made known first: the coordinator may be a new one.
            yield "ask", list_storage(self.world.store)
        while not self.finished:
            try:
                yield from self._join()
                yield from self._train()
            except RejoinError:
                continue

    def _join(self) -> Generator[tuple[str, c.JobCommand], Any, None]:
        dataset = c.RegisterDataset(**self.world.dataset)
        yield "ask", dataset
        while True:
            registered = yield "ask", c.RegisterWorker(worker_id=self.worker_id, incarnation=self.incarnation)
            if isinstance(registered, StaleIncarnationError):
                self._reincarnate()
                continue
            assert isinstance(registered, Registered), registered
            self.generation, self.rank, self.world_size = (
                registered.generation,
                registered.rank,
                registered.world_size,
            )
            if registered.waits_for == 0:
                return
            yield "sleep", dataset

    def _train(self) -> Generator[tuple[str, c.JobCommand], Any, None]:
        if self.generation == self._trained_in:
            # Its hand of this generation is half read: only a new generation, for everyone, makes it whole again.
            self._reincarnate()
            raise RejoinError
        self._trained_in = self.generation
        point = yield from self._ask_restore_point()
        base = yield from self._restore(point)
        self._ticket, self._rest = 0, []
        yield from self._take_hand()
        seen: list[int] = []
        self.step = 0 if base is None else base.step
        while True:
            self.step += 1
            spans = yield from self._next_batch()
            if spans:
                samples = self.world.samples_of(spans)
                yield from self._skip(samples)
                self._sequence += 1
                yield from self._ask(
                    c.ReportProgress,
                    sequence=self._sequence,
                    dataset_id="d",
                    epoch=0,
                    step=self.step,
                    spans=tuple(spans),
                )
                seen += samples
            left = yield from self._meet(f"step-{self.step}", payload=str(len(self._rest)).encode())
            if self.step % SAVE_EVERY == 0 or left == 0:
                yield from self._save(Part(base, tuple(seen)))
            if left == 0:
                yield from self._finish(len(seen))
                return

    def _restore(self, point: RestorePoint) -> Generator[tuple[str, c.JobCommand], Any, Manifest | None]:
        """Return what it goes on from; if that cannot be read, say so and go on in the generation that begins then."""
        if point.checkpoint is None:
            return None
        manifest = self.world.store.find(point.checkpoint.step)
        if manifest is not None and not manifest.is_rotten:
            return manifest
        reject = self._fenced(c.RejectCheckpoint, step=point.checkpoint.step, reason="it is rotten")
        answer = yield "ask", reject
        if isinstance(answer, StaleIncarnationError):
            self._reincarnate()
        if isinstance(answer, LastCheckpointError) and manifest is not None:
            self.world.person.bring_back(manifest)
            while manifest.is_rotten:
                yield "sleep", reject
        raise RejoinError

    def _skip(self, samples: list[int]) -> Generator[tuple[str, c.JobCommand], Any, None]:
        """Say what cannot be read, before it is reported as progress: whatever a checkpoint covers was said."""
        for sample in sorted(self.world.unreadable.intersection(samples)):
            yield from self._ask(
                c.SkipSamples, dataset_id="d", start=int(sample), stop=int(sample) + 1, reason="it is torn"
            )

    def _take_hand(self) -> Generator[tuple[str, c.JobCommand], Any, bool]:
        """Take the next hand; return whether there was one."""
        self._ticket += 1
        hand = yield from self._ask(c.TakeHand, dataset_id="d", epoch=0, ticket=self._ticket)
        assert isinstance(hand, Hand)
        self.world.invariants.dealt(self.generation, self.worker_id, hand.spans)
        self._rest += hand.spans.tolist()
        return len(hand.spans) > 0

    def _next_batch(self) -> Generator[tuple[str, c.JobCommand], Any, list[Span]]:
        if self.world.dataset["data_order"] is DataOrder.GLOBAL:
            # The next batch of all workers is cut evenly among them.
            together, self._rest = _take(self._rest, self.world.batch * self.world_size)
            total = sum(stop - start for _, start, stop in together)
            first, last = (total * turn // self.world_size for turn in (self.rank, self.rank + 1))
            _, mine = _take(together, first)
            return _take(mine, last - first)[0]
        spans, self._rest = _take(self._rest, self.world.batch)
        if not self._rest:
            yield from self._take_hand()
        return spans

    def _ask_restore_point(self) -> Generator[tuple[str, c.JobCommand], Any, RestorePoint]:
        while True:
            answer = yield "ask", self._fenced(c.AskRestorePoint)
            if isinstance(answer, RestorePoint):
                return answer
            if isinstance(answer, StaleIncarnationError):
                self._reincarnate()
            if not isinstance(answer, CommitPendingError):
                # It has not begun yet in this generation, and may do so still.
                self._trained_in = 0
                raise RejoinError
            yield "sleep", self._fenced(c.AskRestorePoint)

    def _save(self, part: Part) -> Generator[tuple[str, c.JobCommand], Any, None]:
        path = f"step_{self.step}/{self.generation}-{self.worker_id}"
        while True:
            try:
                self.world.store.write_part(path, part)
                break
            except StoreError:
                yield "sleep", c.RegisterDataset(**self.world.dataset)
        self._part = path
        yield from self._acknowledge(len(part.samples))

    def _acknowledge(self, size_bytes: int) -> Generator[tuple[str, c.JobCommand], Any, bool]:
        """Say that its part is durable; return whether there is a checkpoint that it can be part of."""
        answer = yield from self._ask(
            c.AckPart, step=self.step, epoch=0, part=self._part, size_bytes=size_bytes, digest="", tolerate=True
        )
        return not isinstance(answer, StrataError)

    def _finish(self, size_bytes: int) -> Generator[tuple[str, c.JobCommand], Any, None]:
        """Wait until the last checkpoint is committed, which nobody leaves before."""
        while True:
            asked = c.AskCommit(worker_id=self.worker_id, incarnation=self.incarnation, step=self.step, part=self._part)
            progress = yield "ask", asked
            if isinstance(progress, CommitProgress) and progress.phase == "committed":
                break
            is_void = isinstance(progress, CommitProgress) and progress.phase == "aborted"
            if isinstance(progress, CommitProgress) and progress.phase == "unknown":
                is_void = not (yield from self._acknowledge(size_bytes))
            yield "sleep", asked
            heard = yield "ask", c.Heartbeat(worker_id=self.worker_id, incarnation=self.incarnation)
            if not isinstance(heard, Heard) or heard.generation != self.generation:
                if isinstance(heard, StaleIncarnationError):
                    self._reincarnate()
                raise RejoinError
            if is_void:
                # Nobody saves this step again, so only a new generation, which trains it anew, comes to an end.
                self._reincarnate()
                raise RejoinError
        self.finished = True
        yield "ask", c.Goodbye(worker_id=self.worker_id, incarnation=self.incarnation)

    def _ask(
        self, kind: type[c.FencedCommand], *, tolerate: bool = False, **fields: Any
    ) -> Generator[tuple[str, c.JobCommand], Any, Any]:
        answer = yield "ask", self._fenced(kind, **fields)
        if isinstance(answer, StaleIncarnationError):
            self._reincarnate()
            raise RejoinError
        if isinstance(answer, StrataError) and not (tolerate and isinstance(answer, _HARMLESS)):
            raise RejoinError
        return answer

    def _meet(self, name: str, payload: bytes) -> Generator[tuple[str, c.JobCommand], Any, int]:
        released = yield "meet", self._fenced(c.ArriveAtBarrier, name=name, payload=payload, timeout_s=60.0)
        if isinstance(released, StaleIncarnationError):
            self._reincarnate()
        if not isinstance(released, e.BarrierReleased) or released.generation != self.generation:
            raise RejoinError
        return sum(map(int, released.payloads))

    def _fenced(self, kind: type[c.FencedCommand], **fields: Any) -> c.FencedCommand:
        return kind(worker_id=self.worker_id, incarnation=self.incarnation, generation=self.generation, **fields)

    def _reincarnate(self) -> None:
        self.incarnation = f"{self.incarnation}'"
        self._sequence = 0

    def _go_on(self, answer: object) -> None:
        self._waiting = None
        self._resume(lambda: self._run.send(answer))

    def _resume(self, go: Callable[[], tuple[str, c.JobCommand]]) -> None:
        try:
            kind, command = go()
        except StopIteration:
            self.alive = False
            return
        self._wait_number += 1
        self._waiting = self._wait_number, kind, command
        self._send_again(self._wait_number)

    def _send_again(self, number: int) -> None:
        """Send what it waits for an answer to, until there is one."""
        if not self.alive or self._waiting is None or self._waiting[0] != number:
            return
        _, kind, command = self._waiting
        if kind == "sleep":
            self.world.later(RETRY_S, self, lambda: self._wake(number))
            return
        self.world.say(self, command, lambda answer: self.receive_reply(number, answer))
        self.world.later(RETRY_S, self, lambda: self._send_again(number))

    def _wake(self, number: int) -> None:
        if self.alive and self._waiting and self._waiting[0] == number:
            self._go_on(None)


def _take(rest: list[Span], count: int) -> tuple[list[Span], list[Span]]:
    """Take the next samples of a hand; return them and what is left."""
    taken: list[Span] = []
    while rest and count:
        shard, start, stop = rest[0]
        end = min(stop, start + count)
        taken.append((shard, start, end))
        count -= end - start
        rest = [(shard, end, stop), *rest[1:]] if end < stop else rest[1:]
    return taken, rest
