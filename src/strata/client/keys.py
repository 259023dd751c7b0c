"""A job's keys, for tools that are not workers: small agreed values with compare-and-set."""

from __future__ import annotations

import uuid

from strata.client.questions import TIMEOUT_S, ask
from strata.cluster.replies import KeyValue
from strata.errors import UnknownJobError
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb


def get_key(url: str, job_id: str, key: str) -> KeyValue:
    """Return what a key holds, and the token with which to change it; token 0 says that there is none."""
    request = pb.GetKey(job_id=job_id, key=key)
    try:
        reply = ask(url, lambda stub: stub.GetKey(request, timeout=TIMEOUT_S))
    except UnknownJobError:
        return KeyValue()
    return _read(reply)


def set_key(url: str, job_id: str, key: str, value: bytes, *, token: int, writer: str | None = None) -> KeyValue:
    """Set a key if its token is still the one given, and return what it holds now; ``is_set`` says who won.

    To repeat a call whose reply was lost, give it the same ``writer``.
    """
    request = pb.SetKey(job_id=job_id, key=key, value=value, token=token, writer=writer or uuid.uuid4().hex)
    return _read(ask(url, lambda stub: stub.SetKey(request, timeout=TIMEOUT_S)))


def _read(reply: pb.KeyValue) -> KeyValue:
    found = convert.read_reply(KeyValue, reply)
    assert isinstance(found, KeyValue)
    return found
