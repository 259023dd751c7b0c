"""What must hold of a save from its last part to its manifest: repairs, who writes, and what commits it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strata.cluster import commands as c
from strata.cluster import events as e
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from strata.cluster.job import Job
    from tests.simulation.world import World

PATIENCE_S = 4.0


@dataclass
class Repairing:
    """A save whose replicas differ: who is asked for repairs since when, who has answered, and who repaired."""

    asked: tuple[str, ...]
    since_s: float
    answered: set[str] = field(default_factory=set)
    repaired: set[str] = field(default_factory=set)


class SaveChecks:
    """Looks at the commands and effects of saves; a save is known by its step and the generation of its parts."""

    def __init__(self, world: World) -> None:
        self._world = world
        # As applied: a journal that refuses may undo it, and then it is decided again, later.
        self._repairing: dict[tuple[int, int], Repairing] = {}
        # As it left the coordinator.
        self._wanted: dict[tuple[int, int], e.ManifestWanted] = {}

    def applied(self, command: c.JobCommand, effects: list[e.Effect], job: Job) -> None:
        """A command was carried out."""
        now_s = self._world.now_s
        if isinstance(command, c.ReportRepair):
            repairing = self._repairing.get((command.step, command.generation))
            if repairing is not None:
                repairing.answered.add(command.worker_id)
        for effect in effects:
            match effect:
                case e.RepairWanted():
                    key = effect.step, effect.generation
                    self._repairing.setdefault(key, Repairing(effect.to, now_s))
                case e.ManifestWanted():
                    self._check_not_too_early(command, effect, job)
                case e.CheckpointCommitted() if isinstance(command, c.ConfirmCommit):
                    self._check_confirmed(command, job)

    def released(self, command: c.JobCommand, effects: list[e.Effect]) -> None:
        """The answer to a command and its effects leave the coordinator."""
        if isinstance(command, c.ReportRepair) and command.repair is not None:
            key = command.step, command.generation
            if key in self._repairing and key not in self._wanted:
                self._repairing[key].repaired.add(command.worker_id)
        for effect in effects:
            if isinstance(effect, e.ManifestWanted):
                self._check_wanted(effect)

    def ticked(self, job: Job, *, was_frozen: bool) -> None:
        """The coordinator looks at the clock: what is repaired has not waited for too long, or for who is gone."""
        for pending in job.commits.pending.values():
            if not pending.is_repairing:
                continue
            if gone := set(pending.unrepaired()) - set(job.membership.ids()):
                raise ViolationError(f"step {pending.step} waits for repairs of {sorted(gone)}, who are gone")
            until_s = pending.repair_began_s + self._world.limits.repair_s + PATIENCE_S
            if until_s < self._world.now_s and not was_frozen:
                raise ViolationError(f"step {pending.step} waits for repairs without end")

    def _check_not_too_early(self, command: c.JobCommand, wanted: e.ManifestWanted, job: Job) -> None:
        """Where replicas differ, no manifest is wanted before all have answered, one is gone, or the time is over."""
        repairing = self._repairing.get((wanted.step, wanted.generation))
        if repairing is None or (wanted.step, wanted.generation) in self._wanted:
            return
        is_late = repairing.since_s + self._world.limits.repair_s <= self._world.now_s
        missing = set(repairing.asked) - repairing.answered
        if missing and missing <= set(job.membership.ids()) and not is_late:
            raise ViolationError(
                f"a manifest of step {wanted.step} is wanted before {sorted(missing)} have repaired it"
            )

    def _check_wanted(self, wanted: e.ManifestWanted) -> None:
        """Whoever is asked for a manifest is asked for the same one, with all repairs that came in time."""
        key = wanted.step, wanted.generation
        known = self._wanted.setdefault(key, wanted)
        if (known.reports, known.repairs, known.cursors) != (wanted.reports, wanted.repairs, wanted.cursors):
            raise ViolationError(f"a manifest was wanted as {known}, and then as {wanted}")
        repairing = self._repairing.get(key)
        paths = [repair.path for repair in wanted.repairs]
        if foreign := [path for path in paths if path and self._world.store.repairs.get(path) != key]:
            raise ViolationError(f"{foreign} are no repairs of step {wanted.step} in generation {wanted.generation}")
        if any(paths):
            assert repairing is not None
            self._world.tally["repaired manifests"] += 1
        if repairing is not None and known is wanted:
            lost = [
                who for n, who in enumerate(repairing.asked) if who in repairing.repaired and not any(paths[n : n + 1])
            ]
            if lost:
                raise ViolationError(f"the repairs of {lost} are missing in the manifest of step {wanted.step}")

    def _check_confirmed(self, command: c.ConfirmCommit, job: Job) -> None:
        """What a confirmation commits is in storage, with the data position that the coordinator knows."""
        manifest = self._world.store.find(command.step)
        if manifest is None or manifest.generation != command.generation:
            raise ViolationError(f"{command} has committed a step, and in storage there is {manifest}")
        record = job.commits.committed[command.step]
        if record.cursors != manifest.cursors:
            raise ViolationError(
                f"step {command.step} was committed with another data position than its manifest holds"
            )
