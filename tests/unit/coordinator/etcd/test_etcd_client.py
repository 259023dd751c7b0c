"""A call to etcd says whether it may have been carried out, and a watch says how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest

from strata.coordinator.etcd.etcd_client import (
    EtcdClient,
    EtcdCompactedError,
    EtcdRefusedError,
    EtcdUnavailableError,
)
from strata.wire._generated import etcd_pb2 as ep
from tests.testbed.network.model_etcd import ModelEtcd, serving_model
from tests.testbed.pace import stretch


@pytest.fixture
def etcd() -> Iterator[ModelEtcd]:
    with serving_model() as made:
        yield made


@pytest.fixture
def client(etcd: ModelEtcd) -> Iterator[EtcdClient]:
    made = EtcdClient(etcd.target)
    yield made
    made.close()


READ = ep.RangeRequest(key=b"strata/key")


@pytest.mark.parametrize(
    ("code", "words", "error", "message"),
    [
        (grpc.StatusCode.UNAVAILABLE, "no leader", EtcdUnavailableError, "UNAVAILABLE: no leader"),
        (grpc.StatusCode.INTERNAL, "", EtcdUnavailableError, "INTERNAL: "),
        (grpc.StatusCode.PERMISSION_DENIED, "not you", EtcdRefusedError, "PERMISSION_DENIED: not you"),
        (grpc.StatusCode.OUT_OF_RANGE, "has been compacted", EtcdCompactedError, "has been compacted"),
        (grpc.StatusCode.OUT_OF_RANGE, "a future revision", EtcdRefusedError, "OUT_OF_RANGE: a future revision"),
    ],
)
def test_an_error_says_whether_the_call_may_have_been_carried_out(
    etcd: ModelEtcd, client: EtcdClient, code: grpc.StatusCode, words: str, error: type[Exception], message: str
) -> None:
    etcd.fault = lambda *_: (code, words)
    with pytest.raises(error) as caught:
        client.range(READ, timeout_s=stretch(10))
    assert type(caught.value) is error
    assert str(caught.value) == message


def test_to_end_a_lease_that_etcd_refuses_to_end_is_no_error(etcd: ModelEtcd, client: EtcdClient) -> None:
    etcd.fault = lambda *_: (grpc.StatusCode.NOT_FOUND, "requested lease not found")
    client.revoke_lease(7, timeout_s=stretch(10))
    etcd.fault = lambda *_: (grpc.StatusCode.UNAVAILABLE, "no leader")
    with pytest.raises(EtcdUnavailableError):
        client.revoke_lease(7, timeout_s=stretch(10))


def test_a_client_that_was_closed_asks_nobody_and_is_not_insisted_on(etcd: ModelEtcd, client: EtcdClient) -> None:
    assert not client.range(READ, timeout_s=stretch(10)).kvs
    client.close()
    asked: list[str] = []
    etcd.fault = lambda name, _: asked.append(name)
    with pytest.raises(EtcdUnavailableError, match="the connection to etcd was closed"):
        client.read(READ, give_up_s=stretch(60))
    assert asked == []


def test_a_stream_that_ends_without_a_renewal_is_no_answer(etcd: ModelEtcd, client: EtcdClient) -> None:
    lease = client.grant_lease(5, timeout_s=stretch(10)).ID
    assert client.renew_lease(lease, timeout_s=stretch(10)) == 5
    etcd.is_keep_alive_empty = True
    with pytest.raises(EtcdUnavailableError, match="the stream ended"):
        client.renew_lease(lease, timeout_s=stretch(10))


def test_a_call_that_one_endpoint_does_not_answer_goes_to_the_next_when_it_is_repeated(etcd: ModelEtcd) -> None:
    target = replace(etcd.target, endpoints=("127.0.0.1:1", *etcd.target.endpoints))
    client = EtcdClient(target)
    try:
        with pytest.raises(EtcdUnavailableError):
            client.range(READ)
        assert client.range(READ, timeout_s=stretch(10)).header.revision == 1
    finally:
        client.close()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (ep.WatchResponse(compact_revision=9), EtcdCompactedError, "revision 9 is the oldest that etcd knows"),
        (
            ep.WatchResponse(canceled=True, cancel_reason="permission denied"),
            EtcdUnavailableError,
            "the watch was cancelled: permission denied",
        ),
        (ep.WatchResponse(), EtcdUnavailableError, "the watch ended"),
    ],
)
def test_a_watch_ends_with_the_reason(
    etcd: ModelEtcd, client: EtcdClient, answer: ep.WatchResponse, error: type[Exception], message: str
) -> None:
    etcd.answers = [answer]
    client._token = "known"
    with pytest.raises(error) as caught:
        list(client.watch(b"strata/", start_revision=1))
    assert type(caught.value) is error
    assert str(caught.value) == message
    # A token that is over ends a watch in the same way as any other refusal.
    assert (client._token is None) == answer.canceled


@pytest.mark.parametrize(
    ("code", "words", "is_forgotten"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "invalid auth token", True),
        (grpc.StatusCode.INVALID_ARGUMENT, "revision of auth store is old", True),
        (grpc.StatusCode.UNAVAILABLE, "no leader", False),
    ],
)
def test_a_watch_that_is_refused_for_its_token_has_the_client_log_in_again(
    etcd: ModelEtcd, client: EtcdClient, code: grpc.StatusCode, words: str, is_forgotten: bool
) -> None:
    etcd.fault = lambda *_: (code, words)
    client._token = "known"
    error = EtcdUnavailableError if code is grpc.StatusCode.UNAVAILABLE else EtcdRefusedError
    with pytest.raises(error, match=words):
        list(client.watch(b"strata/", start_revision=1))
    assert (client._token is None) == is_forgotten


def test_a_watch_whose_client_is_closed_while_it_is_read_ends(etcd: ModelEtcd, client: EtcdClient) -> None:
    watch = client.watch(b"strata/", start_revision=1)
    changes = iter(watch)
    assert next(changes).created
    etcd.put(b"strata/key", b"1")
    assert next(changes).events[0].kv.value == b"1"
    client.close()
    with pytest.raises(EtcdUnavailableError):
        next(changes)


class ClosedStream:
    """A stream whose channel is closed in the moment in which it is read: gRPC raises a ValueError then."""

    is_cancelled = False

    def __iter__(self) -> Iterator[ep.WatchResponse]:
        raise ValueError("Channel closed!")

    def cancel(self) -> None:
        self.is_cancelled = True


def test_a_watch_whose_channel_is_closed_in_the_same_moment_ends_as_unavailable(client: EtcdClient) -> None:
    client._token = "known"
    watch = client.watch(b"strata/", start_revision=1)
    watch.close()
    watch._call = stream = ClosedStream()
    with pytest.raises(EtcdUnavailableError, match="Channel closed!"):
        list(watch)
    assert stream.is_cancelled
    assert client._token == "known"
