"""Flow control: how much one connection can make the coordinator hold, and all of them together.

A client that does not read is disconnected; its workers come back in a new connection and are told again. A client that
asks faster than it can be answered is not read from until it has its answers.
"""

from __future__ import annotations

import logging
from typing import Protocol

log = logging.getLogger(__name__)

# A client that does not read has so much waiting for it and no more. One larger answer may go alone.
MAX_UNSENT_BYTES = 16 << 20
# No answer is larger: clients take no larger frame.
MAX_ANSWER_BYTES = 64 << 20
# So many requests of a connection, of so many bytes, may be without an answer before it is not read from.
MAX_UNDER_WAY = 1_000
MAX_UNDER_WAY_BYTES = 4 << 20
# As so many bytes a small request counts, for it costs more than its size.
LEAST_BYTES = 4 << 10
# How often a connection that waits because of a quota of requests looks whether it still holds.
RATE_LOOK_S = 1.0
# And so many where tenants share: what is read before its turn is read in vain for all others.
MAX_SHARED_UNDER_WAY = 64


class Connection(Protocol):
    """Something that bytes wait in until its client reads them."""

    def unsent_bytes(self) -> int:
        """Return how many bytes wait now."""
        ...

    def hang_up(self, reason: str) -> None:
        """Close the connection at once and drop what waits."""
        ...


class UnsentBudget:
    """The bytes that wait for all clients together; above the limit, those that hold most are disconnected."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held: dict[Connection, int] = {}
        self._total_bytes = 0

    def note(self, connection: Connection, size_bytes: int) -> None:
        """Note how much waits in a connection now; 0 forgets it."""
        known = self._held.pop(connection, 0)
        if size_bytes:
            self._held[connection] = size_bytes
        self._total_bytes += size_bytes - known
        if self._total_bytes > self.limit_bytes:
            self._relieve()

    def _relieve(self) -> None:
        # Sockets are written to behind our back, so much of what was noted may be gone.
        self._held = {connection: size for connection in self._held if (size := connection.unsent_bytes())}
        self._total_bytes = sum(self._held.values())
        if self._total_bytes <= self.limit_bytes:
            return
        # Down to three quarters, so that the next byte does not begin it again.
        largest = sorted(self._held, key=self._held.__getitem__, reverse=True)
        for connection in largest:
            if self._total_bytes <= self.limit_bytes * 3 // 4:
                return
            self._total_bytes -= self._held.pop(connection)
            connection.hang_up(f"{self.limit_bytes} bytes wait for clients, and most of them for this one")


class UnderWay:
    """The requests of one connection that have no answer yet."""

    __slots__ = ("count", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read from the connection for now."""
        return self.count >= MAX_UNDER_WAY or self.size_bytes >= MAX_UNDER_WAY_BYTES
