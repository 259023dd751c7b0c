"""The leader finder: for calls that are made one by one, where the leader is, also through a takeover."""

from __future__ import annotations

import random
import time

from strata.client.description import describe, leads
from strata.client.dial import Dial
from strata.client.name_records import find_records
from strata.client.worker.leader_search import LeaderSearch
from strata.errors import CoordinatorLostError, NotLeaderError, StrataError, UntrustedCoordinatorError
from strata.wire._generated import coordinator_pb2 as pb

# A takeover takes seconds; who looks for longer finds a cluster without a leader.
GIVE_UP_S = 20.0


class LeaderFinder:
    """The search of one call. An only address is not searched: what is wrong with it is said at once."""

    def __init__(self, url: str, *, give_up_s: float = GIVE_UP_S) -> None:
        self.dial = Dial.to(url)
        addresses = self.dial.endpoints.addresses
        self._search = LeaderSearch(addresses, random.SystemRandom().random)
        self._has_choice = len(addresses) > 1
        self._leads = False
        self._began_s = time.monotonic()
        self._give_up_s = give_up_s
        self._to = self._search.start()

    def find(self) -> tuple[str, str]:
        """Return address and name of the leader, or of who may lead: an only address is not asked whether it does."""
        self._look_up()
        if self._has_choice and not self._leads:
            self.describe_leader()
        return self._to.address, self._to.name

    def describe_leader(self) -> tuple[str, pb.Description]:
        """Return where the leader is, and what it says of itself."""
        while True:
            self._look_up()
            to = self._to
            try:
                description = describe(self.dial, to.address, name=to.name, timeout_s=to.timeout_s)
            except (CoordinatorLostError, UntrustedCoordinatorError) as error:
                self.leave(error)
                continue
            if leads(description):
                self._leads = True
                return to.address, description
            self.leave(NotLeaderError(description.leader, term=description.term))

    def leave(self, error: StrataError) -> None:
        """Go on to the next address, because of this error; raise it if there is none, or no time is left."""
        self._leads = False
        if isinstance(error, NotLeaderError):
            self._has_choice = True
            self._search.hear(error.leader, error.term)
        elif not self._has_choice:
            raise error
        to = self._search.next()
        waited_s = time.monotonic() - self._began_s
        if waited_s + to.delay_s > self._give_up_s:
            if isinstance(error, CoordinatorLostError):
                raise CoordinatorLostError(str(self._search), waited_s=waited_s) from error
            raise error
        time.sleep(to.delay_s)
        self._to = to

    def _look_up(self) -> None:
        """Take the records of a name in its place, if it has several."""
        to = self._to
        if to.address == to.name and not self._leads and (records := find_records(to.address)):
            self._has_choice = True
            self._search.resolve(to.name, records)
            self._to = self._search.next()
