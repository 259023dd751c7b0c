"""The leader search: which of several coordinators is tried next, after which pause, and for how long. Pure.

The replicas are tried in turn, beginning with the one that led last. One that does not lead may name the leader: it is
tried at once, and then the turn goes on. So a wrong hint costs one attempt, and two replicas that name each other do
not make a loop. A round without a leader is followed by a pause that grows with each round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from strata.client.worker.actions import Connect
from strata.clock import backoff_s

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0
# Several replicas are asked more often: a takeover takes seconds, and all wait for it.
MAX_PAUSE_OF_SEVERAL_S = 0.6
# An attempt at one address has time. One of several gets more with each round, because a host may just be slow; but
# two that are silent must not take a worker's lease.
ATTEMPT_S = 5.0
FIRST_ATTEMPT_OF_SEVERAL_S = 1.0
MAX_ATTEMPT_OF_SEVERAL_S = 2.0
# So many hints of one round are tried out of turn, whatever the replicas say.
MAX_HINTS = 2


class LeaderSearch:
    """The search of one client, from one leader to the next. ``chance`` gives numbers from 0 to 1."""

    def __init__(self, addresses: tuple[str, ...], chance: Callable[[], float]) -> None:
        self._configured = addresses
        self._chance = chance
        # Records of a name, by their address.
        self._names: dict[str, str] = {}
        self._turn: deque[str] = deque()
        self._tried: set[str] = set()
        self._hint: str | None = None
        self._hints = 0
        self._term = 0
        self._rounds = 0
        self._last = ""
        self._leader = ""

    def __str__(self) -> str:
        return ",".join(self._configured)

    def next(self) -> Connect:
        """Return whom to try next."""
        hint, self._hint = self._hint, None
        if hint is not None:
            return self._attempt(hint, delay_s=0.0)
        is_new_round = not self._turn
        if is_new_round:
            self._begin_round()
        return self._attempt(self._turn.popleft(), delay_s=self._pause_s(self._rounds - 1 if is_new_round else 0))

    def start(self) -> Connect:
        """Return whom to try first, at once."""
        self._begin_round()
        return self._attempt(self._turn.popleft(), delay_s=0.0)

    def hear(self, leader: str, term: int) -> None:
        """A replica does not lead, and says who does; old news and what was tried in this round already is ignored."""
        is_news = term > self._term
        is_open = term == self._term and leader not in self._tried
        self._term = max(self._term, term)
        if leader and leader != self._last and (is_news or is_open) and self._hints < MAX_HINTS:
            self._hints += 1
            self._hint = leader

    def resolve(self, name: str, addresses: tuple[str, ...]) -> None:
        """A name stands for several replicas: each of them has its turn, until the name is looked up again."""
        for address in reversed(addresses):
            self._names[address] = name
            if address not in self._tried:
                self._turn.appendleft(address)

    def found(self) -> None:
        """The one that was tried last leads: when it is lost, the search begins there, and with short pauses."""
        self._leader = self._last
        self._rounds = 0
        self._turn.clear()

    def suspect(self) -> None:
        """The leader is silent: it is tried after the others."""
        self._leader = ""

    def _begin_round(self) -> None:
        self._rounds += 1
        self._hints = 0
        self._tried.clear()
        self._names = {address: name for address, name in self._names.items() if address == self._leader}
        last = self._names.get(self._last, self._last)
        after_last = list(self._configured)
        if last in after_last:
            place = after_last.index(last) + 1
            after_last = after_last[place:] + after_last[:place]
        first = [self._leader] if self._leader else []
        self._turn.extend(dict.fromkeys([*first, *after_last]))
        # Once: a leader that does not come back is one replica among the others.
        self._leader = ""

    def _attempt(self, address: str, *, delay_s: float) -> Connect:
        self._tried.add(address)
        self._last = address
        timeout_s = ATTEMPT_S
        if self._is_several:
            timeout_s = min(MAX_ATTEMPT_OF_SEVERAL_S, FIRST_ATTEMPT_OF_SEVERAL_S * 2.0 ** min(self._rounds - 1, 8))
        return Connect(delay_s, address, self._names.get(address, address), timeout_s)

    def _pause_s(self, failures: int) -> float:
        max_s = MAX_PAUSE_OF_SEVERAL_S if self._is_several else MAX_PAUSE_S
        return backoff_s(failures, first_s=FIRST_PAUSE_S, max_s=max_s, chance=self._chance())

    @property
    def _is_several(self) -> bool:
        return len(self._configured) + len(self._names) > 1
