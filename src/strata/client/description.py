"""What a coordinator says of itself: where its channel is, and who leads."""

from __future__ import annotations

import time
from typing import NamedTuple
from urllib.parse import urlsplit

import grpc

from strata.address import host_on_certificate, reachable
from strata.client.dial import Dial
from strata.errors import CoordinatorLostError, UnauthenticatedError
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs


class TrustedUrl(NamedTuple):
    """A URL that a coordinator told, and the host that must stand on its certificate."""

    url: str
    host: str


def describe(dial: Dial, address: str, *, name: str, timeout_s: float) -> pb.Description:
    """Ask the coordinator at an address; one that refuses is not waited for.

    Raise CoordinatorLostError, UntrustedCoordinatorError, or UnauthenticatedError if it wants another token.
    """
    began_s = time.monotonic()
    # Connections that failed before must not count: gRPC would let this one wait for them.
    with dial.open_grpc(address, name=name, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            description: pb.Description = stubs.CoordinatorStub(channel).Describe(pb.Describe(), timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise UnauthenticatedError(str(error.details())) from error
            lost = CoordinatorLostError(address, waited_s=time.monotonic() - began_s)
            # One that is silent is not asked why: another one may lead, and waits to be found.
            is_silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise ((None if is_silent else dial.find_tls_problem(address, name=name)) or lost) from error
        return description


def leads(description: pb.Description) -> bool:
    """Whether it leads; one of before there were replicas does not say so, names no leader, and does."""
    if description.HasField("is_leader"):
        return description.is_leader
    return not (description.leader or description.term)


def trusted_url(told: str, address: str, name: str) -> TrustedUrl:
    """Return a URL told by a coordinator that was reached at an address and trusted by a name, or raise ValueError."""
    url = reachable(told, address)
    return TrustedUrl(url, host_on_certificate(urlsplit(url).hostname or "", name))
