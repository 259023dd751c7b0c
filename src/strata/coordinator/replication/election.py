"""The election: what a coordinator may do, from what etcd told it and when. Pure; time comes in as an argument.

The lease belongs to the process. Its leader's key hangs on it, so etcd deletes the key when the lease ends, and another
one may create it. A renewal counts from when it was sent: etcd lets the lease run at least from then.

    STANDBY --won--> LEADING --no renewal in time--> SUSPECT --renewed--> LEADING
    LEADING, SUSPECT --lease ended, key gone, write refused--> STANDBY
    any --resign--> RESIGNED
"""

from __future__ import annotations

import math
from enum import StrEnum


class Role(StrEnum):
    """What a coordinator is among its replicas."""

    STANDBY = "standby"
    LEADING = "leading"
    SUSPECT = "suspect"
    """Its lease may have ended: it answers nothing, holds commands for a moment, and leads again if etcd says that the
    lease never ended."""
    RESIGNED = "resigned"


class Step(StrEnum):
    """What to ask etcd for next."""

    GRANT = "grant a lease"
    CAMPAIGN = "campaign"
    RENEW = "renew the lease"
    NOTHING = "nothing"


class Election:
    """One replica's part. ``margin_s`` is how long before the end of its lease a leader stops to answer.

    The margin covers etcd's own change of leaders, after which the old one may renew leases for a moment longer.
    """

    def __init__(self, *, lease_s: float, margin_s: float) -> None:
        if not 0 < margin_s < lease_s:
            raise ValueError(f"a margin of {margin_s:g} s; use more than 0 and less than the lease of {lease_s:g} s")
        self.lease_s = lease_s
        self.margin_s = margin_s
        self.role = Role.STANDBY
        self.lease = 0
        self.fence = 0
        """The create_revision of this leader's key; 0 if it does not lead."""
        self._confirmed_until_s = -math.inf
        self._leader_lease: int | None = None
        self._seen_revision = -1

    @property
    def hold_until_s(self) -> float:
        """Until when a leader that may not answer may hold commands; in the past for everyone else.

        By then its lease has ended, and the margin again has passed: if etcd has not confirmed the lease since, another
        replica leads, or etcd has no quorum.
        """
        return self.answer_until_s + 2 * self.margin_s

    @property
    def answer_until_s(self) -> float:
        """Until when a leader may answer; in the past for everyone else."""
        return self._confirmed_until_s if self.fence and self.role is not Role.RESIGNED else -math.inf

    def granted(self, lease: int, *, ttl_s: float, sent_s: float) -> None:
        """Etcd gave a lease."""
        self.lease = lease
        self._confirmed_until_s = sent_s + ttl_s - self.margin_s

    def renewed(self, lease: int, *, ttl_s: float, sent_s: float) -> None:
        """Etcd renewed a lease; 0 says that it has ended, and with it the leadership."""
        if lease != self.lease:
            return  # of a lease that was given up since
        if ttl_s <= 0:
            self.lease = 0
            self._confirmed_until_s = -math.inf
            self._stand_by()
            return
        # Answers may come in another order than they were sent for.
        self._confirmed_until_s = max(self._confirmed_until_s, sent_s + ttl_s - self.margin_s)

    def seen(self, leader_lease: int | None, *, revision: int) -> None:
        """Someone read the leader's key: on which lease it hangs, None if there is none, as of a revision of etcd."""
        if revision < max(self._seen_revision, self.fence):
            return  # older than what is known
        self._seen_revision = revision
        self._leader_lease = leader_lease
        if self.fence and leader_lease != self.lease:
            self._stand_by()

    def won(self, fence: int) -> None:
        """This one created the leader's key."""
        if self.role is Role.STANDBY and self.lease:
            self.role, self.fence, self._leader_lease = Role.LEADING, fence, self.lease
            self._seen_revision = max(self._seen_revision, fence)

    def deposed(self, fence: int) -> None:
        """Etcd refused a write of this leadership: another one leads, or nobody."""
        if fence == self.fence:
            self._stand_by()

    def resign(self) -> None:
        """Lead never again, because the process ends."""
        self.role, self.fence = Role.RESIGNED, 0

    def step(self, now_s: float, *, may_lead: bool) -> Step:
        """Return what to ask etcd for next; ``may_lead`` is whether this one knows the journal."""
        if self.role is Role.RESIGNED:
            return Step.NOTHING
        if self.fence:
            self.role = Role.LEADING if now_s < self._confirmed_until_s else Role.SUSPECT
            return Step.RENEW
        if not self.lease:
            return Step.GRANT
        # A campaign whose answer was lost may have been won: then the key hangs on this one's own lease.
        if may_lead and self._seen_revision >= 0 and self._leader_lease in (None, self.lease):
            return Step.CAMPAIGN
        return Step.RENEW

    def _stand_by(self) -> None:
        if self.role is not Role.RESIGNED:
            self.role, self.fence = Role.STANDBY, 0
