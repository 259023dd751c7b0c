"""A world of the dispatcher: workers of two tenants that come, work, fall silent and come again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from random import Random
from typing import Any

import pytest

from strata.clock import ManualClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.access import DEFAULT_TENANT
from strata.cluster.access import administration as t
from strata.cluster.access.names import full_name, owner_of
from strata.cluster.cluster import MAX_PAUSE_S
from strata.cluster.events import Effect
from strata.cluster.replies import HeartbeatReply, KeyValue, Registered, Reply
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import Entry, compaction
from strata.coordinator.sharing.turns import Turns
from strata.errors import JournalUnavailableError, StrataError
from tests.simulation.dispatching.disk import Disk
from tests.simulation.dispatching.virtual_loop import VirtualLoop
from tests.simulation.violation import ViolationError

END_S = 120.0
# All is over long before, unless something is never answered.
PATIENCE_S = 60.0
TENANTS = (DEFAULT_TENANT, "other")
RETRY_S = 0.3


class DispatcherWorld:
    """One run from a seed; the same seed gives the same run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.tally: Counter[str] = Counter()
        self.trace: list[str] = []
        self._clock = ManualClock()
        self._limits = Limits(lease_s=8.0)
        # When each incarnation was heard last, and how long the coordinator had been awake then.
        self._heard_s: dict[tuple[str, str, str], tuple[float, float]] = {}
        self._paused_s = 0.0
        # What was asked and not answered yet.
        self._open: dict[int, c.Command] = {}
        self._numbers = 0
        self._violation: ViolationError | None = None

    @property
    def now_s(self) -> float:
        """Seconds since the world began."""
        return self._clock.monotonic_s()

    def run(self) -> None:
        """Run to the end, or raise ViolationError."""
        with pytest.MonkeyPatch.context() as patch:
            # Snapshots are as frequent as writes are here.
            patch.setattr(compaction, "SNAPSHOT_ENTRIES", 6)
            patch.setattr(compaction, "SHARE", 0)
            logging.disable()
            loop = VirtualLoop(self._clock, lambda: self.rng.choice([0.0, 0.001, 0.02, 0.3]))
            try:
                loop.run_until_complete(self._main(loop))
            finally:
                loop.end_tasks()
                loop.close()
                logging.disable(logging.NOTSET)

    async def _main(self, loop: VirtualLoop) -> None:
        loop.set_exception_handler(self._take_exception)
        first = [Entry(t.CreateTenant(tenant=TENANTS[1]), 0.0)]
        self.disk = Disk(self._limits, first, self._clock.wall_s, on_failed=self._check_failed)
        self._turns = Turns(loop.call_soon, self._clock.monotonic_s) if self.seed % 2 else None
        self.dispatcher = Dispatcher(
            self.disk, limits=self._limits, clock=self._clock, deliver=self._check_effect, turns=self._turns
        )
        running = loop.create_task(self.dispatcher.run())
        tasks = [running, loop.create_task(self._fail_the_disk()), loop.create_task(self._pause())]
        for tenant in TENANTS:
            if self._turns is not None:
                self._turns.enter(tenant)
            tasks += [loop.create_task(self._work(tenant, f"w{number}")) for number in range(3)]
        await asyncio.sleep(END_S + PATIENCE_S)
        if isinstance(await self._ask(t.CreateTenant(tenant="last")), StrataError):
            raise ViolationError("the disk has room again, and the coordinator refuses all the same")
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in [self._violation, *ended]:
            if isinstance(outcome, Exception):
                raise outcome
        if self._open:
            raise ViolationError(f"never answered: {list(self._open.values())}")
        if self.dispatcher.cluster.snapshot() != self.disk.model.snapshot():
            raise ViolationError("what the coordinator knows in the end is not what it has written")
        self.tally["snapshots"] = self.disk.snapshots

    # What happens.

    async def _fail_the_disk(self) -> None:
        while self.now_s < END_S:
            await asyncio.sleep(self.rng.uniform(1.0, 40.0))
            self.disk.refuses = True
            await asyncio.sleep(self.rng.choice([0.1, 2.0, 15.0]))
            self.disk.refuses = False

    async def _pause(self) -> None:
        """Stop the coordinator's process for a while, as SIGSTOP does."""
        while self.now_s < END_S:
            await asyncio.sleep(self.rng.uniform(5.0, 60.0))
            for_s = self.rng.choice([0.5, 5.0, 20.0])
            self._note(f"paused for {for_s} s")
            self.tally["pauses"] += 1
            if for_s > MAX_PAUSE_S:
                # Shorter ones the coordinator does not notice.
                self._paused_s += for_s
            self._clock.advance(for_s)

    async def _work(self, tenant: str, worker_id: str) -> None:
        job_id, life = full_name(tenant, "default"), 0
        while self.now_s < END_S:
            life += 1
            fields: dict[str, Any] = {"job_id": job_id, "worker_id": worker_id, "incarnation": f"p.{life}"}
            if not isinstance(await self._ask_again(c.RegisterWorker(**fields)), Registered):
                continue
            until_s = self.now_s + self.rng.uniform(1.0, 40.0)
            while self.now_s < min(until_s, END_S):
                await asyncio.sleep(self.rng.choice([0.0, 0.1, 1.0]))
                reply = await self._do_something(fields)
                if isinstance(reply, StrataError) and not isinstance(reply, JournalUnavailableError):
                    break
            # It dies without a word, and is soon started again, or late.
            await asyncio.sleep(self.rng.choice([0.1, 3.0, 12.0]))

    async def _do_something(self, fields: dict[str, Any]) -> Reply | StrataError:
        key = {"job_id": fields["job_id"], "key": "k"}
        match self.rng.randrange(5):
            case 0 | 1:
                return await self._ask(c.Heartbeat(**fields))
            case 2:
                return await self._ask(c.GetKey(**key))
            case 3:
                return await self._look(fields["job_id"])
            case _:
                self._numbers += 1
                writer, held = f"{fields['worker_id']}-{self._numbers}", await self._ask(c.GetKey(**key))
                if not isinstance(held, KeyValue):
                    return held
                value = b"%d" % self._numbers
                self.tally["keys set"] += 1
                return await self._ask_again(c.SetKey(**key, value=value, token=held.token, writer=writer))

    async def _ask_again(self, command: c.Command) -> Reply | StrataError:
        """Ask until the journal takes it, or the worker gives up."""
        until_s = self.now_s + self.rng.choice([0.0, 30.0])
        while True:
            reply = await self._ask(command)
            if not isinstance(reply, JournalUnavailableError) or self.now_s > until_s:
                return reply
            self.tally["refusals"] += 1
            await asyncio.sleep(RETRY_S)

    def _ask(self, command: c.Command) -> asyncio.Future[Reply | StrataError]:
        future: asyncio.Future[Reply | StrataError] = asyncio.get_running_loop().create_future()
        self._numbers += 1
        number = self._numbers

        def answer(reply: Reply | StrataError) -> None:
            if self._open.pop(number, None) is None:
                self._break(f"answered twice: {command}")
            self._check_answer(command, reply)
            if not future.done():
                future.set_result(reply)

        def take() -> None:
            self._open[number] = command
            if isinstance(command, c.RegisterWorker | c.Heartbeat):
                heard_s = self._clock.wall_s(), self.now_s - self._paused_s
                self._heard_s[command.job_id, command.worker_id, command.incarnation] = heard_s
            self.dispatcher.dispatch(command, answer)

        # What gRPC and HTTP bring has no turn.
        if self._turns is None or self.rng.random() < 0.3:
            take()
        else:
            self._turns.add(owner_of(command), take)
        return future

    def _look(self, job_id: str) -> asyncio.Future[Reply | StrataError]:
        """Ask what the dashboard asks: it rests on the journal too."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def tell(generation: int | StrataError) -> None:
            if isinstance(generation, int) and generation > self.disk.generations.get(job_id, 0):
                self._break(f"a question was answered with generation {generation}, which is not durable")
            future.set_result(generation)

        self.dispatcher.look(lambda cluster: cluster.job(job_id).membership.generation, tell)
        return future

    # What must hold.

    def _check_answer(self, command: c.Command, reply: Reply | StrataError) -> None:
        """Whoever is told something is told what a coordinator that starts now knows too."""
        self._note(f"{type(command).__name__}: {reply}")
        if isinstance(reply, StrataError):
            return
        self.tally["answers"] += 1
        if command.durable and not self.disk.holds(command):
            self._break(f"{command} was answered, and is not durable")
        match command, reply:
            case c.WorkerCommand(), HeartbeatReply() | Registered():
                place = (command.job_id, reply.generation, reply.world_size, command.worker_id, command.incarnation)
                if (*place, reply.rank) not in self.disk.places:
                    self._break(f"{command.worker_id} was told {reply}, which is not durable")
            case c.GetKey() | c.SetKey(), KeyValue(value=value, token=token) if token:
                if (command.job_id, value, token) not in self.disk.values:
                    self._break(f"{command} was answered with {reply}, which is not durable")

    def _check_effect(self, effect: Effect) -> None:
        self.tally["effects"] += 1
        generation = getattr(effect, "generation", 0)
        if generation > self.disk.generations.get(effect.job_id, 0):
            self._break(f"{effect} was sent, and is not durable")

    def _check_failed(self, command: c.FailWorkers, at_s: float) -> None:
        """Nobody is failed within a lease of a word from it, nor of a write that was refused: it could not register."""
        self.tally["failures"] += 1
        lease_s = self._limits.lease_s
        if at_s - self.disk.refused_s < lease_s:
            self._break(f"{command} came {at_s - self.disk.refused_s:.1f} s after the journal refused a write")
        for worker in command.workers:
            said_s, awake_s = self._heard_s.get((command.job_id, *worker), (0.0, float("-inf")))
            silent_s = self.now_s - self._paused_s - awake_s
            if said_s <= at_s and silent_s < lease_s:
                self._break(f"{worker} was failed {silent_s:.1f} s after it was heard")

    def _note(self, what: str) -> None:
        self.trace.append(f"{self.now_s:8.3f} {what}")

    def _break(self, problem: str) -> None:
        """Remember the first violation: whoever calls back catches what is raised there."""
        if self._violation is None:
            self._violation = ViolationError(problem)

    def _take_exception(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._break(f"{context['message']}: {error!r}")
