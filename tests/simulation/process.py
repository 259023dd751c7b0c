"""A worker's process in a world: the shipped protocol, driven by simulated links and time, and programs that use it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from strata.client.worker import actions as a
from strata.client.worker.protocol import WorkerProtocol
from strata.cluster import commands as c
from strata.cluster.events import (
    BarrierReleased,
    CheckpointAborted,
    CheckpointCommitted,
    Effect,
    ManifestWanted,
    RepairWanted,
)
from strata.cluster.values import CommitRecord, PartReport
from strata.errors import (
    BarrierTimeoutError,
    CheckpointTimeoutError,
    CoordinatorLostError,
    DuplicateWorkerError,
    Recovery,
    StrataError,
)
from tests.simulation.network import Link
from tests.simulation.store import Manifest, Part, StoreError, TakenError
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from tests.simulation.world import World

CONNECT_TIMEOUT_S = 2.0
COMMIT_TIMEOUT_S = 200.0
# One part in so many has a corrupt replica.
CORRUPT = 7
# When a worker can write manifests for the first time, and for how long now and then it cannot.
SERVES_AFTER_S = (0.0, 0.0, 3.0)
SERVES_NOT_FOR_S = (0.0, 0.0, 6.0)
# So often a worker confirms a manifest that it has not written, in another generation than it was asked in.
CONFUSED = 0.25
# What becomes of repairs: after how long each is said, and its number; 0 says that there is nothing to repair with.
REPAIRS: tuple[tuple[tuple[float, int], ...], ...] = (
    (),
    ((0.2, 1),),
    ((0.4, 1),),
    ((0.4, 0),),
    ((0.6, 0),),
    ((0.2, 1), (0.3, 2)),
    ((7.0, 1),),
    ((0.3, 1), (8.0, 2)),
)


@dataclass(frozen=True)
class Sleep:
    """A program waits for a while."""

    seconds: float


@dataclass(frozen=True)
class Wait:
    """A program waits for the answer under a number."""

    number: int


Program = Generator[Sleep | Wait, Any, None]


class Process:
    """One process: it can be killed, stopped, held by a library, or cut off; what it knows is in its protocol."""

    def __init__(self, world: World, worker_id: str, name: str, incarnation: str) -> None:
        self.world = world
        self.worker_id = worker_id
        self.name = name
        self.alive = True
        self.finished = False
        self.paused_until_s = 0.0
        self.held_until_s = 0.0
        self.unreachable_until_s = 0.0
        self.link: Link | None = None
        worker = c.RegisterWorker(worker_id=worker_id, incarnation=incarnation)
        self.protocol = WorkerProtocol(worker, addresses=world.addresses, chance=world.rng.random)
        self._answers: dict[int, object] = {}
        self._waiting: dict[int, Callable[[object], None]] = {}
        # The number and the generation of the last meeting.
        self._meets = (0, 0)
        # The saves that this process was asked to repair, and those whose manifest it must not write any more.
        self._repairs: set[tuple[int, int]] = set()
        self._wanted: dict[int, int] = {}
        self._ended: set[tuple[int, int]] = set()
        self._goodbye: int | None = None
        self._tick_s = float("inf")

    @property
    def incarnation(self) -> str:
        """The incarnation that the process is in now."""
        return self.protocol.worker.incarnation

    def start(self, *programs: Program) -> None:
        """Connect, and run programs beside each other."""
        self.do(self.protocol.start(self.world.now_s))
        serves_s = self.world.rng.choice(SERVES_AFTER_S) * self.world.rng.random()
        self.world.later(serves_s, self, partial(self._serve_manifests, is_serving=True))
        for program in programs:
            self._step(program, None)

    # What happens to it.

    def receive_effect(self, effect: Effect) -> None:
        """Take what the coordinator says by itself."""
        match effect:
            case ManifestWanted():
                self._wanted[effect.step] = effect.generation
                self._ended.discard((effect.step, effect.generation))
            case CheckpointAborted() | CheckpointCommitted() if effect.step in self._wanted:
                self._ended.add((effect.step, self._wanted[effect.step]))
        self.do(self.protocol.receive_effect(effect, self.world.now_s))

    def link_lost(self, link: Link) -> None:
        """A connection closed."""
        if self.link is link:
            self.link = None
            self.do(self.protocol.lost(self.world.now_s))

    # What its programs do.

    def trains(self) -> None:
        """Do a step, or a part of one: never once it was told that another process is this worker."""
        if self.protocol.refusal is not None:
            raise ViolationError(f"{self.name} goes on, and was told: {self.protocol.refusal}")

    def ask(self, command: c.JobCommand) -> Wait:
        """Ask the coordinator."""
        number, actions = self.protocol.ask(command, self.world.now_s)
        return self._asked(number, actions)

    def heartbeat(self) -> Wait:
        """Ask for the reply to a heartbeat."""
        return self._asked(*self.protocol.heartbeat(self.world.now_s))

    def leave(self) -> Wait:
        """Say goodbye."""
        number, actions = self.protocol.leave("finished", self.world.now_s, timeout_s=30.0)
        self._goodbye = number
        return self._asked(number, actions)

    def meet(self, name: str, **fields: Any) -> Wait:
        """Arrive at a barrier."""
        self.trains()
        number, actions = self.protocol.meet(name, self.world.now_s, **fields)
        self._meets = number, fields["generation"]
        return self._asked(number, actions)

    def report(self, **fields: Any) -> Wait:
        """Report progress."""
        self.trains()
        return self._asked(*self.protocol.report(self.world.now_s, **fields))

    def begin_save(self, step: int, generation: int, part: Part, *, insists: bool) -> Wait:
        """Save a part in the background: written after a while, or dropped if the store does not take it."""
        self.trains()
        number = self.protocol.begin_part(step, generation)
        path = f"step_{step}/{generation}-{self.name}-{number}"

        def write() -> None:
            try:
                self.world.store.write_part(path, part)
            except StoreError as error:
                if insists:
                    self.world.later(1.0, self, write)
                else:
                    self.world.tally["dropped parts"] += 1
                    self.do(self.protocol.drop_part(number, str(error), self.world.now_s))
                    self._give(number, error)
                return
            # Now and then a replica is corrupt.
            replicas = f"all:{int(zlib.crc32(path.encode()) % CORRUPT == 0)}"
            report = PartReport(path, len(part.samples), "", replicas)
            self.do(
                self.protocol.commit_part(number, self.world.now_s, epoch=0, report=report, timeout_s=COMMIT_TIMEOUT_S)
            )

        self.world.later(self.world.rng.choice((0.01, 0.3, 3.0)) * self.world.rng.random(), self, write)
        return Wait(number)

    def end(self) -> None:
        """End the process on purpose: its work is done, or it cannot go on."""
        self.alive = False
        self.protocol.close()
        if self.link is not None:
            self.link.close()

    # What its protocol says.

    def do(self, actions: list[a.Action]) -> None:
        """Carry out actions, as the driver does."""
        for action in actions:
            match action:
                case a.Send(number=number, command=command):
                    self._send(number, command)
                case a.Answer(number=number, reply=reply):
                    self._check_answer(number, reply)
                    self._give(number, reply)
                case a.Connect():
                    self.world.later(action.delay_s, self, partial(self._connect, action))
                case a.Disconnect():
                    self._leave_link()
                case a.WriteRepair(wanted=wanted):
                    self._repair(wanted)
                case a.WriteManifest(wanted=wanted):
                    if (wanted.step, wanted.generation) in self._ended:
                        raise ViolationError(f"{self.name} writes the manifest of step {wanted.step}, which has ended")
                    if self.world.rng.random() < CONFUSED:
                        self._confirm_another(wanted)
                    self.world.later(self.world.rng.random(), self, partial(self._write_manifest, wanted))
                case a.Refuse(error=error):
                    self.world.invariants.refused(self, error)
                    self.world.note(f"{self.name} is refused: {error}")
                    # One that was replaced is to stop by itself, at its next step.
                    if not isinstance(error, DuplicateWorkerError):
                        self.end()
                        self.world.start_worker_later(self.worker_id, 1.0)
        self._arm()

    def _send(self, number: int, command: c.JobCommand) -> None:
        link = self.link
        if link is None:
            return

        def reply(answer: object) -> None:
            link.send_down(lambda: self._receive(number, answer))

        link.send_up(command, lambda: link.coordinator.hear(link.principal, command, reply, link))

    def _receive(self, number: int, answer: object) -> None:
        self.do(self.protocol.receive(number, answer, self.world.now_s))

    def _connect(self, to: a.Connect) -> None:
        """Open a link if a coordinator can be reached there; else notice after a while that there is none."""
        self._leave_link()
        coordinator = self.world.find_coordinator(to.address)
        if coordinator is None or not coordinator.is_up or self.unreachable_until_s > self.world.now_s:
            delay_s = self.world.rng.choice((0.01, CONNECT_TIMEOUT_S))
            self.world.later(delay_s, self, lambda: self.do(self.protocol.lost(self.world.now_s)))
            return
        self.link = Link(self.world, self, coordinator)
        self.do(self.protocol.connected(self.world.now_s))

    def _leave_link(self) -> None:
        if self.link is not None:
            self.link.leave()
            self.link = None

    def _arm(self) -> None:
        at_s = self.protocol.next_tick_s()
        if at_s is not None and at_s < self._tick_s:
            self._tick_s = at_s
            self.world.later(max(0.0, at_s - self.world.now_s), self, self._tick)

    def _tick(self) -> None:
        self._tick_s = float("inf")
        self.do(self.protocol.tick(self.world.now_s))

    def _write_manifest(self, wanted: ManifestWanted) -> None:
        """Write a manifest; what goes wrong for a while is left to the next one that is asked."""
        paths = tuple(report.path for report in wanted.reports)
        manifest = Manifest(wanted.step, wanted.epoch, wanted.generation, paths, wanted.cursors)
        try:
            written = self.world.store.write_manifest(manifest)
        except StoreError:
            self.do(self.protocol.manifest_failed(wanted.step, None, self.world.now_s))
        except TakenError:
            self.world.tally["given up"] += 1
            reason = "the step has another manifest"
            self.do(self.protocol.manifest_failed(wanted.step, reason, self.world.now_s))
        else:
            self.world.invariants.manifest_written(written)
            record = CommitRecord(written.step, written.epoch, manifest_path(written.step), written.cursors)
            self.do(self.protocol.manifest_written(wanted.step, record, self.world.now_s))

    def _serve_manifests(self, *, is_serving: bool) -> None:
        """Be able to write manifests from now on, or not, for a while."""
        self.do(self.protocol.serve_manifests(self.world.now_s, is_serving=is_serving))
        pause_s = 0.0 if is_serving else self.world.rng.choice(SERVES_NOT_FOR_S) * self.world.rng.random()
        work_s = 20.0 * self.world.rng.random() if is_serving else pause_s
        self.world.later(work_s, self, partial(self._serve_manifests, is_serving=not is_serving))

    def _confirm_another(self, wanted: ManifestWanted) -> None:
        """Confirm what this worker was not asked for, as a program with a mistake would: it must have no effect."""
        fields = {**CommitRecord(wanted.step, wanted.epoch, manifest_path(wanted.step), wanted.cursors)._asdict()}
        generation = wanted.generation + self.world.rng.choice((-1, 1))
        self.world.tally["confused"] += 1
        self.ask(self.protocol.worker_command(c.ConfirmCommit, **fields, generation=generation))

    def _repair(self, wanted: RepairWanted) -> None:
        """Repair a step, or say that there is nothing to repair with; some answer late, twice, or never."""
        if (wanted.step, wanted.generation) in self._repairs:
            raise ViolationError(f"{self.name} repairs step {wanted.step} again, and has it in memory no more")
        self._repairs.add((wanted.step, wanted.generation))
        fate = zlib.crc32(f"{self.name} {wanted.step} {wanted.generation}".encode()) % 8
        for delay_s, number in REPAIRS[fate]:
            path = f"step_{wanted.step}/repair-{wanted.generation}-{self.name}-{number}"
            if number:
                self.world.tally["repairs"] += 1
                self.world.store.repairs[path] = wanted.step, wanted.generation
            repair = PartReport(path, 1, "") if number else None
            say = partial(self.protocol.repair_written, wanted.step, wanted.generation, repair)
            self.world.later(delay_s, self, lambda say=say: self.do(say(self.world.now_s)))

    # Programs.

    def _asked(self, number: int, actions: list[a.Action]) -> Wait:
        self.do(actions)
        return Wait(number)

    def answer_of(self, wait: Wait) -> object | None:
        """Return the answer that a program did not wait for, if it has come."""
        return self._answers.get(wait.number)

    def _give(self, number: int, answer: object) -> None:
        if number in self._waiting:
            self._waiting.pop(number)(answer)
        else:
            self._answers[number] = answer

    def _step(self, program: Program, value: object) -> None:
        while self.alive and not self.finished:
            try:
                waits = program.send(value)
            except StopIteration:
                return
            if isinstance(waits, Sleep):
                self.world.later(waits.seconds, self, lambda: self._step(program, None))
                return
            if waits.number not in self._answers:
                self._waiting[waits.number] = lambda answer: self._step(program, answer)
                return
            value = self._answers.pop(waits.number)

    def _check_answer(self, number: int, reply: object) -> None:
        """What a program is answered is its own affair, or final: the protocol sees to the rest."""
        if isinstance(reply, CheckpointTimeoutError):
            self.world.invariants.waited_too_long(self, reply)
        # Who leaves does not join again, so its goodbye may never come through, and it is told why at the end.
        is_late = isinstance(reply, BarrierTimeoutError | CoordinatorLostError) or number == self._goodbye
        if isinstance(reply, StrataError) and reply.recovery is Recovery.RETRY and not is_late:
            self.world.invariants.waited_too_long(self, reply)
        if number == self._meets[0]:
            if isinstance(reply, BarrierTimeoutError):
                self.world.invariants.barrier_timed_out(self, self._meets[1])
            elif isinstance(reply, BarrierReleased):
                self.world.invariants.barrier_released(self, reply)


def manifest_path(step: int) -> str:
    """Return where the manifest of a step is."""
    return f"step_{step}/metadata.json"
