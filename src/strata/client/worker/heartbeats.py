"""Heartbeats: sent several times a lease, and the sign that a connection is dead when they are not answered. Pure."""

from __future__ import annotations

from collections.abc import Callable

from strata.client.worker.actions import Action, Send
from strata.client.worker.requests import Requests, Timers
from strata.cluster import commands as c

# The worker sends so many heartbeats in a lease.
BEATS_PER_LEASE = 4
# A heartbeat that is not answered for so much of a lease means that the connection is dead, whatever TCP says.
DEAD_AFTER_LEASES = 0.6


class Heartbeats:
    """The heartbeats of one connection after the other. ``on_dead`` is called when a connection does not answer."""

    def __init__(
        self,
        beat: c.Heartbeat,
        requests: Requests,
        timers: Timers,
        actions: list[Action],
        on_dead: Callable[[str], None],
    ) -> None:
        self.beat = beat
        """What the worker says of itself, with every heartbeat."""
        self._requests = requests
        self._timers = timers
        self._actions = actions
        self._on_dead = on_dead
        self._unanswered: set[int] = set()
        # Grows with each start and stop, so that timers of an earlier connection do nothing.
        self._round = 0
        self._lease_s = 0.0

    def start(self, lease_s: float) -> None:
        """Send heartbeats from now on."""
        self.stop()
        self._lease_s = lease_s
        self._send_again(self._round)

    def stop(self) -> None:
        """Send no more, and wait for no reply."""
        self._round += 1
        self._unanswered.clear()

    def send(self) -> None:
        """Send one now."""
        number, beat_round, patience_s = self._requests.next_number(), self._round, DEAD_AFTER_LEASES * self._lease_s
        self._unanswered.add(number)
        self._actions.append(Send(number, self.beat))

        def look() -> None:
            if number in self._unanswered and beat_round == self._round:
                self._on_dead(f"no answer to a heartbeat in {patience_s:g} s")

        self._timers.after(patience_s, look)

    def answered(self, number: int) -> None:
        """A reply has come, whatever it says: the connection works."""
        self._unanswered.discard(number)

    def _send_again(self, beat_round: int) -> None:
        if beat_round == self._round:
            self.send()
            self._timers.after(self._lease_s / BEATS_PER_LEASE, lambda: self._send_again(beat_round))
