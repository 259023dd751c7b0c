"""A model of etcd: one history of revisions, transactions, leases that end by themselves, watches and compaction.

It has no nodes: a linearizable store is what etcd's own consensus makes of them. What its clients see of lost nodes,
late and missing answers, is done by whoever calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strata.wire._generated import etcd_pb2 as ep


class CompactedError(Exception):
    """The revision that was asked for has been forgotten."""


class LeaseNotFoundError(Exception):
    """A key was to hang on a lease that has ended; nothing was changed."""


@dataclass
class _Lease:
    ttl_s: float
    ends_s: float
    keys: set[bytes] = field(default_factory=set)


class EtcdModel:
    """Keys with revisions. Every method takes the time, because leases end with it."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self._keys: dict[bytes, ep.KeyValue] = {}
        # What each key held from a revision on; None where it was deleted.
        self._versions: dict[bytes, list[tuple[int, ep.KeyValue | None]]] = {}
        self._events: list[tuple[int, ep.Event]] = []
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1000

    # Keys.

    def range(self, request: ep.RangeRequest, now_s: float) -> ep.RangeResponse:
        """Read keys as they are now, or as they were at a revision."""
        self._expire(now_s)
        keys = self._keys if not request.revision else self._keys_at(request.revision)
        found = [keys[key] for key in sorted(_find(keys, request.key, request.range_end))]
        shown = found[: request.limit] if request.limit else found
        answer = ep.RangeResponse(header=self._header(), count=len(found), more=len(shown) < len(found))
        answer.kvs.extend(shown)
        return answer

    def transact(self, request: ep.TxnRequest, now_s: float) -> ep.TxnResponse:
        """Carry out one branch of a transaction, all of it under one revision."""
        self._expire(now_s)
        succeeds = all(self._holds(compare) for compare in request.compare)
        operations = request.success if succeeds else request.failure
        leases = {operation.request_put.lease for operation in operations if operation.HasField("request_put")}
        if not leases <= {0, *self._leases}:
            raise LeaseNotFoundError(f"one of {leases} has ended")
        if any(operation.WhichOneof("request") != "request_range" for operation in operations):
            self.revision += 1
        answer = ep.TxnResponse(succeeded=succeeds)
        for operation in operations:
            self._do(operation, answer.responses.add(), now_s)
        answer.header.CopyFrom(self._header())
        return answer

    def compact(self) -> None:
        """Forget what was before the present revision."""
        self.compacted = self.revision
        self._events = [(revision, event) for revision, event in self._events if revision > self.compacted]
        self._versions = {key: [(self.compacted, known)] for key, known in self._keys.items()}

    def events_from(self, start_revision: int, prefix: bytes) -> list[ep.WatchResponse]:
        """Return what changed under a prefix from a revision on, one answer for each revision."""
        if start_revision <= self.compacted:
            raise CompactedError(f"{start_revision} is before {self.compacted}")
        answers: dict[int, ep.WatchResponse] = {}
        for revision, event in self._events:
            if revision >= start_revision and event.kv.key.startswith(prefix):
                answer = answers.setdefault(revision, ep.WatchResponse(header=ep.ResponseHeader(revision=revision)))
                answer.events.append(event)
        return list(answers.values())

    # Leases.

    def grant(self, ttl_s: int, now_s: float) -> ep.LeaseGrantResponse:
        """Make a lease."""
        self._expire(now_s)
        self._next_lease += 1
        self._leases[self._next_lease] = _Lease(ttl_s, now_s + ttl_s)
        return ep.LeaseGrantResponse(header=self._header(), ID=self._next_lease, TTL=ttl_s)

    def renew(self, lease_id: int, now_s: float) -> ep.LeaseKeepAliveResponse:
        """Renew a lease; a TTL of 0 says that it has ended."""
        self._expire(now_s)
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.ends_s = now_s + lease.ttl_s
        return ep.LeaseKeepAliveResponse(
            header=self._header(), ID=lease_id, TTL=0 if lease is None else int(lease.ttl_s)
        )

    def revoke(self, lease_id: int, now_s: float) -> None:
        """End a lease, and delete the keys that hang on it."""
        self._expire(now_s)
        self._end(lease_id)

    def hold_leases(self, until_s: float) -> None:
        """Let no lease end before: there is no leader of etcd that could end it."""
        for lease in self._leases.values():
            lease.ends_s = max(lease.ends_s, until_s)

    def extend_all(self, now_s: float) -> None:
        """Let every lease begin anew, as etcd does when it elects a leader of its own."""
        self._expire(now_s)
        for lease in self._leases.values():
            lease.ends_s = now_s + lease.ttl_s

    def _expire(self, now_s: float) -> None:
        for lease_id in [each for each, lease in self._leases.items() if lease.ends_s <= now_s]:
            self._end(lease_id)

    def _end(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is not None and (keys := lease.keys & self._keys.keys()):
            self.revision += 1
            for key in sorted(keys):
                self._delete(key)

    # Small pieces.

    def _header(self) -> ep.ResponseHeader:
        return ep.ResponseHeader(revision=self.revision)

    def _keys_at(self, revision: int) -> dict[bytes, ep.KeyValue]:
        if revision < self.compacted:
            raise CompactedError(f"{revision} is before {self.compacted}")
        found = {}
        for key, versions in self._versions.items():
            held = [known for since, known in versions if since <= revision]
            if held and held[-1] is not None:
                found[key] = held[-1]
        return found

    def _holds(self, compare: ep.Compare) -> bool:
        known = self._keys.get(compare.key, ep.KeyValue())
        assert compare.result == ep.Compare.EQUAL
        match compare.target:
            case ep.Compare.CREATE:
                return known.create_revision == compare.create_revision
            case ep.Compare.MOD:
                return known.mod_revision == compare.mod_revision
            case ep.Compare.LEASE:
                return known.lease == compare.lease
            case _:
                raise AssertionError(f"the model does not compare {compare.target}")

    def _do(self, operation: ep.RequestOp, answer: ep.ResponseOp, now_s: float) -> None:
        match operation.WhichOneof("request"):
            case "request_put":
                self._put(operation.request_put)
                answer.response_put.SetInParent()
            case "request_delete_range":
                request = operation.request_delete_range
                keys = _find(self._keys, request.key, request.range_end)
                for key in keys:
                    self._delete(key)
                answer.response_delete_range.deleted = len(keys)
            case _:
                answer.response_range.CopyFrom(self.range(operation.request_range, now_s))

    def _put(self, request: ep.PutRequest) -> None:
        before = self._keys.get(request.key)
        if before is not None and before.lease in self._leases:
            self._leases[before.lease].keys.discard(request.key)
        if request.lease:
            self._leases[request.lease].keys.add(request.key)
        known = ep.KeyValue(
            key=request.key,
            value=request.value,
            lease=request.lease,
            create_revision=self.revision if before is None else before.create_revision,
            mod_revision=self.revision,
            version=1 if before is None else before.version + 1,
        )
        self._keys[request.key] = known
        self._versions.setdefault(request.key, []).append((self.revision, known))
        self._events.append((self.revision, ep.Event(type=ep.Event.PUT, kv=known)))

    def _delete(self, key: bytes) -> None:
        gone = self._keys.pop(key)
        self._versions[key].append((self.revision, None))
        if gone.lease in self._leases:
            self._leases[gone.lease].keys.discard(key)
        event = ep.Event(type=ep.Event.DELETE, kv=ep.KeyValue(key=key, mod_revision=self.revision))
        self._events.append((self.revision, event))


def _find(keys: Mapping[bytes, ep.KeyValue], key: bytes, range_end: bytes) -> list[bytes]:
    if not range_end:
        return [key] if key in keys else []
    return [each for each in keys if key <= each < range_end]
