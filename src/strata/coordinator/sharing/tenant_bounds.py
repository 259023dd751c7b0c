"""What tenants use of the coordinator itself: connections, requests each second, and bytes of the journal.

The cluster knows the quotas, and this what of them is used. None of it is durable: connections and rates begin anew
with the process, and the journal is measured when it is read and when it is written.
"""

from __future__ import annotations

from collections import Counter

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.access.names import owner_of
from strata.cluster.access.tenant import quota_error
from strata.cluster.access.token_bucket import TokenBucket
from strata.coordinator.journal.entries import encode_entry
from strata.coordinator.journal.protocol import Entry
from strata.errors import QuotaExceededError, UnknownTenantError

# What makes the journal grow for good. Nothing that ends something is refused, nor what a worker says while it trains.
GROWING = frozenset({c.ConfigureJob, c.RegisterWorker, c.RegisterDataset, c.SetKey, c.AdoptCheckpoints, c.ReportPart})


class TenantBounds:
    """The use of all tenants; belongs to the coordinator's loop."""

    def __init__(self) -> None:
        self._channels: Counter[str] = Counter()
        self._buckets: dict[str, TokenBucket] = {}
        self._journal_bytes: Counter[str] = Counter()

    def check_channel(self, cluster: Cluster, tenant: str) -> None:
        """Raise QuotaExceededError if a tenant has all the connections that it may have."""
        limit, use = _quota(cluster, tenant, "channels"), self._channels[tenant]
        if limit is not None and use >= limit:
            raise quota_error(tenant, "channels", limit=limit, use=use)

    def open_channel(self, tenant: str) -> None:
        """Note a connection."""
        self._channels[tenant] += 1

    def close_channel(self, tenant: str) -> None:
        """Note that a connection is closed."""
        self._channels[tenant] -= 1

    def take_request(self, cluster: Cluster, tenant: str, now_s: float) -> float:
        """Count a request; return for how many seconds the tenant is not to be heard, because it sent too many."""
        rate_per_s = _quota(cluster, tenant, "requests_per_s")
        if rate_per_s is None:
            return 0.0
        bucket = self._buckets.get(tenant)
        if bucket is None or bucket.rate_per_s != rate_per_s:
            bucket = self._buckets[tenant] = TokenBucket(rate_per_s, now_s=now_s)
        return bucket.take(now_s)

    def rate_per_s(self, cluster: Cluster, tenant: str) -> float | None:
        """Return a tenant's quota of requests as it is now."""
        return _quota(cluster, tenant, "requests_per_s")

    def check_journal(self, cluster: Cluster, command: c.Command) -> QuotaExceededError | None:
        """Return why a command may not be written, if its tenant has all of the journal that it may have."""
        if type(command) not in GROWING or (isinstance(command, c.SetKey) and not command.value):
            return None
        tenant = owner_of(command)
        limit, use = _quota(cluster, tenant, "journal_bytes"), self._journal_bytes[tenant]
        return None if limit is None or use < limit else quota_error(tenant, "journal_bytes", limit=limit, use=use)

    def note_written(self, cluster: Cluster, entries: list[Entry]) -> None:
        """Count what was added to the journal by tenants that have a quota of it."""
        for entry in entries:
            tenant = owner_of(entry.command)
            if _quota(cluster, tenant, "journal_bytes") is not None:
                self._journal_bytes[tenant] += len(encode_entry(entry))

    def begin_journal(self, bytes_by_tenant: dict[str, int]) -> None:
        """Count anew: the journal holds a snapshot with so much of each tenant, and nothing else of it."""
        self._journal_bytes = Counter(bytes_by_tenant)

    def use(self, tenant: str) -> dict[str, int]:
        """Return how much a tenant uses, by the name of the quota."""
        return {"channels": self._channels[tenant], "journal_bytes": self._journal_bytes[tenant]}


def _quota(cluster: Cluster, tenant: str, name: str) -> float | None:
    try:
        quota: float | None = getattr(cluster.access.tenant(tenant).quotas, name)
    except UnknownTenantError:
        return None  # whatever it asks is refused by the cluster
    return quota
