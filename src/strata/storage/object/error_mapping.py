"""What an object store's answer means: the one place that puts obstore's errors into Strata's words.

Of obstore's text only the HTTP status, the store's error code and the number of retries are taken. The text
itself is dropped, and so is the chain to it: it holds URLs, and those can hold signatures.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from strata.errors import (
    ConfigError,
    ConfigProblem,
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS = re.compile(r"status code: (\d{3})")
# The last form is that of a batch of deletions: the store accepts it, and says of each object why it was not deleted.
_CODE = re.compile(
    r"<(?:Code|code)>(\w{1,80})</|\"(?:code|reason)\": ?\"(\w{1,80})\"|request failed for key .* \(code: (\w{1,80})\)"
)
_RETRIES = re.compile(r"after (\d+) retries")
_TRANSPORT = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode)\b")
_FULL_CODES = {"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "AccountQuotaExceeded"}
# Credentials that ran out come as 400, not as 403.
_TOKEN_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"}
_CLOCK_CODES = {"RequestTimeTooSkewed", "RequestExpired"}
# The store has lost what was uploaded, because it was restarted say; or it has completed the upload, and its answer was
# lost.
_LOST_UPLOAD_CODES = {"NoSuchUpload", "InvalidPart", "InvalidBlockList", "InvalidBlock"}
# Of one object in a batch; Azure has no words for it.
_DENIED_CODES = {"AccessDenied", "403"}
_NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}
# Where obstore looks for a role when it has found no other credentials.
_METADATA_ADDRESSES = ("169.254.", "metadata.google.internal", "metadata/identity")
_TRANSPORT_WORDS = {
    "Connect": "no connection",
    "Timeout": "no answer in time",
    "Interrupted": "the connection broke",
}


# What obstore calls a setting's problem when a store is opened, and what would be right.
_SETTINGS = {
    "MissingAccount": "an account: account=... or AZURE_STORAGE_ACCOUNT_NAME",
    "OpenCredentials": "a service account file that exists",
    "DecodeCredentials": "a service account file in Google's JSON format",
    "UnableToParseUrl": "an endpoint that is a URL",
    "No CA certificates": "certificates of authorities on this system; install the package ca-certificates",
}
_SOME_SETTING = "credentials and an endpoint in the forms that docs/storage.md shows"


class PreconditionFailedError(Exception):
    """The object is not the one that was asked for any more: it was replaced meanwhile."""


class RangeError(Exception):
    """The object ends before the range that was asked for begins."""


@contextmanager
def translated(path: str, backend: str) -> Iterator[None]:
    """Raise what obstore raises as an error of Strata's, with the time that it took."""
    started_s = time.monotonic()
    try:
        yield
    except FileNotFoundError as error:
        raise _not_found(str(error), path, backend) from None
    except AlreadyExistsError:
        raise ObjectExistsError(path, backend=backend) from None
    except PreconditionError:
        raise PreconditionFailedError from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise _refused(str(error), path, backend) from None
    except (BaseError, OSError) as error:
        raise _failed(str(error), path, backend, time.monotonic() - started_s) from None
    except ValueError as error:
        if "path" not in str(error):
            raise
        raise InvalidKeyError(path, "the store cannot take this key", backend=backend) from None


@contextmanager
def configured(backend: str) -> Iterator[None]:
    """Raise what obstore says about settings that it cannot use as a ConfigError, without quoting them."""
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        found = next((expected for name, expected in _SETTINGS.items() if name in str(error)), _SOME_SETTING)
        raise ConfigError([ConfigProblem(backend, "settings of the store", None, found)]) from None


def _not_found(text: str, path: str, backend: str) -> StorageError:
    if _code(text) in _NO_BUCKET_CODES:
        return StorageError("the bucket does not exist", path=path, backend=backend, hint="create it, or mend its name")
    if _code(text) in _LOST_UPLOAD_CODES:
        return _lost_upload(text, path, backend, 0.0)
    return ObjectNotFoundError(path, backend=backend)


def _lost_upload(text: str, path: str, backend: str, elapsed_s: float) -> StorageUnavailableError:
    return StorageUnavailableError(
        path,
        backend=backend,
        problem=_describe("the store does not have the parts of an upload any more", text),
        attempts=1,
        elapsed_s=elapsed_s,
        hint="write the object again",
    )


def _refused(text: str, path: str, backend: str) -> StorageError:
    code = _code(text)
    if code in _CLOCK_CODES:
        hint = "this machine's clock and the store's differ; set it right, e.g. with NTP"
    elif code == "AccessDenied":
        hint = "grant these credentials the rights that docs/storage.md lists"
    else:
        hint = "check the credentials (docs/storage.md says where they come from) and their rights"
    return StoragePermissionError(path, backend=backend, problem=_describe("refused", text), hint=hint)


def _failed(text: str, path: str, backend: str, elapsed_s: float) -> Exception:
    status, code = _status(text), _code(text)
    if any(address in text for address in _METADATA_ADDRESSES):
        return StoragePermissionError(
            path,
            backend=backend,
            problem="no credentials were found, and this machine has no role to ask for them",
            hint="set them in the environment, name a profile, or give the machine a role",
        )
    if status == 416 or "InvalidRangeRequest" in text:
        return RangeError()
    if "NotPartial" in text:
        return StorageError(
            "the store answered a range with the whole object",
            path=path,
            backend=backend,
            hint="Strata reads ranges, so use a store that honours the Range header",
        )
    if status == 507 or code in _FULL_CODES:
        return StorageFullError(path, backend=backend, problem=_describe("the store is full", text))
    if code == "NoSuchKey":
        return _not_found(text, path, backend)
    # A listing or a deletion that is refused comes without the class that other requests have.
    if code in _TOKEN_CODES | _DENIED_CODES or status in (401, 403):
        return _refused(text, path, backend)
    if code in _LOST_UPLOAD_CODES:
        return _lost_upload(text, path, backend, elapsed_s)
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        hint = "the request itself is at fault, so it was not sent again; check bucket, region and endpoint"
        return StorageError(_describe("not done", text), path=path, backend=backend, hint=hint)
    retries = _RETRIES.search(text)
    return StorageUnavailableError(
        path,
        backend=backend,
        problem=_describe("the store cannot be used", text),
        attempts=1 + int(retries[1]) if retries else 1,
        elapsed_s=elapsed_s,
        hint="see whether it is up and reachable; RetryPolicy sets how long Strata waits for it",
    )


def _describe(problem: str, text: str) -> str:
    answer = " ".join(str(each) for each in (_status(text), _code(text)) if each is not None)
    if not answer:
        kinds = [_TRANSPORT_WORDS[kind] for kind in _TRANSPORT.findall(text) if kind in _TRANSPORT_WORDS]
        return f"{problem}: {kinds[0]}" if kinds else problem
    return f"{problem}: it answered {answer}"


def _status(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def _code(text: str) -> str | None:
    found = _CODE.search(text)
    return found[found.lastindex or 0] if found else None
