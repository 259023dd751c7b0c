"""The coordinator of a world: the shipped state machine behind a model of its journal, and who speaks on which link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.access import Principal, names
from strata.cluster.access import administration as t
from strata.cluster.events import Effect
from strata.coordinator.journal import Entry
from strata.coordinator.journal.entries import replay
from strata.coordinator.speakers import Speakers
from strata.coordinator.write_queue import WriteQueue
from strata.errors import JournalUnavailableError, StrataError
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_S = 0.5
FSYNC_S = 0.02


class Speaker(Protocol):
    """A connection on which workers of one principal speak."""

    principal: Principal
    is_open: bool

    def deliver(self, effect: Effect) -> None:
        """Carry an effect to the worker."""
        ...


class SimulatedCoordinator:
    """What a dispatcher, its sessions and a disk do, with faults in each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._journal: list[Entry] = [Entry(t.CreateTenant(tenant=name), 0.0) for name in world.neighbours.tenants()]
        self.cluster: Cluster | None = self._replay(0, Cluster(world.limits))
        self._queue = WriteQueue()
        # The batch that is being written, if one is.
        self._writes: list[Entry] | None = None
        self._speakers: Speakers[Speaker] = Speakers()
        self.frozen_until_s = 0.0
        self.refuses_until_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether its process runs, frozen or not."""
        return self.cluster is not None

    def arrive(self, command: c.Command, take: Callable[[], None]) -> None:
        """A frame has come to the coordinator's machine; it is read when the process runs."""
        if self.cluster is None:
            return
        self._world.invariants.arrived(command)
        if self.frozen_until_s > self._world.now_s:
            self._world.at(self.frozen_until_s - self._world.now_s + 0.01, lambda: self.arrive(command, take))
            return
        take()

    def hear(
        self, principal: Principal, command: c.Command, answer: Callable[[object], None], link: Speaker | None = None
    ) -> None:
        """Take a command of a caller, as a session does: its own names come in, and its own names go out."""

        def tell(reply: object) -> None:
            presented = names.present(principal, reply) if isinstance(reply, StrataError) else reply
            self._world.neighbours.check_answer(principal, command, presented)
            answer(presented)

        try:
            # A frame is read anew each time that it comes, so what is changed here is nobody else's.
            own = names.qualify(principal, replace(command))
        except StrataError as error:
            tell(error)
            return
        self.process(own, tell, link)

    def process(self, command: c.Command, answer: Callable[[object], None], link: Speaker | None = None) -> None:
        """Carry out a command, if the coordinator runs; the answer leaves when all before it is durable."""
        if self.cluster is None:
            return
        now_s = self._world.now_s
        if command.durable and self.refuses_until_s:
            self._world.tally["refused writes"] += 1
            answer(JournalUnavailableError("journal", "the disk is full"))
            return
        if link is not None and isinstance(command, c.RegisterWorker):
            self._speakers.joins(command, link)
        effects: list[Effect] = []
        entry: Entry | None = None
        self._world.invariants.before(self.cluster, command)
        try:
            reply, effects = self.cluster.apply(command, now_s)
        except StrataError as error:
            reply = error
        else:
            if command.durable:
                entry = Entry(command, now_s)
        tenant = names.owner_of(command)
        is_durable = entry is None and self._queue.is_settled(tenant)
        self._world.neighbours.check_applied(command, reply, effects)
        # What others may read of the trainer's job lasts only if no write of the trainer's tenant is under way.
        all_durable = is_durable and self._queue.is_settled(self._world.principal.tenant)
        self._world.invariants.applied(command, reply, effects, all_durable=all_durable)

        def release(failure: StrataError | None) -> None:
            if link is not None and link.is_open:
                self._speakers.answered(command, failure or reply, link)
            if failure is not None:
                answer(failure)
                return
            self._world.invariants.released(command, reply, effects)
            answer(reply)
            for effect in effects:
                for worker_id in effect.to:
                    self._deliver(worker_id, effect)

        if is_durable:
            release(None)
            return
        self._queue.add(entry, release, tenant)
        if self._writes is None:
            self._write(self._queue)

    def link_lost(self, link: Speaker) -> None:
        """A connection closed: its worker has a short grace, unless it speaks on another one."""
        for lost in self._speakers.lost(link):
            self.process(lost, lambda _: None)

    def tick(self) -> None:
        """Do what time demands."""
        if self.cluster is not None and self.frozen_until_s <= self._world.now_s:
            demands = self.cluster.due(self._world.now_s)
            self._world.invariants.ticked(demands)
            for demand in demands:
                self._world.note(f"due: {type(demand).__name__}")
                self.process(demand, lambda _: None)
        self._world.at(TICK_S, self.tick)

    # What happens to it.

    def crash(self, down_s: float) -> None:
        """Lose everything that is not in the journal, and come back after a while."""
        self.cluster = None
        self._queue, self._speakers, self._writes = WriteQueue(), Speakers(), None
        self.frozen_until_s = self.refuses_until_s = 0.0
        for process in self._world.processes():
            if process.link is not None:
                # A host that is gone says nothing; a process that died closes its connections.
                if self._world.rng.random() < 0.7:
                    process.link.close()
                else:
                    process.link.is_black_hole = True
        self._world.at(down_s, self._restart)

    def refuse_writes(self, lasts_s: float) -> None:
        """Let the disk refuse: what was applied and not written is undone, and nobody learns of it."""
        assert self.cluster is not None
        self.refuses_until_s = self._world.now_s + lasts_s
        if self._writes:
            self._writes = None
            self.cluster = self._replay(0, Cluster(self._world.limits))
            self.cluster.restart(self._world.now_s)
            self._world.invariants.restarted()
            for output in self._queue.abort():
                output(JournalUnavailableError("journal", "the disk is full"))
        self._world.invariants.refuses_writes(lasts_s)
        self._world.at(lasts_s + 0.01, self._take_writes_again)

    def _take_writes_again(self) -> None:
        if self.cluster is not None and 0.0 < self.refuses_until_s <= self._world.now_s:
            # In one moment: whoever was refused meanwhile was not heard, and is not to be failed for that.
            self.refuses_until_s = 0.0
            self.cluster.restart(self._world.now_s)
            self._world.invariants.restarted()

    def _restart(self) -> None:
        whole = self._replay(0, Cluster(self._world.limits))
        # A snapshot in the middle and the rest of the journal lead to the same bytes, and may go on in its place.
        middle = self._world.rng.randint(0, len(self._journal))
        half = Cluster(self._world.limits)
        replay(half, self._journal[:middle])
        resumed = Cluster(self._world.limits)
        resumed.restore(half.snapshot())
        if self._replay(middle, resumed).snapshot() != whole.snapshot():
            raise ViolationError(
                "a snapshot and the journal after it do not lead to the same state as the whole journal"
            )
        self.cluster = resumed if self._world.rng.random() < 0.5 else whole
        self.cluster.restart(self._world.now_s)
        self._world.note("coordinator restarted")
        self._world.invariants.restarted()

    def _replay(self, start: int, cluster: Cluster) -> Cluster:
        for command, at_s, *_ in self._journal[start:]:
            try:
                cluster.apply(command, at_s)
            except StrataError as error:
                raise ViolationError(f"what was accepted once is refused on replay: {command}: {error}") from error
        return cluster

    def _write(self, queue: WriteQueue) -> None:
        """Write what waits, and let it leave when that is durable."""
        self._writes = writes = queue.begin()

        def end() -> None:
            if self._writes is not writes or queue is not self._queue:
                return  # the process died, or the disk refused
            if self.frozen_until_s > self._world.now_s:
                self._world.at(self.frozen_until_s - self._world.now_s + 0.001, end)
                return
            self._journal += writes
            self._writes = None
            for output in queue.end():
                output(None)
            if queue is self._queue and queue.has_more and self._writes is None:
                self._write(queue)

        self._world.at(FSYNC_S, end)

    def _deliver(self, worker_id: str, effect: Effect) -> None:
        link = self._speakers.find(effect.job_id, worker_id)
        if link is not None:
            presented = names.present(link.principal, effect)
            self._world.neighbours.check_delivery(link, worker_id, effect, presented)
            link.deliver(presented)
