"""etcd's own protocol in this process, over the simulator's model of it: it can refuse, hold back and go silent.

Its leases do not end by themselves: a test ends them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from strata.coordinator.etcd.target import EtcdTarget
from strata.wire._generated import etcd_pb2 as ep
from tests.simulation.replicas.etcd_model import CompactedError, EtcdModel, LeaseNotFoundError

# How often a watch without news looks whether its client is still there.
LOOK_S = 0.05
NOW_S = 0.0

Fault = tuple[grpc.StatusCode, str] | None


class ModelEtcd:
    """One endpoint. ``fault`` is asked before each call, in its thread: it may block, and says how the call fails."""

    def __init__(self) -> None:
        self.target = EtcdTarget(endpoints=(), prefix="strata")
        self.model = EtcdModel()
        self.fault: Callable[[str, Any], Fault] = lambda name, request: None
        self.is_watch_silent = False
        """Whether the watches that begin now bring nothing, although they stay open."""
        self.is_keep_alive_empty = False
        """Whether a stream of renewals ends without one."""
        self.watches: list[ep.WatchCreateRequest] = []
        self.answers: list[ep.WatchResponse] = []
        """What the next watch is answered with, in place of what changes."""
        self._changed = threading.Condition()

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key, as someone else."""
        self._transact(ep.RequestOp(request_put=ep.PutRequest(key=key, value=value)))

    def delete(self, key: bytes) -> None:
        """Delete a key, as someone else."""
        self._transact(ep.RequestOp(request_delete_range=ep.DeleteRangeRequest(key=key)))

    def find(self, prefix: bytes) -> dict[bytes, ep.KeyValue]:
        """Return the keys under a prefix."""
        end = prefix[:-1] + bytes((prefix[-1] + 1,))
        with self._changed:
            return {kv.key: kv for kv in self.model.range(ep.RangeRequest(key=prefix, range_end=end), NOW_S).kvs}

    def end_lease(self, lease: int) -> None:
        """End a lease, and with it the keys that hang on it."""
        self._do(lambda: self.model.revoke(lease, NOW_S))

    def _transact(self, *operations: ep.RequestOp) -> None:
        self._do(lambda: self.model.transact(ep.TxnRequest(success=operations), NOW_S))

    def _do(self, change: Callable[[], Any]) -> Any:
        with self._changed:
            done = change()
            self._changed.notify_all()
            return done

    # The calls.

    def handlers(self) -> dict[str, dict[str, Any]]:
        """Return the handlers of gRPC by service and name."""

        def grant(request: ep.LeaseGrantRequest) -> ep.LeaseGrantResponse:
            return self.model.grant(request.TTL, NOW_S)

        def revoke(request: ep.LeaseRevokeRequest) -> ep.LeaseRevokeResponse:
            self.model.revoke(request.ID, NOW_S)
            return ep.LeaseRevokeResponse()

        return {
            "KV": {
                "Range": self._unary("Range", ep.RangeRequest, lambda request: self.model.range(request, NOW_S)),
                "Txn": self._unary("Txn", ep.TxnRequest, lambda request: self.model.transact(request, NOW_S)),
            },
            "Lease": {
                "LeaseGrant": self._unary("LeaseGrant", ep.LeaseGrantRequest, grant),
                "LeaseRevoke": self._unary("LeaseRevoke", ep.LeaseRevokeRequest, revoke),
                "LeaseKeepAlive": _stream(self._keep_alive, ep.LeaseKeepAliveRequest),
            },
            "Watch": {"Watch": _stream(self._watch, ep.WatchRequest)},
        }

    def _unary(self, name: str, kind: Any, carry_out: Callable[[Any], Any]) -> Any:
        def serve(request: Any, context: Any) -> Any:
            self._check(name, request, context)
            try:
                return self._do(lambda: carry_out(request))
            except LeaseNotFoundError as error:
                context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            except CompactedError as error:
                context.abort(grpc.StatusCode.OUT_OF_RANGE, f"the revision was compacted: {error}")

        return grpc.unary_unary_rpc_method_handler(serve, kind.FromString, _serialize)

    def _check(self, name: str, request: Any, context: Any) -> None:
        fault = self.fault(name, request)
        if fault is not None:
            context.abort(*fault)

    def _keep_alive(self, requests: Iterator[ep.LeaseKeepAliveRequest], context: Any) -> Iterator[Any]:
        for request in requests:
            self._check("LeaseKeepAlive", request, context)
            if self.is_keep_alive_empty:
                return
            yield self._do(lambda request=request: self.model.renew(request.ID, NOW_S))

    def _watch(self, requests: Iterator[ep.WatchRequest], context: Any) -> Iterator[ep.WatchResponse]:
        request = next(requests).create_request
        self._check("Watch", request, context)
        is_silent, answers = self.is_watch_silent, self.answers
        self.answers = []
        self.watches.append(request)
        if not is_silent:
            yield ep.WatchResponse(created=True)
        yield from answers
        if answers:
            return
        start = request.start_revision
        while context.is_active():
            with self._changed:
                found = [] if is_silent else self.model.events_from(start, request.key)
                if not found:
                    self._changed.wait(LOOK_S)
            for answer in found:
                start = answer.header.revision + 1
                yield answer


def _stream(serve: Callable[[Iterator[Any], Any], Iterator[Any]], kind: Any) -> Any:
    return grpc.stream_stream_rpc_method_handler(serve, kind.FromString, _serialize)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


@contextmanager
def serving_model() -> Iterator[ModelEtcd]:
    """Serve an empty etcd until the block ends."""
    etcd = ModelEtcd()
    server = grpc.server(ThreadPoolExecutor(32, "model-etcd"))
    for service, handlers in etcd.handlers().items():
        name = f"etcdserverpb.{service}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    etcd.target = EtcdTarget(endpoints=(f"127.0.0.1:{port}",), prefix="strata")
    server.start()
    try:
        yield etcd
    finally:
        server.stop(None).wait()
