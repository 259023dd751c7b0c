"""Reading the coordinator's HTTP API, for tools: where it is, and answers as JSON, asked for only if they changed."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from strata.client.description import TrustedUrl, trusted_url
from strata.client.dial import Dial, describe_tls_error
from strata.client.leader_finder import LeaderFinder
from strata.errors import CoordinatorLostError, StrataError, UntrustedCoordinatorError

TIMEOUT_S = 10.0


def find_http(url: str) -> TrustedUrl:
    """Return where the HTTP API of the leading coordinator is, or raise if it serves none."""
    finder = LeaderFinder(url)
    address, description = finder.describe_leader()
    if not description.http_url:
        raise StrataError(f"the coordinator at {address} serves no HTTP; start it without --no-http")
    _, name = finder.find()
    return trusted_url(description.http_url, address, name)


class HttpReader:
    """Answers of one HTTP API. What did not change since it was last asked for is not sent again.

    ``host`` is on its certificate, if not the one of the URL. ``coordinator`` says where to look for the leader when
    the API does not answer, or is a standby's.
    """

    def __init__(self, http_url: str, *, host: str | None = None, coordinator: str | None = None) -> None:
        self._url = http_url
        self._host = host
        self._coordinator = coordinator
        self._dial = Dial.to(http_url)
        self._known: dict[str, tuple[str, Any]] = {}
        self.time_s = time.time()
        """What time it was at the coordinator with the last answer."""

    @classmethod
    def of_leader(cls, url: str) -> HttpReader:
        """Return a reader of whoever leads the coordinators of a URL, now and after a takeover."""
        found = find_http(url)
        return cls(found.url, host=found.host, coordinator=url)

    def get(self, path: str, **query: Any) -> Any:
        """Return an answer, or raise what the coordinator says against the question."""
        try:
            return self._get(path, **query)
        except CoordinatorLostError:
            if self._coordinator is None:
                raise
            found = find_http(self._coordinator)
            if found.url == self._url:
                raise
            self._url, self._host, self._dial = found.url, found.host, Dial.to(found.url)
            return self._get(path, **query)

    def _get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{self._url}{path}{'?' if given else ''}{urllib.parse.urlencode(given)}"
        etag, known = self._known.get(target, ("", None))
        request = urllib.request.Request(target, headers={"If-None-Match": etag} if etag else {})  # noqa: S310 - http
        started_s = time.monotonic()
        try:
            with self._dial.open_http(request, host=self._host, timeout_s=TIMEOUT_S) as response:
                answer = json.load(response)
                self.time_s = float(response.headers.get("X-Strata-Time") or time.time())
                if response.headers.get("ETag"):
                    self._known[target] = response.headers["ETag"], answer
                return answer
        except urllib.error.HTTPError as error:
            with error:
                self.time_s = float(error.headers.get("X-Strata-Time") or time.time())
                if error.code == 304:
                    return known
                if error.code == 503 and self._coordinator is not None:
                    raise CoordinatorLostError(self._url, waited_s=time.monotonic() - started_s) from error
                raise StrataError(_detail(error)) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):
                raise UntrustedCoordinatorError(self._url, describe_tls_error(error.reason)) from error
            raise CoordinatorLostError(self._url, waited_s=time.monotonic() - started_s) from error
        except ssl.SSLError as error:
            # With TLS 1.3 a client that is refused learns it when it reads the answer, which urllib does not wrap.
            raise UntrustedCoordinatorError(self._url, describe_tls_error(error)) from error
        except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
            raise CoordinatorLostError(self._url, waited_s=time.monotonic() - started_s) from error
        except (ValueError, RecursionError) as error:
            raise StrataError(f"{target} answered with something that is not JSON: is Strata there?") from error


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{error.url} answered {error.code} {error.reason}"
