"""What must hold in a world, whatever happens in it; looked at after every event, with a memory of its own."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.commits import CommitProgress
from strata.cluster.replies import RestorePoint
from strata.errors import StrataError
from strata.sharding import DataOrder, GlobalCursor, RangeSet, cursor_from_json, span_positions
from strata.sharding.cursor import Spans
from tests.simulation.counting import KEY

if TYPE_CHECKING:
    from strata.cluster.job import Job
    from tests.simulation.store import Manifest
    from tests.simulation.world import World


class ViolationError(AssertionError):
    """Something that must never happen did."""


class Invariants:
    """The promises of a cluster, and what was seen of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._announced: dict[int, Manifest] = {}
        self._rejected: dict[int, Manifest] = {}
        self._begun_anew: set[int] = set()
        self._members_of: dict[int, tuple[tuple[str, str], ...]] = {}
        self._hands: dict[int, dict[str, RangeSet]] = {}
        self._shared: dict[int, RangeSet] = {}
        self._vouched_until_s: dict[tuple[str, str], float] = {}
        self._without_channel: set[tuple[str, str]] = set()
        self._counted: set[str] = set()
        self._not_counted: set[str] = set()

    # What the coordinator does.

    def applied(self, command: c.JobCommand, reply: object, effects: list[e.Effect], *, all_durable: bool) -> None:
        """A command was carried out, or refused; nothing of that has left the coordinator yet."""
        if all_durable:
            self._check_generation()
        if isinstance(reply, StrataError):
            return
        match command:
            case c.FailWorkers():
                self._check_vouched(command)
            case c.Vouch() | c.ChannelLost() | c.Heartbeat() | c.RegisterWorker():
                self._note_life(command)
            case c.AskRestorePoint(generation=generation):
                assert isinstance(reply, RestorePoint)
                self._check_restore_point(generation, reply)
            case c.AskCommit(step=step, part=part):
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

    def released(self, command: c.JobCommand, reply: object, effects: list[e.Effect]) -> None:
        """The answer to a command and its effects leave the coordinator: from now on they hold for ever."""
        for effect in effects:
            if isinstance(effect, e.CheckpointCommitted):
                self._note_announced(effect.step)
        if isinstance(command, c.RejectCheckpoint) and not isinstance(reply, StrataError):
            for step in self._job().commits.rejected:
                manifest = self._world.store.find(step)
                if manifest is not None and self._rejected.get(step) is not manifest:
                    self._rejected[step] = manifest
                    self._world.tally["rejections"] += 1
                    self._world.note(f"step {step} was rejected")
                    if step in self._world.store.manifests:
                        self._world.person.hear_of_rejection(step)

    def _note_announced(self, step: int) -> None:
        manifest = self._world.store.find(step)
        if manifest is not None and self._announced.get(step) is not manifest:
            self._world.tally["commits announced"] += 1
            self._announced[step] = manifest
        self._check_announced()

    def restarted(self) -> None:
        """The coordinator began anew from its journal: who lives it does not know, what was announced it does."""
        self._vouched_until_s.clear()
        self._without_channel.clear()
        self._check_announced()

    def _check_announced(self) -> None:
        """What was announced, did not rot and is in storage still, is in the index."""
        if self._world.cluster is None or "default" not in self._world.cluster.jobs():
            return
        index, manifests = self._job().commits.committed, self._world.store.manifests
        for step, manifest in self._announced.items():
            if step not in index and manifests.get(step) is manifest and not manifest.has_rotted:
                raise ViolationError(f"step {step} was announced and is gone from the index")

    def _check_restore_point(self, generation: int, point: RestorePoint) -> None:
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
        if self._world.cluster is None or "default" not in self._world.cluster.jobs():
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

    # Who lives.

    def _note_life(self, command: c.WorkerCommand) -> None:
        worker = command.worker_id, command.incarnation
        now_s, limits = self._world.now_s, self._world.limits
        match command:
            case c.Vouch():
                self._world.tally["vouches"] += 1
                promised_s = limits.grace_s if worker in self._without_channel else limits.lease_s
                self._vouched_until_s[worker] = max(self._vouched_until_s.get(worker, 0.0), now_s + promised_s)
            case c.ChannelLost():
                self._without_channel.add(worker)
                promised_s = self._vouched_until_s.get(worker, 0.0)
                self._vouched_until_s[worker] = min(promised_s, now_s + limits.grace_s)
            case _:
                self._without_channel.discard(worker)

    def _check_vouched(self, command: c.FailWorkers) -> None:
        for worker in command.workers:
            if self._vouched_until_s.get(worker, 0.0) > self._world.now_s:
                raise ViolationError(f"{worker} was failed, although it was vouched for")

    # What workers do.

    def counted(self, name: str, *, is_set: bool) -> None:
        """A worker was told whether its name is on the list that all share."""
        self._world.tally["keys set"] += is_set
        (self._counted if is_set else self._not_counted).add(name)

    def dealt(self, generation: int, worker_id: str, spans: Spans) -> None:
        """A worker was given a hand: nobody else may hold any of it in this generation, or all, if global."""
        positions = span_positions(self._world.order, spans)
        if self._world.dataset["data_order"] is DataOrder.GLOBAL:
            if self._shared.setdefault(generation, positions) != positions:
                raise ViolationError(f"{worker_id} has another rest of the epoch in generation {generation}")
            return
        hands = self._hands.setdefault(generation, {})
        for other, held in hands.items():
            if other != worker_id and held.intersection(positions).count:
                raise ViolationError(f"{worker_id} and {other} hold the same samples in generation {generation}")
        hands[worker_id] = hands.get(worker_id, RangeSet()).union(positions)

    def manifest_written(self, manifest: Manifest) -> None:
        """A manifest is in storage: its model has seen exactly what its cursor says, and nothing twice."""
        model = Counter(self._world.store.model(manifest))
        ledger: Counter[int] = Counter()
        for row in json.loads(manifest.cursors):
            cursor = cursor_from_json({name: value for name, value in row.items() if name != "dataset"})
            if isinstance(cursor, GlobalCursor) != (self._world.dataset["data_order"] is DataOrder.GLOBAL):
                raise ViolationError(f"step {manifest.step} has the cursor {cursor}")
            for start, stop in cursor.consumed:
                ledger.update(self._world.order.samples_at(np.arange(start, stop)).tolist())
        if model != ledger:
            raise ViolationError(
                f"step {manifest.step}: the model has seen {sorted(model.elements())}, "
                f"but its cursor says {sorted(ledger.elements())}"
            )

    # The end.

    def check_end(self) -> None:
        """Everyone has finished: each sample was seen once, and each name counted once."""
        store = self._world.store
        # What was rejected is of a history that nobody went on with. What was lost when all had finished counts.
        lost = {step: manifest for step, manifest in store.lost.items() if self._announced.get(step) is manifest}
        ends = {**lost, **store.manifests}
        last = max(step for step, manifest in ends.items() if self._rejected.get(step) is not manifest)
        model = Counter(store.model(ends[last]))
        self._world.tally["samples"] += model.total()
        if model != Counter(range(self._world.order.total_samples)):
            raise ViolationError(f"the finished epoch was not seen exactly once: {sorted(model.elements())}")
        if self._world.cluster is not None:
            self._check_audit()
            self._check_count()

    def _check_audit(self) -> None:
        audit = self._job().ledger.audit("d", 0)
        if not audit.is_exactly_once:
            raise ViolationError(f"the audit of a finished epoch says: {audit}")
        skipped = [sample for start, stop in audit.skipped for sample in range(start, stop)]
        self._world.tally["skips"] += len(skipped)
        if skipped != sorted(self._world.unreadable):
            raise ViolationError(f"{sorted(self._world.unreadable)} cannot be read, but the audit names {skipped}")

    def _check_count(self) -> None:
        names = self._job().keys.get(KEY).value.decode().split()
        if len(names) != len(set(names)):
            raise ViolationError(f"someone was counted twice: {names}")
        if lost := self._counted - set(names):
            raise ViolationError(f"{sorted(lost)} were told that they are counted, and are not")
        if wrong := self._not_counted & set(names):
            raise ViolationError(f"{sorted(wrong)} were told that they are not counted, and are")

    def _job(self) -> Job:
        assert self._world.cluster is not None
        return self._world.cluster.job("default")
