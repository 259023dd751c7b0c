"""Who is in a job: ranks, generations, states and leases."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from strata.cluster.commands import Goodbye, Heartbeat, KeepAlive, RegisterWorker, WorkerCommand, WorkerState
from strata.cluster.events import Cause
from strata.cluster.values import BootTime, Incarnation
from strata.errors import (
    DuplicateWorkerError,
    IllegalTransitionError,
    JobFullError,
    StaleGenerationError,
    StaleIncarnationError,
    UnknownWorkerError,
    WorkerActiveError,
)

S = WorkerState
# So many processes that were replaced are remembered of each worker, so that none of them can come back.
MAX_REPLACED = 64
GONE = frozenset({S.FAILED, S.LEFT})
_WORKING = frozenset({S.IDLE, S.LOADING_DATA, S.TRAINING, S.CHECKPOINTING, S.RECOVERING})
# What a worker may say of itself. FAILED and LEFT are said of it, and only a new registration leads out of them.
TRANSITIONS: dict[WorkerState, frozenset[WorkerState]] = {
    S.INITIALIZING: _WORKING | {S.INITIALIZING},
    S.IDLE: _WORKING,
    S.LOADING_DATA: _WORKING,
    S.TRAINING: _WORKING,
    S.CHECKPOINTING: _WORKING,
    S.RECOVERING: _WORKING,
    S.FAILED: frozenset(),
    S.LEFT: frozenset(),
}


@dataclass(slots=True)
class Member:
    """A worker as the job knows it. What a heartbeat says, and the lease, are not durable."""

    worker_id: str
    incarnation: str
    rank: int
    address: str = ""
    gpu_count: int = 0
    memory_bytes: int = 0
    preferred_rank: int | None = None
    replaced: tuple[str, ...] = ()
    state: WorkerState = S.INITIALIZING
    step: int = 0
    epoch: int = 0
    resources: dict[str, float] = field(default_factory=dict)
    last_seen_s: float = 0.0
    lease_until_s: float = 0.0
    channel_lost: bool = False

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "worker_id": self.worker_id,
            "incarnation": self.incarnation,
            "rank": self.rank,
            "address": self.address,
            "gpu_count": self.gpu_count,
            "memory_bytes": self.memory_bytes,
            "preferred_rank": self.preferred_rank,
            "replaced": list(self.replaced),
            "state": "failed" if self.state is S.FAILED else "left" if self.state is S.LEFT else "initializing",
        }


class Membership:
    """The workers of a job. Ranks of those present are 0 to n-1 after every change, and stay where they can."""

    def __init__(self, *, lease_s: float, grace_s: float) -> None:
        self.generation = 0
        self.min_workers = 1
        self.max_workers: int | None = None
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._members: dict[str, Member] = {}
        self._present: list[Member] = []
        self._ids: tuple[str, ...] = ()

    def present(self) -> list[Member]:
        """Return the workers that are neither failed nor gone, in the order of their ranks."""
        return self._present

    def everyone(self) -> list[Member]:
        """Return all workers that ever registered, by name."""
        return [self._members[worker_id] for worker_id in sorted(self._members)]

    def departed(self) -> list[Member]:
        """Return the workers that left or failed and are remembered."""
        if len(self._members) == len(self._present):
            return []
        return [member for member in self._members.values() if member.state in GONE]

    def is_new(self, worker_id: str) -> bool:
        """Whether no worker of that name is present."""
        member = self._members.get(worker_id)
        return member is None or member.state in GONE

    def forget(self, workers: tuple[tuple[str, str], ...]) -> list[str]:
        """Forget workers that are gone; return which."""
        gone = [
            worker_id
            for worker_id, incarnation in workers
            if (member := self._members.get(worker_id)) is not None
            and member.incarnation == incarnation
            and member.state in GONE
        ]
        for worker_id in gone:
            del self._members[worker_id]
        return gone

    def ids(self) -> tuple[str, ...]:
        """Return the names of the workers present, in the order of their ranks."""
        return self._ids

    def waits_for(self) -> int:
        """Return how many workers are missing before the job can run."""
        return max(0, self.min_workers - len(self._present))

    def register(self, command: RegisterWorker, *, now_s: float, by_wall_clock: bool = False) -> tuple[Member, bool]:
        """Take a worker in; return it, and whether the membership changed. Of two processes the newer one counts."""
        known = self._members.get(command.worker_id)
        if known is not None and known.incarnation == command.incarnation and known.state not in GONE:
            self._renew(known, now_s)
            return known, False
        is_older = known is not None and check_successor(command, known, by_wall_clock=by_wall_clock)
        others = len(self._present) - (known is not None and known.state not in GONE)
        if self.max_workers is not None and others >= self.max_workers:
            raise JobFullError(command.job_id, command.worker_id, max_workers=self.max_workers)
        member = Member(
            worker_id=command.worker_id,
            incarnation=command.incarnation,
            rank=others if known is None else known.rank,
            address=command.address,
            gpu_count=command.gpu_count,
            memory_bytes=command.memory_bytes,
            preferred_rank=command.preferred_rank,
            replaced=() if known is None else _replaced_by(command.incarnation, known, is_older=is_older),
        )
        self._members[command.worker_id] = member
        self._renew(member, now_s)
        if known is None and command.preferred_rank in (None, member.rank):
            # It goes behind all others, and nobody moves: a thousand workers join in no time.
            self.generation += 1
            self._present.append(member)
            self._ids += (member.worker_id,)
        else:
            self._change()
        return member, True

    def hear(self, command: WorkerCommand, *, now_s: float) -> None:
        """Renew the lease of whoever sends anything; what does not come from a member is ignored."""
        member = self._members.get(command.worker_id)
        if member is not None and member.incarnation == command.incarnation and member.state not in GONE:
            self._renew(member, now_s)

    def heartbeat(self, command: Heartbeat, *, now_s: float) -> Member:
        """Renew the lease, and note what the worker says of itself."""
        member = self.check(command)
        self._renew(member, now_s)
        if command.state is not member.state:
            if command.state not in TRANSITIONS[member.state]:
                raise IllegalTransitionError(command.worker_id, current=member.state, wanted=command.state)
            member.state = command.state
        member.step, member.epoch, member.resources = command.step, command.epoch, command.resources
        return member

    def keep_alive(self, command: KeepAlive, *, now_s: float) -> None:
        """Renew the lease of a worker that cannot speak; without its channel only by the grace, for it may be dead."""
        member = self.check(command)
        renewed_s = now_s + (self._grace_s if member.channel_lost else self._lease_s)
        member.lease_until_s = max(member.lease_until_s, renewed_s)

    def lose_channel(self, command: WorkerCommand, *, now_s: float) -> None:
        """Shorten the lease of a worker whose connection closed; one that is back already is left alone."""
        member = self._members.get(command.worker_id)
        if member is not None and member.incarnation == command.incarnation:
            member.channel_lost = True
            member.lease_until_s = min(member.lease_until_s, now_s + self._grace_s)

    def leave(self, command: Goodbye) -> bool:
        """Let a worker go; return whether it was there."""
        return self._remove((Incarnation(command.worker_id, command.incarnation),), S.LEFT)

    def fail(self, workers: tuple[Incarnation, ...]) -> bool:
        """Declare workers dead, all in one generation; return whether any was there."""
        return self._remove(workers, S.FAILED)

    def expired(self, *, now_s: float) -> list[Member]:
        """Return the workers whose lease has ended."""
        return [member for member in self.present() if member.lease_until_s < now_s]

    def judge(self, silent: list[Member]) -> tuple[Cause, str]:
        """Say in which way workers whose lease has ended were lost."""
        lost = [member.channel_lost for member in silent]
        if all(lost):
            words = f"its connection closed without goodbye, and it did not come back in {self._grace_s:g} s"
            return Cause.CHANNEL_LOST, words
        if not any(lost):
            return Cause.HUNG, f"silent for {self._lease_s:g} s on an open connection"
        return Cause.LEASE_ENDED, "some closed their connections without goodbye, and some fell silent"

    def begin_anew(self) -> None:
        """Begin a generation of the same workers, who are to restore again."""
        self.generation += 1

    def delay(self, seconds: float, *, now_s: float) -> None:
        """Put the end of all leases off, for time in which this coordinator did not run and could hear nobody."""
        for member in self.present():
            # At most a whole lease: who was heard since the pause has one already.
            put_off_s = min(member.lease_until_s + seconds, now_s + self._lease_s)
            member.lease_until_s = max(put_off_s, now_s + self._grace_s)

    def restart_leases(self, *, now_s: float) -> None:
        """Start every lease anew, after a restart of the coordinator: silence until now proves nothing."""
        for member in self.present():
            self._renew(member, now_s)

    def check(self, command: WorkerCommand) -> Member:
        """Return the sender, or raise: unknown, gone, or an older incarnation than the one that counts."""
        member = self._members.get(command.worker_id)
        if member is None:
            raise UnknownWorkerError(command.worker_id, known=self.ids())
        if member.incarnation != command.incarnation or member.state in GONE:
            raise StaleIncarnationError(command.worker_id, command.incarnation, state=member.state)
        return member

    def check_generation(self, worker_id: str, generation: int) -> None:
        """Refuse what was sent in another generation than the present one."""
        if generation != self.generation:
            raise StaleGenerationError(worker_id, sent=generation, current=self.generation)

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "generation": self.generation,
            "min_workers": self.min_workers,
            "max_workers": self.max_workers,
            "members": [member.record() for member in self.everyone()],
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        self.generation = record["generation"]
        self.min_workers, self.max_workers = record["min_workers"], record["max_workers"]
        for row in record["members"]:
            changed = {"state": WorkerState(row["state"]), "replaced": tuple(row["replaced"])}
            self._members[row["worker_id"]] = Member(**{**row, **changed})
        self._sort()

    def _remove(self, workers: tuple[Incarnation, ...], state: WorkerState) -> bool:
        found = [
            member
            for worker_id, incarnation in workers
            if (member := self._members.get(worker_id)) is not None
            and member.incarnation == incarnation
            and member.state not in GONE
        ]
        for member in found:
            member.state = state
        if found:
            self._change()
        return bool(found)

    def _renew(self, member: Member, now_s: float) -> None:
        member.last_seen_s, member.channel_lost = now_s, False
        member.lease_until_s = now_s + self._lease_s

    def _change(self) -> None:
        self.generation += 1
        members = sorted((m for m in self._members.values() if m.state not in GONE), key=lambda m: m.worker_id)
        wishes = {m.worker_id: (m.rank if m.preferred_rank is None else m.preferred_rank) for m in members}
        for worker_id, rank in deal_ranks(wishes).items():
            self._members[worker_id].rank = rank
        self._sort()

    def _sort(self) -> None:
        here = (member for member in self._members.values() if member.state not in GONE)
        self._present = sorted(here, key=lambda member: member.rank)
        self._ids = tuple(member.worker_id for member in self._present)


def deal_ranks(wishes: dict[str, int]) -> dict[str, int]:
    """Give n workers the ranks 0 to n-1: each the one that it wishes for, if that exists and nobody before it took it.

    The others, by name, fill what is left.
    """
    taken: dict[int, str] = {}
    for worker_id, rank in sorted(wishes.items()):
        if 0 <= rank < len(wishes) and rank not in taken:
            taken[rank] = worker_id
    placed = set(taken.values())
    free = (rank for rank in range(len(wishes)) if rank not in taken)
    ranks = {worker_id: rank for rank, worker_id in taken.items()}
    for worker_id in sorted(wishes):
        if worker_id not in placed:
            ranks[worker_id] = next(free)
    return ranks


def check_successor(command: RegisterWorker, known: Member, *, by_wall_clock: bool = False) -> bool:
    """Raise if the process that is known counts, and not this one; return whether this one was started earlier.

    An incarnation is ``process.life``: a process that was declared dead joins again in its next life, and a process
    that was replaced by another one never comes back, whatever it still sends. A process that registers for the first
    time counts as newer, with one exception: it was started on the same machine as the other one, or as one that this
    replaced, and before it. So it was delayed on its way, and waits until the other one's lease has ended. It is not
    refused for good, for nothing but a clock says so.
    """
    process, life = split_incarnation(command.incarnation)
    known_process, known_life = split_incarnation(known.incarnation)
    if process == known_process:
        if life <= known_life:
            raise StaleIncarnationError(command.worker_id, command.incarnation, state=known.state)
        return False
    if process in known.replaced:
        raise DuplicateWorkerError(command.job_id, command.worker_id)
    if by_wall_clock:
        # Those that it refused are in no journal.
        return _is_older_by_wall_clock(process, known_process)
    is_older = any(_is_older(process, other) for other in (known_process, *known.replaced))
    if is_older and known.state not in GONE:
        raise WorkerActiveError(command.job_id, command.worker_id)
    return is_older


def new_incarnation(started: BootTime | None, token: str) -> str:
    """Return the first incarnation of a process: when it was started, as its machine counts, and a token of its own."""
    return f"{token}.1" if started is None else f"{started.boot}:{started.elapsed_ms}-{token}.1"


def started_at(process: str) -> BootTime | None:
    """Return when a process says that it was started; None if it does not say, or says it by a wall clock."""
    started, dash, _ = process.partition("-")
    boot, colon, elapsed_ms = started.rpartition(":")
    return BootTime(boot, int(elapsed_ms)) if dash and colon and elapsed_ms.isdecimal() else None


def split_incarnation(incarnation: str) -> tuple[str, int]:
    """Return the process and the life of an incarnation; one without a number is in its first life."""
    process, _, life = incarnation.rpartition(".")
    return (process, int(life)) if process and life.isdecimal() else (incarnation, 0)


def name_process(incarnation: str) -> str:
    """Return a name that tells a process apart from others of the same worker id, and says nothing else."""
    return blake2b(split_incarnation(incarnation)[0].encode(), digest_size=6).hexdigest()


def _is_older(process: str, other: str) -> bool:
    """Whether a process was started before another one on the same machine; of different machines nobody can tell."""
    started, other_started = started_at(process), started_at(other)
    if started is None or other_started is None or started.boot != other_started.boot:
        return False
    return started.elapsed_ms < other_started.elapsed_ms


def _is_older_by_wall_clock(process: str, other: str) -> bool:
    """Whether a process says that it was started before another one did, by the clocks of their machines."""
    started, dash, _ = process.partition("-")
    other_started, other_dash, _ = other.partition("-")
    is_known = dash and other_dash and started.isdecimal() and other_started.isdecimal()
    return bool(is_known) and int(started) < int(other_started)


def _replaced_by(incarnation: str, known: Member, *, is_older: bool) -> tuple[str, ...]:
    """Return the processes that may not come back now. A newer one whose name an older one took, may."""
    process, known_process = split_incarnation(incarnation)[0], split_incarnation(known.incarnation)[0]
    if process == known_process or is_older:
        return known.replaced
    return (*known.replaced, known_process)[-MAX_REPLACED:]
