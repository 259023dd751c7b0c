"""etcd as the replicas of a world reach it: answers come late or never, and what was lost may have been carried out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from strata.coordinator.etcd.etcd_client import (
    ATTEMPT_S,
    RETRY_S,
    EtcdClient,
    EtcdCompactedError,
    EtcdRefusedError,
    EtcdUnavailableError,
)
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.failing.faults import Fault
from strata.coordinator.journal.etcd import etcd_journal, records
from strata.coordinator.replication import follower
from strata.wire._generated import etcd_pb2 as ep
from tests.simulation.replicas.etcd_model import CompactedError, LeaseNotFoundError
from tests.simulation.replicas.virtual_threads import VirtualThread, current, sleep, wait

if TYPE_CHECKING:
    from tests.simulation.replicas.replica_world import ReplicaWorld

DELAYS_S = (0.002, 0.01, 0.1, 0.6)
WATCH_LAGS_S = (0.01, 0.1, 3.0)
MAX_PIECES = 4

_world: list[ReplicaWorld] = []


class SimulatedClient(EtcdClient):
    """The shipped client's interface, over the model; of the shipped one only what needs no connection is used."""

    def __init__(self, target: EtcdTarget) -> None:
        super().__init__(target)
        self._world = _world[-1]
        self._replica = self._world.find_replica(target.endpoints[0])
        self._closed = VirtualEvent()
        self._life = self._replica.life

    def close(self) -> None:
        self._closed.set()

    def range(self, request: ep.RangeRequest, *, timeout_s: float = ATTEMPT_S) -> ep.RangeResponse:
        def carry_out(now_s: float) -> ep.RangeResponse | EtcdCompactedError:
            try:
                return self._world.etcd.range(request, now_s)
            except CompactedError as error:
                self._world.tally["compacted reads"] += 1
                return EtcdCompactedError(str(error), Fault.TRANSIENT)

        answer: ep.RangeResponse = self._ask(carry_out, timeout_s)
        return answer

    def transact(self, request: ep.TxnRequest, *, timeout_s: float = ATTEMPT_S) -> ep.TxnResponse:
        def carry_out(now_s: float) -> ep.TxnResponse | EtcdRefusedError:
            puts = any(operation.HasField("request_put") for operation in request.success)
            if puts and self._world.etcd_full_until_s > now_s:
                problem = "RESOURCE_EXHAUSTED: etcdserver: mvcc: database space exceeded"
                return EtcdRefusedError(problem, Fault.TRANSIENT)
            try:
                answer = self._world.etcd.transact(request, now_s)
            except LeaseNotFoundError as error:
                return EtcdRefusedError(f"NOT_FOUND: {error}", Fault.TRANSIENT)
            if answer.succeeded and any(operation.request_put.lease for operation in request.success):
                # A new leader takes away what the last one wrote and did not live to make part of the journal.
                torn = any(done.response_delete_range.deleted for done in answer.responses)
                self._world.tally["torn batches"] += torn
            return answer

        answer: ep.TxnResponse = self._ask(carry_out, timeout_s)
        return answer

    def grant_lease(self, ttl_s: int, *, timeout_s: float = ATTEMPT_S) -> ep.LeaseGrantResponse:
        answer: ep.LeaseGrantResponse = self._ask(lambda now_s: self._world.etcd.grant(ttl_s, now_s), timeout_s)
        return answer

    def renew_lease(self, lease: int, *, timeout_s: float = ATTEMPT_S) -> int:
        answer: ep.LeaseKeepAliveResponse = self._ask(lambda now_s: self._world.etcd.renew(lease, now_s), timeout_s)
        return answer.TTL

    def revoke_lease(self, lease: int, *, timeout_s: float = ATTEMPT_S) -> None:
        self._ask(lambda now_s: self._world.etcd.revoke(lease, now_s), timeout_s)

    def watch(self, prefix: bytes, *, start_revision: int) -> Any:
        return _SimulatedWatch(self, prefix, start_revision)

    def insist(self, call: Callable[[], Any], *, give_up_s: float) -> Any:
        deadline_s = self._world.now_s + give_up_s
        while True:
            try:
                return call()
            except EtcdUnavailableError:
                if self._world.now_s >= deadline_s or self._closed.wait(RETRY_S):
                    raise

    def next_endpoint(self) -> None:
        pass

    def _ask(self, do: Callable[[float], Any], timeout_s: float) -> Any:
        """Send a request; without an answer in time, EtcdUnavailableError says that it may have been carried out."""
        if self._closed.is_set():
            raise EtcdUnavailableError("the connection to etcd was closed")
        world, replica = self._world, self._replica

        def ask(tell: Callable[[Any], None]) -> None:
            replica.later(timeout_s, lambda: tell(EtcdUnavailableError("DEADLINE_EXCEEDED: no answer")))
            self._closed.on_set(lambda: replica.later(0.0, lambda: tell(EtcdUnavailableError("closed"))))
            if replica.is_cut_off or world.rng.random() < world.loss_rate:
                return

            def arrive() -> None:
                # A request that was under way reaches etcd also when its sender is frozen or dead.
                if world.etcd_down_until_s > world.now_s:
                    return
                answer = do(world.now_s)
                world.checks.look(world.etcd)
                if not replica.is_cut_off and world.rng.random() >= world.loss_rate:
                    replica.later(self._delay_s(), lambda: tell(answer))

            world.at(self._delay_s(), arrive)

        return wait(ask)

    def _delay_s(self) -> float:
        return self._world.rng.choice(DELAYS_S) * self._world.rng.random() + self._world.etcd_delay_s


