"""Errors on the wire: the client raises the very error that the coordinator raised, with its fields.

Only errors of :mod:`strata.errors` travel; of any other it is only said that there was one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any

import grpc

from strata import errors
from strata.errors import StrataError
from strata.wire._generated import coordinator_pb2 as pb

# Where a gRPC status carries the whole error.
ERROR_TRAILER = "strata-error-bin"

# What a client in another language sees first. The first class that fits counts, so that a subclass can differ.
STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (errors.JournalUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (errors.UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (errors.AccessDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (errors.UnknownTenantError, grpc.StatusCode.NOT_FOUND),
    (errors.UnknownTokenError, grpc.StatusCode.NOT_FOUND),
    (errors.TenantExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (errors.TokenExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (errors.NotLeaderError, grpc.StatusCode.UNAVAILABLE),
    (errors.UnknownJobError, grpc.StatusCode.NOT_FOUND),
    (errors.UnknownWorkerError, grpc.StatusCode.NOT_FOUND),
    (errors.UnknownDatasetError, grpc.StatusCode.NOT_FOUND),
    (errors.DatasetConflictError, grpc.StatusCode.ALREADY_EXISTS),
    (errors.StepTakenError, grpc.StatusCode.ALREADY_EXISTS),
    (errors.MembershipError, grpc.StatusCode.ABORTED),
    (errors.BarrierCancelledError, grpc.StatusCode.CANCELLED),
    (errors.BarrierTimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.JobFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.QuotaExceededError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.PayloadTooLargeError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
    (StrataError, grpc.StatusCode.FAILED_PRECONDITION),
)
# Where an exception keeps what add_note gave it.
NOTES = "__notes__"
_VALUES = {"MissingWorker": errors.MissingWorker, "ConfigProblem": errors.ConfigProblem}


def status_of(error: Exception) -> grpc.StatusCode:
    """Return the gRPC status of an error."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def to_error(error: StrataError) -> pb.Error:
    """Return the message of an error: its declared fields, and the notes that were added to it."""
    fields = errors.fields_of(error)
    if notes := getattr(error, NOTES, None):
        fields[NOTES] = notes
    return pb.Error(kind=type(error).__name__, message=str(error), fields=json.dumps(fields, default=_plain))


def from_error(message: pb.Error) -> StrataError:
    """Return the error of a message; one that this version does not know is a StrataError with its text."""
    kind = getattr(errors, message.kind, None)
    if not isinstance(kind, type) or not issubclass(kind, StrataError):
        return StrataError(f"{message.kind}: {message.message}")
    sent = json.loads(message.fields or "{}", object_hook=_rich)
    known = (*errors.field_names(kind), NOTES)
    return errors.revive(kind, (message.message,), {name: sent[name] for name in known if name in sent})


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"": type(value).__name__, **asdict(value)}
    return str(value)


def _rich(value: dict[str, Any]) -> Any:
    kind = _VALUES.get(value.pop("", None)) if "" in value else None
    return value if kind is None else kind(**value)
