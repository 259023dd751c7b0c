"""The disk of a world: a journal that refuses at times, and what a coordinator that starts now would know from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata.cluster import Cluster, Limits
from strata.cluster import commands as c
from strata.cluster.replies import KeyValue
from strata.coordinator.journal import Entry, MemoryJournal
from strata.coordinator.journal.entries import decode_entry, encode_entry, replay
from strata.errors import JournalUnavailableError
from tests.simulation.violation import ViolationError

# A member as someone may be told of it: job, generation, size of the world, worker, incarnation, rank.
Place = tuple[str, int, int, str, str, int]


class Disk(MemoryJournal):
    """Keeps entries and snapshots; beside it, all that was ever written, carried out by a cluster of its own."""

    def __init__(
        self,
        limits: Limits,
        first: Sequence[Entry],
        now_s: Callable[[], float],
        *,
        on_failed: Callable[[c.FailWorkers, float], None],
    ) -> None:
        super().__init__()
        self._on_failed = on_failed
        self._limits = limits
        self._now_s = now_s
        self.refuses = False
        self.refused_s = float("-inf")
        """When a write was refused last."""
        self.written: list[Entry] = []
        self.snapshots = 0
        self.model = Cluster(limits)
        """What is durable, as a coordinator that starts now would know it."""
        self.places: set[Place] = set()
        self.generations: dict[str, int] = {}
        self.values: set[tuple[str, bytes, int]] = set()
        self.append(first)

    def append(self, entries: Sequence[Entry]) -> None:
        self._check_room()
        kept = [decode_entry(encode_entry(entry), entry.at_s, where="disk") for entry in entries]
        super().append(kept)
        for entry in kept:
            self.written.append(entry)
            replay(self.model, [entry])
            self._note(entry.command)
            if isinstance(entry.command, c.FailWorkers):
                self._on_failed(entry.command, entry.at_s)
        self._check_load()

    def snapshot(self, state: bytes) -> None:
        self._check_room()
        super().snapshot(state)
        self.snapshots += 1
        self._check_load()

    def holds(self, command: c.Command) -> bool:
        """Whether a command was written."""
        return any(entry.command == command for entry in reversed(self.written))

    def _check_room(self) -> None:
        if self.refuses:
            self.refused_s = self._now_s()
            raise JournalUnavailableError("journal", "the disk is full")

    def _check_load(self) -> None:
        """What a coordinator would read now is all that was written, whichever snapshot it begins with."""
        cluster = Cluster(self._limits)
        state, entries = self.load()
        if state is not None:
            cluster.restore(state)
        replay(cluster, entries)
        if cluster.snapshot() != self.model.snapshot():
            raise ViolationError("the snapshot and the entries after it do not lead to what was written")

    def _note(self, command: c.Command) -> None:
        if not isinstance(command, c.JobCommand) or command.job_id not in self.model:
            return
        job = self.model.job(command.job_id)
        members, generation = job.membership.present(), job.membership.generation
        if self.generations.get(command.job_id) != generation:
            self.generations[command.job_id] = generation
            self.places |= {
                (command.job_id, generation, len(members), each.worker_id, each.incarnation, each.rank)
                for each in members
            }
        if isinstance(command, c.SetKey):
            held, _ = self.model.apply(c.GetKey(job_id=command.job_id, key=command.key), self._now_s())
            assert isinstance(held, KeyValue)
            self.values.add((command.job_id, held.value, held.token))
