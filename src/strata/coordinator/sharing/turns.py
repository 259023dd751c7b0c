"""Turns: whose request is next where several tenants share a coordinator.

Tenants that have requests waiting are served one request each in turn, so one that floods waits for itself. A slice of
the work is done at a time, and then the sockets are looked at again: a request of a quiet tenant waits for one slice,
however much the others sent. What a tenant has waiting is bounded too: above that its connections are not read from,
because reading is work that nobody else should wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

# So long is worked before the sockets are looked at; a heartbeat takes a fiftieth of a millisecond.
SLICE_S = 0.0001
# A tenant that is alone waits for nobody but itself, and each look at the sockets costs it time.
LONE_SLICE_S = 0.02
# A tenant with so many requests waiting for their turn, or so many bytes without an answer, is not read from.
MAX_WAITING = 64
MAX_HELD_BYTES = 256 << 10

Request = Callable[[], None]


class _Line:
    """What waits of one tenant: requests, and before them the rest of those that had their turn already."""

    __slots__ = ("requests", "rest")

    def __init__(self) -> None:
        self.rest: deque[Request] = deque()
        self.requests: deque[Request] = deque()

    def __bool__(self) -> bool:
        return bool(self.rest or self.requests)

    def next(self) -> Request:
        return self.rest.popleft() if self.rest else self.requests.popleft()


class Share:
    """What the connections of one tenant hold together."""

    __slots__ = ("connections", "held_bytes")

    def __init__(self) -> None:
        self.connections = 0
        self.held_bytes = 0
        """The bytes of requests that were read and have no answer yet."""


class Turns:
    """The requests that wait, by tenant. ``soon`` calls something in the loop's next turn."""

    def __init__(self, soon: Callable[[Callable[[], None]], object], time_s: Callable[[], float]) -> None:
        self._soon = soon
        self._time_s = time_s
        self._shares: dict[str, Share] = {}
        # In the order in which they have their turn.
        self._waiting: dict[str, _Line] = {}
        # What lets a connection be read from again, in the order in which they were stopped.
        self.stopped: dict[str, deque[Callable[[], None]]] = {}
        self._is_due = False
        self.must_wait = False
        """Whether requests wait for a turn; a tenant that is alone, with nothing waiting, is served at once."""
        self.after_slice: Callable[[], None] = lambda: None
        """Called after each slice of work: to send what came of it, before anything more is read."""

    @property
    def is_shared(self) -> bool:
        """Whether several tenants are connected."""
        return len(self._shares) > 1

    def enter(self, tenant: str) -> Share:
        """Note a connection of a tenant; return what all of that tenant's have together."""
        share = self._shares.setdefault(tenant, Share())
        share.connections += 1
        self.must_wait = self.is_shared or bool(self._waiting)
        return share

    def leave(self, tenant: str) -> None:
        """Note that a connection is closed."""
        share = self._shares[tenant]
        share.connections -= 1
        if not share.connections:
            del self._shares[tenant]
        # What waits is served in its order, before anything is served at once again.
        self.must_wait = self.is_shared or bool(self._waiting)

    def look_again(self) -> None:
        """See whether a connection that was stopped may be read from, because something was answered."""
        self._call_soon()

    def add(self, tenant: str, request: Request) -> None:
        """Let a request wait for its tenant's turn."""
        self._line(tenant).requests.append(request)

    def add_rest(self, tenant: str, request: Request) -> None:
        """Let the rest of a request that waited for the disk be done before all other requests of its tenant.

        Their answers would overtake it otherwise.
        """
        self._line(tenant).rest.append(request)

    def has_rest(self, tenant: str) -> bool:
        """Whether a tenant has requests whose rest is not done, which nothing that came later may overtake."""
        line = self._waiting.get(tenant)
        return line is not None and bool(line.rest)

    def finish(self) -> None:
        """Do the rest of all that had its turn, because nothing more is taken."""
        for line in list(self._waiting.values()):
            while line.rest:
                line.rest.popleft()()

    def is_busy(self, tenant: str) -> bool:
        """Whether a tenant has so much waiting that no connection of it should be read from."""
        return self.is_shared and self._has_much(tenant, MAX_WAITING, MAX_HELD_BYTES)

    def when_read(self, tenant: str, read: Callable[[], None]) -> None:
        """Call ``read`` when a tenant has little waiting; one connection after the other is read from again."""
        self.stopped.setdefault(tenant, deque()).append(read)
        self._call_soon()

    def _has_much(self, tenant: str, count: int, size_bytes: int) -> bool:
        line, share = self._waiting.get(tenant), self._shares.get(tenant)
        return (line is not None and len(line.requests) >= count) or (
            share is not None and share.held_bytes >= size_bytes
        )

    def _line(self, tenant: str) -> _Line:
        self._call_soon()
        line = self._waiting.get(tenant)
        if line is None:
            line = self._waiting[tenant] = _Line()
            # Served at once, a request would overtake what waits.
            self.must_wait = True
        return line

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._soon(self._work)

    def _work(self) -> None:
        self._is_due = False
        until_s = self._time_s() + (SLICE_S if self.is_shared else LONE_SLICE_S)
        waiting = self._waiting
        while waiting:
            tenant = next(iter(waiting))
            line = waiting.pop(tenant)
            if line:
                request = line.next()
                waiting[tenant] = line
                request()
            if self._time_s() >= until_s:
                break
        self.after_slice()
        self._read_again()
        if waiting:
            self._call_soon()
        else:
            self.must_wait = self.is_shared

    def _read_again(self) -> None:
        """Let one more connection of each tenant that has little waiting be read from."""
        for tenant in list(self.stopped):
            if self._has_much(tenant, MAX_WAITING // 2, MAX_HELD_BYTES // 2):
                continue
            stopped = self.stopped[tenant]
            stopped.popleft()()
            if stopped:
                self._call_soon()
            else:
                del self.stopped[tenant]