class _SimulatedWatch:
    """What changed, some time after it did; it ends when it is closed, when etcd is away, or when too much is gone."""

    def __init__(self, client: SimulatedClient, prefix: bytes, start_revision: int) -> None:
        self._client = client
        self._prefix = prefix
        self._next = start_revision
        self._is_closed = False

    def __iter__(self) -> Iterator[ep.WatchResponse]:
        world = self._client._world
        while True:
            self._client._closed.wait(world.rng.choice(WATCH_LAGS_S) * world.rng.random())
            if self._is_closed or self._client._closed.is_set():
                raise EtcdUnavailableError("the watch ended")
            if self._client._replica.is_cut_off or world.etcd_down_until_s > world.now_s:
                continue
            try:
                answers = world.etcd.events_from(self._next, self._prefix)
            except CompactedError as error:
                raise EtcdCompactedError(str(error), Fault.TRANSIENT) from error
            for answer in answers:
                self._next = answer.header.revision + 1
                yield answer

    def close(self) -> None:
        self._is_closed = True


class VirtualEvent:
    """An event whose waits pass in virtual time."""

    def __init__(self) -> None:
        self._is_set = False
        self._listeners: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def on_set(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def wait(self, timeout_s: float) -> bool:
        if not self._is_set:
            later = current().later

            def begin(resume: Callable[[Any], None]) -> None:
                later(timeout_s, lambda: resume(None))
                self.on_set(lambda: later(0.0, lambda: resume(None)))

            wait(begin)
        return self._is_set


class VirtualStart:
    """A thread, as the follower uses it."""

    def __init__(self, target: Callable[[], None], name: str, *, daemon: bool) -> None:
        self._target = target

        self._thread: VirtualThread | None = None

    def start(self) -> None:
        self._thread = _world[-1].starting.spawn(self._target)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.is_over

    def join(self) -> None:
        while self.is_alive():
            sleep(0.01)


def _cut(cut: Callable[[bytes], list[bytes]], piece_bytes: int, patch: pytest.MonkeyPatch, data: bytes) -> list[bytes]:
    """Cut a value into small pieces, but few: while a snapshot is written nothing else is."""
    patch.setattr(records, "PIECE_BYTES", max(piece_bytes, -(-len(data) // MAX_PIECES)))
    return cut(data)


@contextmanager
def simulated(world: ReplicaWorld) -> Iterator[None]:
    """Let the journal and the follower of the shipped code reach the model, in virtual time."""
    threads = SimpleNamespace(Event=VirtualEvent, Thread=VirtualStart, Semaphore=threading.Semaphore)
    with pytest.MonkeyPatch.context() as patch:
        for module in (etcd_journal, follower):
            patch.setattr(module, "EtcdClient", SimulatedClient)
            patch.setattr(module, "threading", threads)
            patch.setattr(module.log, "disabled", True)
        patch.setattr(etcd_journal, "time", SimpleNamespace(monotonic=lambda: world.now_s))
        patch.setattr(etcd_journal, "PAGE_KEYS", world.page_keys)
        patch.setattr(etcd_journal, "cut", partial(_cut, records.cut, world.piece_bytes, patch))
        _world.append(world)
        try:
            yield
        finally:
            _world.pop()
