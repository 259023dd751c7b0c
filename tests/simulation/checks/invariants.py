"""What must hold in a world, whatever happens in it; looked at after every event, with a memory of its own."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.cluster import MAX_PAUSE_S
from strata.cluster.commits import CommitProgress
from strata.cluster.lifecycle.job_state import JobState
from strata.cluster.replies import HeartbeatReply, KeyValue, Registered, RestorePoint
from strata.cluster.values import Meeting
from strata.errors import StrataError
from tests.simulation.checks.data_checks import DataChecks
from tests.simulation.checks.save_checks import SaveChecks
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.cluster import Cluster
    from strata.cluster.commits import Pending
    from strata.cluster.job import Job
    from tests.simulation.process import Process
    from tests.simulation.world import World


# How much later than promised something may happen: what time demands is looked at twice a second.
PATIENCE_S = 4.0
BARRIER_S = 60.0
# In every fourth world it is seen to that a refused command changes nothing: that takes a third of all the time.
SNAPSHOT_EVERY = 4


class Invariants(DataChecks):
    """The promises of a cluster, and what was seen of them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.saves = SaveChecks(world)
        self._begun_anew: set[int] = set()
        self._members_of: dict[int, tuple[tuple[str, str], ...]] = {}
        self._kept_alive_until_s: dict[tuple[str, str], float] = {}
        self._without_channel: set[tuple[str, str]] = set()
        # What makes the snapshot before a command. It is made only if the command is refused: most are not.
        self._snapshot_before: Callable[[], bytes] | None = None
        self._arrived_s: dict[str, float] = {}
        self._dead_for_s: dict[str, float] = {}
        self._ticked_s = 0.0
        # The saves whose parts are all there, as applied; and as durable, which a coordinator goes back to.
        self._writing: set[tuple[int, int]] = set()
        self._durably_writing: set[tuple[int, int]] = set()
        self._restoring: set[int] = set()
        self._released: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._met: Counter[tuple[str, int]] = Counter()
        # The steps whose parts each incarnation has reported in each generation, and where those are.
        self._reported: dict[tuple[str, int], dict[int, str]] = {}
        # The last one whose report is durable.
        self._kept: dict[tuple[str, int], int] = {}
        self._given_up: set[tuple[int, int]] = set()
        self._open_since_s: dict[tuple[int, Meeting], float] = {}

    # What the coordinator does.

    def before(self, cluster: Cluster, command: c.Command) -> None:
        """A command is about to be carried out."""
        if self._world.seed % SNAPSHOT_EVERY == 0 and self._snapshot_before is None:
            self._snapshot_before = cache(cluster.freeze())

    def applied(self, command: c.Command, reply: object, effects: list[e.Effect], *, all_durable: bool) -> None:
        """A command was carried out, or refused; nothing of that has left the coordinator yet."""
        if all_durable:
            self._check_generation()
        if isinstance(reply, StrataError):
            self._check_unchanged(command)
            return
        if not isinstance(command, c.JobCommand) or command.job_id != self._world.job_id:
            if command.durable:
                self._snapshot_before = None
            return
        self._check_sender(command, effects)
        if command.durable:
            self._snapshot_before = None
        self._check_reply(command, reply)
        self._check_aborts(command, effects)
        self._check_barriers()
        self.saves.applied(command, effects, self._job())
        match command:
            case c.ReportPart(incarnation=incarnation, generation=generation, step=step):
                reported = self._reported.setdefault((incarnation, generation), {})
                # The same report may come again, behind later ones, from a connection that was left.
                if reported.get(step) != command.report.path and step <= (last := max(reported, default=-1)):
                    raise ViolationError(f"{incarnation} reports step {step} after step {last}")
                reported[step] = command.report.path
            case c.FailWorkers():
                self._check_kept_alive(command)
                self._check_silent(command)
            case c.KeepAlive() | c.ChannelLost() | c.Heartbeat() | c.RegisterWorker():
                self._note_life(command)
            case c.AskRestorePoint(generation=generation):
                assert isinstance(reply, RestorePoint)
                self._check_restore_point(generation, reply)
            case c.AskCommit(step=step, path=part):
                assert isinstance(reply, CommitProgress)
                manifests = self._world.store.written.items()
                if reply.phase == "committed" and not any(k[0] == step and part in m.parts for k, m in manifests):
                    raise ViolationError(f"{part} was said to be committed, but no manifest holds it")
            case c.RejectCheckpoint(step=step) if effects:
                manifest = self._world.store.manifests.get(step)
                if manifest is not None and not manifest.has_rotted:
                    raise ViolationError(f"step {step} was rejected, but nothing is wrong with it")
        for effect in effects:
            if isinstance(effect, e.CheckpointCommitted) and self._world.store.find(effect.step) is None:
                raise ViolationError(f"step {effect.step} is announced, but its manifest is not in storage")

    def released(self, command: c.Command, reply: object, effects: list[e.Effect]) -> None:
        """The answer to a command and its effects leave the coordinator: from now on they hold for ever."""
        if not isinstance(command, c.JobCommand) or command.job_id != self._world.job_id:
            return
        self._durably_writing = _follow_saves(self._durably_writing, effects)
        if not isinstance(reply, StrataError):
            self.saves.released(command, effects)
        for effect in effects:
            if isinstance(effect, e.CheckpointCommitted):
                self._note_announced(effect.step)
        if isinstance(command, c.SetKey) and isinstance(reply, KeyValue):
            self.key_set(command, reply)
        # Only now: what was applied and not written may be undone, and is said again.
        if isinstance(command, c.GiveUpCheckpoint) and not isinstance(reply, StrataError):
            self._given_up.add((command.step, command.generation))
        if isinstance(command, c.ReportPart) and not isinstance(reply, StrataError):
            self._kept[command.incarnation, command.generation] = command.step
        if isinstance(command, c.RejectCheckpoint) and not isinstance(reply, StrataError):
            for step in self._job().commits.rejected:
                manifest = self._world.store.find(step)
                if manifest is not None and self._rejected.get(step) is not manifest:
                    self._rejected[step] = manifest
                    self._world.tally["rejections"] += 1
                    self._world.note(f"step {step} was rejected")
                    if step in self._world.store.manifests:
                        self._world.operator.hear_of_rejection(step)

    def _note_announced(self, step: int) -> None:
        manifest = self._world.store.find(step)
        if manifest is not None and self._announced.get(step) is not manifest:
            self._world.tally["commits announced"] += 1
            self._announced[step] = manifest
        self._check_announced()

    def restarted(self) -> None:
        """The coordinator began anew from its journal: who lives it does not know, what was announced it does."""
        self._snapshot_before = None
        self._writing = self._durably_writing
        self._world.neighbours.restarted()
        self._dead_for_s.clear()
        self._open_since_s.clear()
        self._ticked_s = self._world.now_s
        self._kept_alive_until_s.clear()
        self._without_channel.clear()
        self._check_announced()

    def _check_announced(self) -> None:
        """What was announced, did not rot and is in storage still, is in the index."""
        if self._world.cluster is None or self._world.job_id not in self._world.cluster:
            return
        index, manifests = self._job().commits.committed, self._world.store.manifests
        for step, manifest in self._announced.items():
            if step not in index and manifests.get(step) is manifest and not manifest.has_rotted:
                raise ViolationError(f"step {step} was announced and is gone from the index")

    def _check_restore_point(self, generation: int, point: RestorePoint) -> None:
        if generation not in self._restoring:
            self._restoring.add(generation)
            if self._writing:
                raise ViolationError(f"generation {generation} restores, and {self._writing} is about to be committed")
        if point.checkpoint is None:
            # Who asks again in a generation that began so is told the same, also after its first checkpoint.
            if self._announced and generation not in self._begun_anew:
                raise ViolationError(f"all begin anew, although steps {sorted(self._announced)} were announced")
            self._begun_anew.add(generation)
            return
        step = point.checkpoint.step
        manifest = self._world.store.find(step)
        if manifest is None:
            raise ViolationError(f"step {step} is to be restored, but it was deleted")
        if self._rejected.get(step) is manifest:
            raise ViolationError(f"step {step} was rejected, and is to be restored again")
        if manifest.cursors != point.checkpoint.cursors:
            raise ViolationError(f"step {step} is to be restored with the data position of another save")

    def _check_generation(self) -> None:
        if self._world.cluster is None or self._world.job_id not in self._world.cluster:
            return
        membership = self._job().membership
        members = tuple((member.worker_id, member.incarnation) for member in membership.present())
        self._world.tally["generations"] = membership.generation
        known = self._members_of.setdefault(membership.generation, members)
        if known != members:
            raise ViolationError(f"generation {membership.generation} has the members {known} and {members}")
        if membership.generation < max(self._members_of):
            raise ViolationError(f"the generation went back to {membership.generation}")
        ranks = [member.rank for member in membership.present()]
        if ranks != list(range(len(ranks))):
            raise ViolationError(f"the ranks are {ranks}")
        verdict = self._job().judge()
        if verdict.state.is_ended if ranks else verdict.state in (JobState.RUNNING, JobState.RECOVERING):
            raise ViolationError(f"the job is {verdict.state}, and has {len(ranks)} workers")

    def refuses_writes(self, lasts_s: float) -> None:
        """The journal refuses for a while: who is dead cannot be failed until it takes writes again."""
        self._dead_for_s = dict.fromkeys(self._dead_for_s, -lasts_s)

    def _check_unchanged(self, command: c.Command) -> None:
        """A command that was refused has changed nothing that lasts."""
        if self._has_changed():
            raise ViolationError(f"{command} was refused and has changed the state")

    def _has_changed(self) -> bool:
        assert self._world.cluster is not None
        return self._snapshot_before is not None and self._world.cluster.snapshot() != self._snapshot_before()

    def _check_sender(self, command: c.JobCommand, effects: list[e.Effect]) -> None:
        """What an incarnation that does not count any more sends has no effect."""
        if not isinstance(command, c.WorkerCommand) or isinstance(command, c.RegisterWorker | c.Goodbye):
            return
        assert self._world.cluster is not None
        members = {member.worker_id: member.incarnation for member in self._job().membership.present()}
        if members.get(command.worker_id) == command.incarnation:
            return
        if effects or self._has_changed():
            raise ViolationError(f"{command} is of an incarnation that does not count, and had an effect")

    def _check_reply(self, command: c.JobCommand, reply: object) -> None:
        """What a reply says of generation, rank and world size is so."""
        if isinstance(reply, HeartbeatReply | Registered) and isinstance(command, c.WorkerCommand):
            membership = self._job().membership
            ranks = {member.worker_id: member.rank for member in membership.present()}
            true = ranks[command.worker_id], len(ranks), membership.generation
            if (reply.rank, reply.world_size, reply.generation) != true:
                raise ViolationError(f"{command.worker_id} was told {reply}, and it is {true}")

    def _check_aborts(self, command: c.JobCommand, effects: list[e.Effect]) -> None:
        """A checkpoint whose parts are all durable is given up only by one who found that it cannot be committed."""
        for effect in effects:
            lost = {row for row in self._writing if row[0] == getattr(effect, "step", None)}
            if lost and isinstance(effect, e.CheckpointAborted) and not isinstance(command, c.GiveUpCheckpoint):
                raise ViolationError(f"{lost} had all parts and was given up: {effect.reason}")
            self._writing = _follow_saves(self._writing, [effect])

    def ticked(self, demands: list[c.Command]) -> None:
        """The coordinator runs and looks at the clock, and demands this; what it must end by now has ended."""
        now_s, limits = self._world.now_s, self._world.limits
        was_frozen = now_s - self._ticked_s > MAX_PAUSE_S
        if was_frozen and demands:
            raise ViolationError(
                f"{demands} follow a pause of {now_s - self._ticked_s:.1f} s, and nothing was read yet"
            )
        if was_frozen:
            # It puts everything off by that time.
            self._snapshot_before = None
        passed_s = min(now_s - self._ticked_s, 1.0)
        self._ticked_s = now_s
        if self._world.cluster is None or self._world.job_id not in self._world.cluster:
            return
        job = self._job()
        alive = {(process.worker_id, process.incarnation) for process in self._world.processes()}
        dead = {
            member.worker_id
            for member in job.membership.present()
            if (member.worker_id, member.incarnation) not in alive
        }
        self._dead_for_s = {worker: self._dead_for_s.get(worker, 0.0) + passed_s for worker in dead}
        if late := [worker for worker, for_s in self._dead_for_s.items() if for_s > limits.lease_s + PATIENCE_S]:
            raise ViolationError(f"{late} died {limits.lease_s + PATIENCE_S:g} s ago, and were not failed")
        waiting = {(job.membership.generation, barrier.meeting): barrier for barrier in job.barriers.open()}
        self._open_since_s = {key: self._open_since_s.get(key, 0.0) + passed_s for key in waiting}
        if late := [key for key, for_s in self._open_since_s.items() if for_s > BARRIER_S + PATIENCE_S]:
            raise ViolationError(f"barriers {late} do not end")
        self.saves.ticked(job, was_frozen=was_frozen)
        for pending in job.commits.pending.values():
            self._check_collects(job, pending)
            late_s = now_s - (pending.begun_s + limits.collect_s + PATIENCE_S)
            if pending.is_collecting and late_s > 0 and not was_frozen:
                raise ViolationError(f"step {pending.step} does not stop collecting")

    def _check_collects(self, job: Job, pending: Pending) -> None:
        """A checkpoint waits only for parts that may still come."""
        if not pending.is_collecting:
            return
        if (pending.step, pending.generation) in self._given_up:
            raise ViolationError(f"step {pending.step} was given up, and still waits for {pending.missing()}")
        members = {member.worker_id: member.incarnation for member in job.membership.present()}
        for worker_id in pending.missing():
            step = self._kept.get((members.get(worker_id, ""), pending.generation), 0)
            if step > pending.step:
                raise ViolationError(f"step {pending.step} waits for {worker_id}, which has saved step {step}")

    # Meetings.

    def _check_barriers(self) -> None:
        """What is kept of barriers is of this generation and its workers, and what counts for a quota is there."""
        job = self._job()
        barriers, present = job.barriers, set(job.membership.ids())
        waiting = sum(barrier.size_bytes for barrier in barriers._open.values())
        brought = sum(len(payload or b"") for each in barriers._open.values() for _, payload in each.arrivals.values())
        if not barriers._waiting_bytes == waiting == brought:
            raise ViolationError(f"{barriers._waiting_bytes} bytes wait at barriers, and workers brought {brought}")
        kept = sum(len(payload) for released in barriers._released.values() for payload in released.payloads)
        if barriers._released_bytes != kept:
            raise ViolationError(f"releases of {barriers._released_bytes} bytes are kept, and they have {kept}")
        old = [r for r in barriers._released.values() if r.generation != job.membership.generation]
        holders = {worker for holders in barriers._holders.values() for worker in holders}
        arrived = {worker for barrier in barriers._open.values() for worker in barrier.arrivals}
        if old or not holders | arrived <= present:
            raise ViolationError(f"{old}, {holders} and {arrived} are kept of barriers, and the workers are {present}")
        if both := barriers._released.keys() & (barriers._holders.keys() | barriers._open.keys()):
            raise ViolationError(f"barriers {both} are released, and still open or asked for")

    def barrier_released(self, process: Process, released: e.BarrierReleased) -> None:
        """A worker was released: all meet equally often, and what they learn there is the same."""
        self._world.tally["releases"] += 1
        met = self._met[process.incarnation, released.generation] = (
            1 + self._met[process.incarnation, released.generation]
        )
        known = self._released.setdefault((released.generation, met), released.payloads)
        if (released.round, released.payloads) != (met, known):
            raise ViolationError(f"{process.name} was released with {released}, others in round {met} with {known}")

    def barrier_timed_out(self, process: Process, generation: int) -> None:
        """A worker was sent away: then nobody may have been released.

        A process whose name a newer one has is kept out until that one is gone, and learns of no release meanwhile.
        """
        newest = dict(self._members_of[max(self._members_of)])
        if newest.get(process.worker_id, process.incarnation) != process.incarnation:
            return
        met = self._met[process.incarnation, generation] + 1
        if (generation, met) in self._released:
            raise ViolationError(f"meeting {met} of generation {generation} was released to some and not to others")

    def waited_too_long(self, process: Process, error: StrataError) -> None:
        """A program was told of what the protocol or the coordinator should have mended by itself."""
        # One that was replaced was cut off meanwhile, and asks for as long as it may.
        if process not in self._world.zombies:
            raise ViolationError(f"{process.name} was told: {error}")

    # Who lives.

    def arrived(self, command: c.Command) -> None:
        """A command has come to the coordinator's machine."""
        if isinstance(command, c.WorkerCommand):
            # Also what a dead process sent, and the network kept, renews its lease.
            self._dead_for_s.pop(command.worker_id, None)
            if command.is_sign_of_life or isinstance(command, c.Heartbeat):
                self._arrived_s[command.incarnation] = self._world.now_s

    def died(self, process: Process) -> None:
        """A process was killed."""
        self._arrived_s.pop(process.incarnation, None)

    def finished(self, process: Process) -> None:
        """A worker has finished."""
        self._world.tally["finished"] += 1

    def refused(self, process: Process, error: StrataError) -> None:
        """A worker is not taken: only one that was replaced may be."""
        if process not in self._world.zombies and self._world.workers.get(process.worker_id) is process:
            raise ViolationError(f"{process.name} is the newest process of {process.worker_id}: {error}")
        self._world.tally["zombies refused"] += 1

    def _check_silent(self, command: c.FailWorkers) -> None:
        """Nobody is failed that was heard, or could have been, within the lease; or the grace, without a channel."""
        limits = self._world.limits
        for worker in command.workers:
            promised_s = limits.grace_s if worker in self._without_channel else limits.lease_s
            heard_s = self._arrived_s.get(worker.incarnation, float("-inf"))
            if heard_s + promised_s > self._world.now_s + 0.001 and worker not in self._without_channel:
                raise ViolationError(f"{worker} was failed, {self._world.now_s - heard_s:.1f} s after it was heard")

    def _note_life(self, command: c.WorkerCommand) -> None:
        worker = command.worker_id, command.incarnation
        now_s, limits = self._world.now_s, self._world.limits
        match command:
            case c.KeepAlive():
                self._world.tally["keep-alives"] += 1
                promised_s = limits.grace_s if worker in self._without_channel else limits.lease_s
                self._kept_alive_until_s[worker] = max(self._kept_alive_until_s.get(worker, 0.0), now_s + promised_s)
            case c.ChannelLost():
                self._without_channel.add(worker)
                promised_s = self._kept_alive_until_s.get(worker, 0.0)
                self._kept_alive_until_s[worker] = min(promised_s, now_s + limits.grace_s)
            case _:
                self._without_channel.discard(worker)

    def _check_kept_alive(self, command: c.FailWorkers) -> None:
        for worker in command.workers:
            if self._kept_alive_until_s.get(worker, 0.0) > self._world.now_s:
                raise ViolationError(f"{worker} was failed, although it was kept alive")


def _follow_saves(writing: set[tuple[int, int]], effects: list[e.Effect]) -> set[tuple[int, int]]:
    """Return the saves that have all parts and no manifest, after what these effects say."""
    for effect in effects:
        match effect:
            case e.ManifestWanted():
                writing = writing | {(effect.step, effect.generation)}
            case e.CheckpointCommitted() | e.CheckpointAborted():
                writing = {row for row in writing if row[0] != effect.step}
    return writing
