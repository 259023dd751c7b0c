"""Calls to etcd: each has a deadline, and one that an endpoint does not answer goes to the next endpoint.

An error says whether the call may have been carried out. Of five published clients none could fence a write and keep a
lease through the death of etcd's leader, so this one speaks etcd's own protocol.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from strata.address import proxy_option
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.failing.faults import Fault, judge_etcd
from strata.wire._generated import etcd_pb2 as ep

log = logging.getLogger(__name__)

R = TypeVar("R")
M = TypeVar("M", bound=Message)
# One endpoint has so long to answer before the next is asked; etcd answers in milliseconds.
ATTEMPT_S = 1.0
# etcd makes passwords slow to check on purpose: 60 ms of its CPU, and much more when many log in at once.
LOGIN_S = 3.0
RETRY_S = 0.05
MAX_MESSAGE_BYTES = 192 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # etcd closes connections that ping it more often than every five seconds.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 2_000),
)
# What a member answers that is reached and fails; the others mean that no answer came.
_ANSWERED = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED})


class EtcdUnavailableError(Exception):
    """No answer came; the call may have been carried out, or may still be."""

    def __init__(self, problem: str, *, is_answered: bool = False) -> None:
        super().__init__(problem)
        self.is_answered = is_answered
        """Whether a member was reached, and failed."""


class EtcdRefusedError(Exception):
    """etcd refuses the call; it was not carried out."""

    def __init__(self, problem: str, fault: Fault) -> None:
        super().__init__(problem)
        self.fault = fault
        """What the caller has to do about it."""


class EtcdCompactedError(EtcdRefusedError):
    """etcd has forgotten the revision that was asked for."""


class EtcdClient:
    """One connection to an etcd cluster, for one thread at a time; :meth:`close` may come from any."""

    def __init__(self, target: EtcdTarget) -> None:
        self.target = target
        self._at = 0
        self._channel: grpc.Channel | None = None
        self._token: str | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """End what is under way, and let go of the connection."""
        self._closed.set()
        channel = self._channel
        if channel is not None:
            channel.close()

    def range(self, request: ep.RangeRequest, *, timeout_s: float = ATTEMPT_S) -> ep.RangeResponse:
        """Read keys."""
        return self._call("/etcdserverpb.KV/Range", request, ep.RangeResponse, timeout_s)

    def transact(self, request: ep.TxnRequest, *, timeout_s: float = ATTEMPT_S) -> ep.TxnResponse:
        """Carry out a transaction, once; after EtcdUnavailableError nobody knows whether it was."""
        return self._call("/etcdserverpb.KV/Txn", request, ep.TxnResponse, timeout_s)

    def grant_lease(self, ttl_s: int, *, timeout_s: float = ATTEMPT_S) -> ep.LeaseGrantResponse:
        """Make a lease; etcd may give a longer one than was asked for."""
        request = ep.LeaseGrantRequest(TTL=ttl_s)
        return self._call("/etcdserverpb.Lease/LeaseGrant", request, ep.LeaseGrantResponse, timeout_s)

    def revoke_lease(self, lease: int, *, timeout_s: float = ATTEMPT_S) -> None:
        """End a lease, and delete all keys that hang on it; one that has ended is fine."""
        request = ep.LeaseRevokeRequest(ID=lease)
        try:
            self._call("/etcdserverpb.Lease/LeaseRevoke", request, ep.LeaseRevokeResponse, timeout_s)
        except EtcdRefusedError as error:
            log.debug("lease %x: %s", lease, error)

    def renew_lease(self, lease: int, *, timeout_s: float = ATTEMPT_S) -> int:
        """Renew a lease and return for how many seconds it lasts from now; 0 if it has ended."""

        def renew(channel: grpc.Channel) -> Any:
            stream = channel.stream_stream(
                "/etcdserverpb.Lease/LeaseKeepAlive",
                request_serializer=ep.LeaseKeepAliveRequest.SerializeToString,
                response_deserializer=ep.LeaseKeepAliveResponse.FromString,
            )
            call = stream(iter([ep.LeaseKeepAliveRequest(ID=lease)]), timeout=timeout_s, metadata=self._metadata())
            try:
                return next(call)
            finally:
                call.cancel()

        answer: ep.LeaseKeepAliveResponse = self._attempt(renew)
        return answer.TTL

    def watch(self, prefix: bytes, *, start_revision: int) -> Watch:
        """Follow all keys under a prefix from a revision on."""
        return Watch(self, prefix, start_revision)

    def read(self, request: ep.RangeRequest, *, give_up_s: float) -> ep.RangeResponse:
        """Read keys from whichever endpoint answers; raise EtcdUnavailableError if none does until then."""
        return self.insist(lambda: self.range(request), give_up_s=give_up_s)

    def insist(self, call: Callable[[], R], *, give_up_s: float) -> R:
        """Make a call that may be repeated again and again, until it is answered or the time is over."""
        deadline_s = time.monotonic() + give_up_s
        while True:
            try:
                return call()
            except EtcdUnavailableError:
                if time.monotonic() >= deadline_s or self._closed.wait(RETRY_S):
                    raise

    def next_endpoint(self) -> None:
        """Leave an endpoint that does not answer; a token counts at all of them.

        If each late answer cost a login, an etcd that is busy would be kept busy by that.
        """
        self._at = (self._at + 1) % len(self.target.endpoints)
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _call(self, method: str, request: Any, kind: type[M], timeout_s: float) -> M:
        def call(channel: grpc.Channel) -> M:
            unary = channel.unary_unary(
                method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=kind.FromString,
            )
            answer: M = unary(request, timeout=timeout_s, metadata=self._metadata())
            return answer

        return self._attempt(call)

    def _attempt(self, call: Callable[[grpc.Channel], R]) -> R:
        try:
            return self._with_login(call)
        except (grpc.RpcError, ValueError, StopIteration) as error:
            # ValueError is gRPC's word for a channel that was closed, and StopIteration for a stream that ended.
            translated = _translated(error)
            if isinstance(translated, EtcdUnavailableError):
                self.next_endpoint()
            raise translated from error

    def _with_login(self, call: Callable[[grpc.Channel], R]) -> R:
        channel = self.connect()
        try:
            return call(channel)
        except grpc.RpcError as error:
            # A token lives some minutes; the call was refused before anything was done.
            if not self.target.user or not _is_token_over(error):
                raise
        self.forget_token()
        return call(self.connect())

    def forget_token(self) -> None:
        """Log in again before the next call: etcd does not know the token any more."""
        self._token = None

    def connect(self) -> grpc.Channel:
        """Return the connection to the present endpoint, logged in."""
        if self._closed.is_set():
            raise EtcdUnavailableError("the connection to etcd was closed")
        if self._channel is None:
            self._channel = _open(self.target, self.target.endpoints[self._at])
        if self.target.user and self._token is None:
            log_in = self._channel.unary_unary(
                "/etcdserverpb.Auth/Authenticate",
                request_serializer=ep.AuthenticateRequest.SerializeToString,
                response_deserializer=ep.AuthenticateResponse.FromString,
            )
            request = ep.AuthenticateRequest(name=self.target.user, password=self.target.password)
            self._token = log_in(request, timeout=LOGIN_S).token
        return self._channel

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        # With it etcd ends streams on a member that has lost its leader, instead of letting them wait.
        words = (("hasleader", "true"),)
        return words if self._token is None else (*words, ("token", self._token))


class Watch:
    """What changes under a prefix, in order; an iterator that ends with EtcdUnavailableError or EtcdCompactedError."""

    def __init__(self, client: EtcdClient, prefix: bytes, start_revision: int) -> None:
        request = ep.WatchRequest(
            create_request=ep.WatchCreateRequest(
                key=prefix, range_end=end_of(prefix), start_revision=start_revision, progress_notify=True
            )
        )
        self._client = client
        self._ended = threading.Event()

        def requests() -> Iterator[ep.WatchRequest]:
            yield request
            # etcd ends a watch whose client has ended its half of the stream.
            self._ended.wait()

        def open_stream(channel: grpc.Channel) -> Any:
            stream = channel.stream_stream(
                "/etcdserverpb.Watch/Watch",
                request_serializer=ep.WatchRequest.SerializeToString,
                response_deserializer=ep.WatchResponse.FromString,
            )
            return stream(requests(), metadata=client._metadata())

        self._call = client._attempt(open_stream)

    def __iter__(self) -> Iterator[ep.WatchResponse]:
        try:
            for answer in self._call:
                if answer.compact_revision:
                    raise EtcdCompactedError(
                        f"revision {answer.compact_revision} is the oldest that etcd knows", Fault.TRANSIENT
                    )
                if answer.canceled:
                    # So it is also told that its token has ended.
                    self._client.forget_token()
                    raise EtcdUnavailableError(f"the watch was cancelled: {answer.cancel_reason}")
                yield answer
        except (grpc.RpcError, ValueError) as error:
            if _is_token_over(error):
                self._client.forget_token()
            raise _translated(error) from error
        finally:
            self.close()
        raise EtcdUnavailableError("the watch ended")

    def close(self) -> None:
        """End the watch, from any thread."""
        self._ended.set()
        self._call.cancel()


def end_of(prefix: bytes) -> bytes:
    """Return the first key after all keys with a prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _open(target: EtcdTarget, endpoint: str) -> grpc.Channel:
    options = (*_OPTIONS, proxy_option())
    if not target.is_secure:
        return grpc.insecure_channel(endpoint, options=options)
    credentials = grpc.ssl_channel_credentials(target.ca, target.key, target.certificate)
    return grpc.secure_channel(endpoint, credentials, options=options)


def _is_token_over(error: Exception) -> bool:
    """Whether etcd does not take a token any more: its time is over, or users and roles have changed since."""
    if not isinstance(error, grpc.RpcError):
        return False
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or "auth store is old" in (error.details() or "")


def _translated(error: Exception) -> EtcdUnavailableError | EtcdRefusedError:
    if not isinstance(error, grpc.RpcError):
        return EtcdUnavailableError(str(error) or "the stream ended")
    code, words = error.code(), error.details() or ""
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in words:
        return EtcdCompactedError(words, Fault.TRANSIENT)
    fault = judge_etcd(code, words)
    if fault is Fault.UNKNOWN:
        return EtcdUnavailableError(f"{code.name}: {words}", is_answered=code in _ANSWERED)
    return EtcdRefusedError(f"{code.name}: {words}", fault)
