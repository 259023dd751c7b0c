"""What the launchers of several machines agree on: the round that their workers start in, and how it ends. Pure.

All launchers of a job share one :class:`Agreement`. Each changes it by compare-and-set, with the methods of this class;
each of them may be repeated. A round is one start of all workers: it begins when every launcher is ready for it, and
ends for all of them at once, so that a failure counts once, whoever sees it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from strata.address import is_loopback

NO_ROUND = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One launcher, and what it brings to the round that it is ready for."""

    process: str
    """What tells its process from that of a launcher that replaces it."""
    ready_for: int = NO_ROUND
    finished: int = NO_ROUND
    """The round whose workers have all finished here."""
    workers: int = 0
    address: str = ""
    """The address of its machine on the way to the coordinator."""
    outer_address: str = ""
    """Its address on the way to other networks, for a machine that runs the coordinator itself."""
    port: int = 0
    """A port that is free there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The start of a round: where rank 0 listens, and the rank of the first worker of each machine."""

    master_addr: str
    master_port: int
    first_ranks: Mapping[int, int]
    """By node rank, in the order of the node ranks."""
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the job ended on all machines; code 0 says that all workers finished."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the launchers agree on now."""

    number: int = 0
    """The number of the present round."""
    nodes: Mapping[int, Node] = field(default_factory=dict)
    """The launchers that take part, by node rank. One that is lost or leaves is removed."""
    begun: Begun | None = None
    """The start of the present round; None while launchers are not ready for it."""
    cause: str = ""
    """Why the last round ended."""
    restarts: int = 0
    """How many rounds ended by a failure."""
    recent_restarts: int = 0
    """How many of them count for the limit of restarts."""
    signature: str = ""
    """What is the same if the failure that ended the last round comes again; empty if that would prove nothing."""
    outcome: Outcome | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what :meth:`to_bytes` wrote; a new agreement if it is something else."""
        try:
            fields = json.loads(data)
            return cls(
                **{
                    **fields,
                    "nodes": {int(rank): Node(**node) for rank, node in fields["nodes"].items()},
                    "begun": _read_begun(fields["begun"]),
                    "outcome": fields["outcome"] and Outcome(**fields["outcome"]),
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def to_bytes(self) -> bytes:
        """Return it as the key holds it; nothing when no launcher takes part any more."""
        return json.dumps(asdict(self)).encode() if self.nodes else b""

    @property
    def lost(self) -> list[int]:
        """The node ranks that the present round began with, and that take part no longer."""
        return [] if self.begun is None else [rank for rank in self.begun.first_ranks if rank not in self.nodes]

    def join(self, node_rank: int, living: Mapping[int, str]) -> Self:
        """Take part as a launcher that was just started, where ``living`` are the processes of all machines.

        If none of the others takes part, this is a new run of the job. If they run a round, it ends: workers cannot
        come into it. While launchers of an earlier run are about to leave, nothing changes.
        """
        present = {rank: node for rank, node in self.nodes.items() if node.process == living.get(rank)}
        if node_rank in present:
            return self
        if not present:
            return type(self)(nodes={rank: Node(process=process) for rank, process in living.items()})
        if self.outcome is not None:
            return self
        nodes = {rank: present.get(rank) or Node(process=process) for rank, process in living.items()}
        if self.begun is None:
            return replace(self, nodes=nodes)
        cause = f"the launcher of node rank {node_rank} was started"
        return replace(self, nodes=nodes, number=self.number + 1, begun=None, cause=cause)

    def prepare(self, node_rank: int, node: Node, *, nnodes: int, min_workers: int | None) -> Self:
        """Make a launcher ready for the present round, which begins when it is the last one."""
        if self.begun is not None or self.outcome is not None or not self._has(node_rank, node.process):
            return self
        ready = replace(node, ready_for=self.number)
        return replace(self, nodes={**self.nodes, node_rank: ready})._begin(nnodes, min_workers)

    def end_round(self, number: int, *, cause: str, recent_restarts: int | None = None, signature: str = "") -> Self:
        """End a round, unless another launcher did: all workers of all machines start again.

        ``recent_restarts`` counts this as a failure: it is how many restarts count for the limit with this one.
        """
        if number != self.number or self.outcome is not None:
            return self
        ended = replace(self, number=number + 1, begun=None, cause=cause, signature=signature)
        if recent_restarts is None:
            return ended
        return replace(ended, restarts=self.restarts + 1, recent_restarts=recent_restarts)

    def finish(self, node_rank: int, number: int) -> Self:
        """Say that all workers of one machine finished; when all machines say so, the job has finished."""
        if number != self.number or self.outcome is not None or node_rank not in self.nodes:
            return self
        nodes = {**self.nodes, node_rank: replace(self.nodes[node_rank], finished=number)}
        is_finished = all(node.finished == number for node in nodes.values())
        return replace(self, nodes=nodes, outcome=Outcome(code=0) if is_finished else None)

    def give_up(self, number: int, outcome: Outcome) -> Self:
        """End the job on all machines because of a failure in this round, unless the round has ended already."""
        return self if number != self.number or self.outcome is not None else replace(self, outcome=outcome)

    def remove(self, node_rank: int, process: str, *, nnodes: int, min_workers: int | None) -> Self:
        """Go on without a launcher that left, or was lost."""
        if not self._has(node_rank, process):
            return self
        nodes = {rank: node for rank, node in self.nodes.items() if rank != node_rank}
        return replace(self, nodes=nodes)._begin(nnodes, min_workers)

    def _has(self, node_rank: int, process: str) -> bool:
        return node_rank in self.nodes and self.nodes[node_rank].process == process

    def _begin(self, nnodes: int, min_workers: int | None) -> Self:
        """Begin the round if all who take part are ready, and they are all machines or enough workers."""
        ready = {rank: node for rank, node in sorted(self.nodes.items()) if node.ready_for == self.number}
        world_size = sum(node.workers for node in ready.values())
        if self.begun is not None or self.outcome is not None or not ready or len(ready) < len(self.nodes):
            return self
        if len(ready) < nnodes and (min_workers is None or world_size < min_workers):
            return self
        first_ranks, first = {}, 0
        for rank, node in ready.items():
            first_ranks[rank] = first
            first += node.workers
        master = next(iter(ready.values()))
        is_one_machine = all(is_loopback(node.address) for node in ready.values())
        reaches_all = is_one_machine or not is_loopback(master.address)
        begun = Begun(
            master_addr=master.address if reaches_all else master.outer_address,
            master_port=master.port,
            first_ranks=first_ranks,
            world_size=world_size,
        )
        return replace(self, begun=begun)


def _read_begun(fields: Mapping[str, object] | None) -> Begun | None:
    if fields is None:
        return None
    begun = Begun(**fields)  # type: ignore[arg-type]  # a record of other fields raises TypeError, which is caught
    return replace(begun, first_ranks={int(rank): first for rank, first in begun.first_ranks.items()})
