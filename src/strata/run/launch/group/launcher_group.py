"""The launchers of all machines of a job, as one of them takes part: it reads and changes what they agree on.

The agreement is one key of the job at the coordinator, so that no machine is special. Every launcher also looks whether
the next one is alive, by its claim, which is renewed every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from strata.address import parse_endpoints, split_address
from strata.client.unary import get_key, set_key
from strata.run.launch.group.addresses import OUTSIDE, find_own_address
from strata.run.launch.group.agreement import Agreement, Node, Outcome
from strata.run.launch.group.claim import RENEW_S, STALE_S, JobClaim, LauncherRecord
from strata.run.launch.group.torch_variables import Start

KEY = "launcher/group"


class LauncherGroup:
    """The part of one launcher. The methods wait for the coordinator, and raise if it is away: repeat them."""

    def __init__(
        self,
        claim: JobClaim,
        *,
        nnodes: int,
        min_workers: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the part of the launcher with this claim; ``min_workers`` are enough to go on without other machines."""
        self.agreement = Agreement()
        self.node_rank = claim.record.node_rank
        self._claim = claim
        self._process = claim.record.process
        self._nnodes = nnodes
        self._min_workers = min_workers
        self._clock = clock
        self._silence = Silence()
        self._looked_s = float("-inf")
        self._addresses = find_own_address(_host_of(claim.url)), find_own_address(OUTSIDE)

    @property
    def is_member(self) -> bool:
        """Whether this launcher takes part, as far as it knows."""
        own = self.agreement.nodes.get(self.node_rank)
        return own is not None and own.process == self._process

    @property
    def absent(self) -> list[int]:
        """The node ranks that are not ready for the present round."""
        nodes, number = self.agreement.nodes, self.agreement.number
        return [each for each in range(self._nnodes) if each not in nodes or nodes[each].ready_for != number]

    @property
    def unfinished(self) -> list[int]:
        """The node ranks that take part, and whose workers have not all finished in the present round."""
        return [rank for rank, node in self.agreement.nodes.items() if node.finished != self.agreement.number]

    @property
    def has_finished(self) -> bool:
        """Whether the workers of this machine have finished."""
        return self.is_member and self.node_rank not in self.unfinished

    @property
    def workers_elsewhere(self) -> int:
        """How many workers the other machines brought to the present round."""
        return sum(node.workers for rank, node in self.agreement.nodes.items() if rank != self.node_rank)

    def join(self, launchers: Sequence[LauncherRecord]) -> bool:
        """Take part with the launchers that live; return False while those of an earlier run are still leaving."""
        living = {record.node_rank: record.process for record in launchers}
        self._change(lambda agreement: agreement.join(self.node_rank, living))
        return self.is_member

    def is_over(self) -> bool:
        """Whether the others counted on this launcher, and ended the job before it joined."""
        agreement, _ = self._read()
        return agreement.outcome is not None and self.is_member

    def look(self) -> Agreement:
        """Return what is agreed on now, without the next launcher if it is lost."""
        self._read()
        if self._clock() - self._looked_s >= RENEW_S:
            self._looked_s = self._clock()
            self._check_next()
        return self.agreement

    def prepare(self, number: int, *, workers: int, port: int) -> Agreement:
        """Be ready for a round, if it is the present one."""
        address, outer_address = self._addresses
        node = Node(process=self._process, workers=workers, address=address, outer_address=outer_address, port=port)

        def prepare(agreement: Agreement) -> Agreement:
            if agreement.number != number:
                return agreement
            return agreement.prepare(self.node_rank, node, nnodes=self._nnodes, min_workers=self._min_workers)

        return self._change(prepare)

    def end_round(
        self, number: int, *, cause: str, recent_restarts: int | None = None, signature: str = ""
    ) -> Agreement:
        """End a round on all machines; see :meth:`Agreement.end_round`."""
        return self._change(
            lambda each: each.end_round(number, cause=cause, recent_restarts=recent_restarts, signature=signature)
        )

    def finish(self, number: int) -> Agreement:
        """Say that the workers of this machine have finished."""
        return self._change(lambda agreement: agreement.finish(self.node_rank, number))

    def give_up(self, number: int, *, code: int, reason: str) -> Agreement:
        """End the job on all machines."""
        outcome = Outcome(code=code, reason=f"the launcher of node rank {self.node_rank} gave up: {reason}")
        return self._change(lambda agreement: agreement.give_up(number, outcome))

    def leave(self) -> None:
        """Take part no longer."""
        self._remove(self.node_rank, self._process)

    def start_of(self, agreement: Agreement, members: Sequence[int]) -> Start | None:
        """Return the start of the present round as the workers here see it; None while it has not begun."""
        begun = agreement.begun
        if begun is None:
            return None
        first = begun.first_ranks[self.node_rank]
        return Start(
            master_addr=begun.master_addr,
            master_port=begun.master_port,
            ranks={member: first + index for index, member in enumerate(members)},
            world_size=begun.world_size,
            group_rank=list(begun.first_ranks).index(self.node_rank),
            group_world_size=len(begun.first_ranks),
            restarts=agreement.number,
        )

    def _check_next(self) -> None:
        others = sorted(self.agreement.nodes, key=lambda rank: (rank - self.node_rank - 1) % self._nnodes)
        if not others or others[0] == self.node_rank:
            return
        watched = others[0]
        process = self.agreement.nodes[watched].process
        record = self._claim.read(watched)
        if self._silence.is_lost(process, record, now_s=self._clock()):
            self._remove(watched, process)

    def _remove(self, node_rank: int, process: str) -> None:
        self._change(
            lambda agreement: agreement.remove(node_rank, process, nnodes=self._nnodes, min_workers=self._min_workers)
        )

    def _read(self) -> tuple[Agreement, int]:
        try:
            found = get_key(self._claim.url, self._claim.job_id, KEY)
        except BaseException:
            # While the coordinator was away nobody could renew a claim.
            self._silence = Silence()
            raise
        agreement = self.agreement = Agreement.from_bytes(found.value)
        return agreement, found.token

    def _change(self, change: Callable[[Agreement], Agreement]) -> Agreement:
        while True:
            agreement, token = self._read()
            changed = change(agreement)
            if changed == agreement:
                return changed
            made = set_key(self._claim.url, self._claim.job_id, KEY, changed.to_bytes(), token=token)
            if made.is_set:
                self.agreement = changed
                return changed


class Silence:
    """Tells whether a launcher is lost: its claim was not renewed for too long, as one other launcher sees it."""

    def __init__(self) -> None:
        self._heard: tuple[str, int] | None = None
        self._heard_s = 0.0

    def is_lost(self, process: str, record: LauncherRecord | None, *, now_s: float) -> bool:
        """Say so after a look at the claim of the launcher that runs as this process."""
        if record is None or record.process != process:
            return True
        heard = process, record.beat
        if heard != self._heard:
            self._heard, self._heard_s = heard, now_s
        return now_s - self._heard_s > STALE_S


def _host_of(url: str) -> str:
    return split_address(parse_endpoints(url).first)[0]
