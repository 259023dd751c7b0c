"""The training script of a simulated worker: it joins, restores, trains in step with the others, saves and finishes."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.replies import Done, HeartbeatReply, RestorePoint, ShardLease
from strata.cluster.values import CommitRecord, Span
from strata.errors import LastCheckpointError, MembershipError, StrataError
from strata.sharding import DataOrder
from tests.simulation.process import Process, Program, Sleep, Wait, manifest_path
from tests.simulation.store import Part, Store

if TYPE_CHECKING:
    from tests.simulation.world import World

SAVE_EVERY = 3
BARRIER_TIMEOUT_S = 60.0
MAX_SAVES = 2
# So often a script does not save at a step at which the others do.
FORGETS = 0.05

Steps = Generator[Sleep | Wait, Any, Any]


class RejoinError(Exception):
    """The generation is over: the script goes on in the next one."""


class CrashError(Exception):
    """The script cannot go on: its process ends, and whoever watches it starts another one."""


class Training:
    """One script in one process; after a change of generation it restores and begins anew, as ``run.steps`` does."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.generation = 0
        self.rank = 0
        self.world_size = 1
        self.step = 0
        self._sequence = 0
        self._rest: list[Span] = []
        self._reports: list[Wait] = []
        self._saves: list[Wait] = []

    def run(self) -> Program:
        """The program."""
        yield self.process.ask(list_storage(self.world.store))
        yield self.process.ask(c.RegisterDataset(**self.world.dataset))
        while True:
            try:
                yield from self._enter()
                yield from self._train()
            except RejoinError:
                continue
            except CrashError as error:
                self.world.note(f"{self.process.name} crashes: {error}")
                self.world.tally["scripts ended"] += 1
                self.process.end()
                self.world.start_worker_later(self.process.worker_id, 1.0)
            return

    def _enter(self) -> Steps:
        """Wait for a generation that this script has not trained in, and for as many workers as the job needs."""
        self._reports, self._saves = [], []
        for _ in range(60):
            reply = yield self.process.heartbeat()
            if isinstance(reply, HeartbeatReply) and reply.waits_for == 0 and reply.generation > self.generation:
                self.generation, self.rank, self.world_size = reply.generation, reply.rank, reply.world_size
                return
            yield Sleep(0.5)
        # What it had leased in this generation is half read: only a new generation, for everyone, makes it whole.
        raise CrashError("no new generation begins")

    def _train(self) -> Steps:
        point = yield from self._ask(c.AskRestorePoint)
        assert isinstance(point, RestorePoint)
        base = yield from self._restore(point)
        self._sequence, self._rest = 0, []
        yield from self._lease_shards()
        seen: list[int] = []
        self.step = 0 if base is None else base.step
        while True:
            self.step += 1
            spans = yield from self._next_batch()
            if spans:
                samples = self.world.samples_of(spans)
                yield from self._skip(samples)
                self._report(spans)
                seen += samples
            left = yield from self._meet("step", str(len(self._rest)).encode())
            if self.step % SAVE_EVERY == 0 or left == 0:
                yield from self._save(Part(base, tuple(seen)), is_last=left == 0)
            if left == 0:
                yield from self._finish()
                return

    def _restore(self, point: RestorePoint) -> Steps:
        """Return what it goes on from; if that cannot be read, say so and go on in the generation that begins then."""
        if point.checkpoint is None:
            return None
        manifest = self.world.store.find(point.checkpoint.step)
        if manifest is not None and not manifest.is_rotten:
            return manifest
        reject = {"step": point.checkpoint.step, "reason": "it is rotten"}
        answer = yield self.process.ask(self._command(c.RejectCheckpoint, **reject))
        if isinstance(answer, LastCheckpointError) and manifest is not None:
            self.world.operator.bring_back(manifest)
            for _ in range(20):
                yield Sleep(1.0)
                if not manifest.is_rotten:
                    break
            raise CrashError("the only checkpoint could not be read")
        raise RejoinError

    def _report(self, spans: list[Span]) -> None:
        """Say what the model has seen, without waiting."""
        where = {"generation": self.generation, "dataset_id": "d", "epoch": 0, "step": self.step}
        self._reports.append(self.process.report(**where, spans=tuple(spans)))

    def _check(self) -> None:
        """Raise if a report was refused, the generation is over, or another process is this worker now."""
        over = self.process.protocol.check(self.generation)
        if isinstance(over, MembershipError):
            raise RejoinError
        if over is not None:
            raise CrashError(str(over))
        for wait in self._reports:
            answer = self.process.answer_of(wait)
            if isinstance(answer, MembershipError):
                raise RejoinError
            if isinstance(answer, StrataError):
                raise CrashError(str(answer))

    def _skip(self, samples: list[int]) -> Steps:
        """Say what cannot be read, before it is reported as progress: whatever a checkpoint covers was said."""
        for sample in sorted(self.world.unreadable.intersection(samples)):
            where = {"dataset_id": "d", "start": int(sample), "stop": int(sample) + 1}
            yield from self._ask(c.SkipSamples, **where, reason="it is torn")

    def _lease_shards(self) -> Steps:
        """Lease the next shards; the epoch may have no more."""
        self._sequence += 1
        lease = yield from self._ask(c.LeaseShards, dataset_id="d", epoch=0, sequence=self._sequence)
        assert isinstance(lease, ShardLease)
        self.world.invariants.dealt(self.generation, self.process.worker_id, lease.spans)
        self._rest += [Span(*row) for row in lease.spans.tolist()]

    def _next_batch(self) -> Steps:
        if self.world.dataset["data_order"] is DataOrder.GLOBAL:
            # The next batch of all workers is cut evenly among them.
            together, self._rest = _take(self._rest, self.world.batch * self.world_size)
            total = sum(stop - start for _, start, stop in together)
            first, last = (total * turn // self.world_size for turn in (self.rank, self.rank + 1))
            _, mine = _take(together, first)
            return _take(mine, last - first)[0]
        spans, self._rest = _take(self._rest, self.world.batch)
        if not self._rest:
            yield from self._lease_shards()
        return spans

    def _save(self, part: Part, *, is_last: bool) -> Steps:
        """Begin a save; with as many under way as may be, wait for the oldest. Some are left out, without a word."""
        if not is_last and self.world.rng.random() < FORGETS:
            self.world.tally["forgotten saves"] += 1
            return
        while len(self._saves) >= MAX_SAVES:
            yield self._saves.pop(0)
            self._check()
        self._saves.append(self.process.begin_save(self.step, self.generation, part, insists=is_last))

    def _finish(self) -> Steps:
        """Wait until the last checkpoint is committed, which nobody leaves before."""
        answer = yield self._saves[-1]
        if not isinstance(answer, Done):
            self._check()
            # Nobody saves this step again, so only a new generation, which trains it anew, comes to an end.
            raise CrashError(f"the last save failed: {answer}")
        yield self.process.leave()
        self.world.invariants.finished(self.process)
        self.process.finished = True
        self.process.end()

    def _ask(self, kind: type[c.GenerationCommand], **fields: Any) -> Steps:
        self._check()
        answer = yield self.process.ask(self._command(kind, **fields))
        if isinstance(answer, MembershipError):
            raise RejoinError
        if isinstance(answer, StrataError):
            raise CrashError(str(answer))
        return answer

    def _meet(self, name: str, payload: bytes) -> Steps:
        self._check()
        fields = {"generation": self.generation, "expected": self.world_size, "payload": payload}
        released = yield self.process.meet(name, timeout_s=BARRIER_TIMEOUT_S, **fields)
        if isinstance(released, MembershipError):
            raise RejoinError
        if not isinstance(released, e.BarrierReleased):
            raise CrashError(str(released))
        return sum(map(int, released.payloads))

    def _command(self, kind: type[c.GenerationCommand], **fields: Any) -> c.GenerationCommand:
        return self.process.protocol.worker_command(kind, generation=self.generation, **fields)


def list_storage(store: Store) -> c.AdoptCheckpoints:
    """Return what storage holds now, for a coordinator that may not know it."""
    records = (
        CommitRecord(step, manifest.epoch, manifest_path(step), manifest.cursors)
        for step, manifest in sorted(store.manifests.items())
    )
    return c.AdoptCheckpoints(checkpoints=tuple(records))


def _take(rest: list[Span], count: int) -> tuple[list[Span], list[Span]]:
    """Take the next samples of a lease; return them and what is left."""
    taken: list[Span] = []
    while rest and count:
        shard, start, stop = rest[0]
        end = min(stop, start + count)
        taken.append(Span(shard, start, end))
        count -= end - start
        rest = [Span(shard, end, stop), *rest[1:]] if end < stop else rest[1:]
    return taken, rest
