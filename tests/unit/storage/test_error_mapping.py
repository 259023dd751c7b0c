"""Errors of object stores: what each answer becomes, and that nothing of its text gets through."""

from __future__ import annotations

import pickle
import traceback

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError
from obstore.store import MemoryStore

from strata.errors import (
    ConfigError,
    CorruptObjectError,
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
    UnsafeStoreError,
)
from strata.storage import RetryPolicy
from strata.storage.object.error_mapping import configured, translated

SECRET = "planted-secret-value"
URL = f"https://user:{SECRET}@store.example/b/k?sig={SECRET}&X-Amz-Security-Token={SECRET}"


def answer(status: int, code: str = "") -> str:
    body = f"<Error><Code>{code}</Code><AWSAccessKeyId>{SECRET}</AWSAccessKeyId></Error>"
    return (
        f"Generic S3 error: Error performing PUT {URL} in 1.5s, after 3 retries, max_retries: 3, "
        f"retry_timeout: 180s - Server returned non-2xx status code: {status} X: {body}"
    )


def undeleted(code: str) -> str:
    """What obstore says of a batch of deletions that the store accepted, and of which it did not do one."""
    said = f"request failed for key {SECRET}/(code: x): as {SECRET} (code: {code})"
    return f'Generic S3 error: DeleteObjects {said}\n\nDebug source:\nGeneric {{ code: "{code}", path: "{SECRET}" }}'


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (GenericError(answer(503, "SlowDown")), StorageUnavailableError, "503 SlowDown (4 attempts"),
        (GenericError(answer(429)), StorageUnavailableError, "429"),
        (
            GenericError("HTTP error: ... kind: Timeout"),
            StorageUnavailableError,
            "no answer in time (1 attempt",
        ),
        (GenericError(f"{URL} kind: Connect"), StorageUnavailableError, "no connection"),
        (GenericError(answer(507)), StorageFullError, "507"),
        (GenericError(answer(400, "QuotaExceeded")), StorageFullError, "QuotaExceeded"),
        (GenericError(answer(400, "ExpiredToken")), StoragePermissionError, "ExpiredToken"),
        (GenericError(answer(400, "InvalidArgument")), StorageError, "400 InvalidArgument"),
        (
            GenericError("PUT http://169.254.169.254/latest/api/token"),
            StoragePermissionError,
            "no credentials",
        ),
        (PermissionDeniedError(answer(403, "AccessDenied")), StoragePermissionError, "docs/storage.md lists"),
        (PermissionDeniedError(answer(403, "RequestTimeTooSkewed")), StoragePermissionError, "clock"),
        (UnauthenticatedError(answer(401)), StoragePermissionError, "401"),
        (GenericError(undeleted("AccessDenied")), StoragePermissionError, "AccessDenied; grant these credentials"),
        (GenericError(undeleted("403")), StoragePermissionError, "refused: it answered 403"),
        (GenericError(undeleted("NoSuchKey")), ObjectNotFoundError, "no such object"),
        (GenericError(undeleted("InternalError")), StorageUnavailableError, "InternalError (1 attempt"),
        (GenericError(answer(404, "NoSuchUpload")), StorageUnavailableError, "NoSuchUpload"),
        (GenericError(f"NotPartial {URL}"), StorageError, "use a store that honours the Range header"),
        (FileNotFoundError(answer(404, "NoSuchKey")), ObjectNotFoundError, "no such object"),
        (FileNotFoundError(answer(404, "NoSuchBucket")), StorageError, "bucket does not exist"),
    ],
)
def test_an_answer_becomes_the_error_that_says_what_to_do_and_tells_no_secret(
    error: Exception, kind: type[StorageError], said: str
) -> None:
    with pytest.raises(kind) as caught, translated("job/x", "s3://bucket"):
        raise error
    assert type(caught.value) is kind
    assert said in str(caught.value)
    assert caught.value.path == "job/x"
    assert caught.value.hint
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert SECRET not in shown


@pytest.mark.parametrize(
    "error",
    [
        ObjectNotFoundError("a", backend="local"),
        ObjectExistsError("a", backend="local"),
        StoragePermissionError("a", backend="local", problem="no", hint="do"),
        StorageFullError("a", backend="local", problem="full"),
        StorageUnavailableError("a", backend="s3", problem="down", attempts=3, elapsed_s=1.5, hint="wait"),
        CorruptObjectError("a", backend="s3", problem="short"),
        InvalidKeyError("../a", "wrong"),
        UnsafeStoreError("a", backend="s3"),
    ],
)
def test_every_storage_error_survives_a_process_boundary(error: StorageError) -> None:
    revived = pickle.loads(pickle.dumps(error))
    assert type(revived) is type(error)
    assert str(revived) == str(error)
    assert vars(revived) == vars(error)


def test_a_retry_policy_without_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(ValueError, match="request_timeout_s"):
        RetryPolicy(request_timeout_s=0)


def test_waits_double_up_to_their_bound_and_jitter_only_shortens_them() -> None:
    policy = RetryPolicy(first_backoff_s=1, max_backoff_s=5)
    assert [policy.backoff_s(attempt, 1.0) for attempt in (1, 2, 3, 4, 10)] == [1, 2, 4, 5, 5]
    assert policy.backoff_s(2, 0.0) == 1


def test_a_system_without_authorities_is_told_which_package_it_lacks() -> None:
    said = (
        'Generic HTTP client error: builder error\n  source: General("No CA certificates were loaded from the system")'
    )
    with pytest.raises(ConfigError, match="install the package ca-certificates"), configured("s3://bucket"):
        raise GenericError(said)


def test_a_key_that_the_library_cannot_take_is_named_and_other_wrong_arguments_are_not_hidden() -> None:
    with pytest.raises(InvalidKeyError, match="the store cannot take this key") as caught, translated("a", "memory"):
        obstore.get(MemoryStore(), "a//b")
    assert caught.value.path == "a"
    with pytest.raises(ValueError, match="chunk_size"), translated("a", "memory"):
        raise ValueError("chunk_size must be positive")
