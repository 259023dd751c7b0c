"""Files on web servers: ranges of them where the server gives ranges, else the whole file, once, through the cache."""

from __future__ import annotations

import asyncio
import http.client
import io
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from strata.data.files.cache import Cache
from strata.data.files.compressed import StreamedFile
from strata.data.files.remote import Fetches, RemoteFile
from strata.data.files.source import FileInfo, key_of
from strata.errors import CorruptObjectError, DataError, DatasetNotFoundError, ObjectChangedError, ObjectNotFoundError
from strata.storage.waits import Action, Request, note_problem, note_progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.data.files.random_access import ByteFile

READ_BYTES = 1 << 20
TIMEOUT_S = 60.0
ATTEMPTS = 4
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class WebFile:
    """What a server says of a file."""

    size_bytes: int
    version: str
    has_ranges: bool


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to another one, but without the token that is meant for the first, and for no one between."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if made is not None and (new.netloc != old.netloc or (old.scheme, new.scheme) == ("https", "http")):
            made.remove_header("Authorization")
        return made


_opener = urllib.request.build_opener(_Redirects)


class WebReader:
    """Reads ranges of URLs; what is read is of the version asked for, or an ObjectChangedError."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = dict(headers or {})

    async def read(self, path: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> bytes:
        """Return bytes of the file at the URL ``path``."""
        with _request("read", path):
            return await asyncio.to_thread(self._read, path, start, length, etag)

    def look(self, url: str) -> WebFile:
        """Ask for one byte, which shows size, version and whether there are ranges.

        Nothing more is read, unless the server does not say the size.
        """
        with _request("look up", url), self._open(url, {"Range": "bytes=0-0"}) as reply:
            version = reply.headers.get("ETag") or reply.headers.get("Last-Modified") or ""
            if reply.status == 206:
                size = (reply.headers.get("Content-Range") or "").rpartition("/")[2]
                if size.isdigit():
                    return WebFile(int(size), version, has_ranges=True)
            elif (length := reply.headers.get("Content-Length")) is not None:
                return WebFile(int(length), version, has_ranges=False)
        # How long the file is shows only at its end.
        with self.stream(url) as reply:
            size_bytes = sum(len(piece) for piece in iter(lambda: reply.read(READ_BYTES), b""))
        return WebFile(size_bytes, version, has_ranges=False)

    def stream(self, url: str) -> Any:
        """Return the whole file, to be read from its start."""
        with _request("read", url):
            return io.BufferedReader(_Reply(self._open(url, {}), url), READ_BYTES)

    def _read(self, url: str, start: int, length: int | None, etag: str | None) -> bytes:
        if length == 0:
            return b""
        end = "" if length is None else start + length - 1
        for attempt in range(ATTEMPTS):
            try:
                with self._open(url, {"Range": f"bytes={start}-{end}"}) as reply:
                    found = reply.headers.get("ETag")
                    if etag is not None and found is not None and found != etag:
                        raise ObjectChangedError(url, backend="web")
                    data: bytes = reply.read()
            except (http.client.IncompleteRead, ConnectionError, TimeoutError) as error:
                if attempt == ATTEMPTS - 1:
                    raise DataError(f"{url}: the server breaks off in the middle of its reply: {error}") from error
                continue
            if reply.status == 200:
                data = data[start : None if length is None else start + length]
            if length is None or len(data) == length:
                return data
        raise CorruptObjectError(url, backend="web", problem=f"{len(data)} bytes came where {length} were asked for")

    def _open(self, url: str, headers: Mapping[str, str]) -> Any:
        # Encoded as it is: a server that compresses on the fly would give ranges of something else.
        asked = {"Accept-Encoding": "identity", **self._headers, **headers}
        for attempt in range(ATTEMPTS):
            try:
                request = urllib.request.Request(url, headers=asked)  # noqa: S310 - only for http and https
                reply = _opener.open(request, timeout=TIMEOUT_S)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in (404, 410):
                    raise ObjectNotFoundError(url, backend="web") from error
                if error.code not in _RETRIED or attempt == ATTEMPTS - 1:
                    raise DataError(f"{url}: the server answers {error.code} {error.reason}") from error
                note_problem(f"the server answers {error.code}")
            except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
                # A connection that ends before there is a reply is no URLError.
                reason = getattr(error, "reason", error)
                if attempt == ATTEMPTS - 1:
                    raise DataError(f"{url}: the server cannot be reached: {reason}") from error
                note_problem(f"the server cannot be reached: {reason}")
            else:
                note_progress()
                return reply
        raise AssertionError("each attempt returned or raised")


class WebSource:
    """One file on a web server; its name is the last part of the URL."""

    selection: str

    def __init__(self, url: str, *, reader: WebReader | None = None) -> None:
        self.url, _, _ = url.rpartition("/")
        self.selection = unquote(urlsplit(url).path.rpartition("/")[2])
        self._address = url
        self._reader = reader or WebReader()
        self._fetches = Fetches()
        self._found: WebFile | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return WebSource, (self._address,)

    def list(self) -> Sequence[FileInfo]:
        """Ask the server for the file."""
        try:
            self._found = self._reader.look(self._address)
        except ObjectNotFoundError as error:
            hint = "check the URL; a directory cannot be listed, so name each file, as in part-{000..099}.parquet"
            raise DatasetNotFoundError(self._address, "there is no such file on the server", hint=hint) from error
        return [FileInfo(self.selection, self._found.size_bytes, self._found.version)]

    def name_of(self, path: str) -> str:
        """Return the URL of the file."""
        return self._address

    def open(self, info: FileInfo, cache: Cache | None) -> ByteFile:
        """Return the file; nothing is asked of the server yet."""
        if self.needs_cache(info):
            assert cache is not None
            return StreamedFile(
                self._stream, self._address, size_bytes=info.size_bytes, key=key_of(self, info), cache=cache
            )
        return RemoteFile(
            self._reader,
            self._address,
            name=self._address,
            size_bytes=info.size_bytes,
            etag=info.version if info.version.startswith(('"', "W/")) else None,
            key=key_of(self, info),
            cache=cache,
            fetches=self._fetches,
        )

    def needs_cache(self, info: FileInfo) -> bool:
        """Whether the server gives no ranges of it."""
        if self._found is None:
            self.list()
        assert self._found is not None
        return not self._found.has_ranges

    def read_beside(self, name: str) -> bytes | None:
        """Nothing: an index lies in the cache."""
        return None

    def write_beside(self, name: str, data: bytes) -> bool:
        """Never: what is on a web server is only read."""
        return False

    def _stream(self) -> Any:
        return self._reader.stream(self._address)


class _Reply(io.RawIOBase):
    """The content of a server's reply, of which each piece is waited for."""

    def __init__(self, reply: Any, url: str) -> None:
        self._reply = reply
        self._url = url

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _request("read", self._url):
            count: int = self._reply.readinto(buffer)
        return count

    def close(self) -> None:
        self._reply.close()
        super().close()


def _request(action: Action, url: str) -> Request:
    # Without a user or a query, which may be a signature.
    parts = urlsplit(url)
    return Request(parts.netloc.rpartition("@")[2], action, parts.path)
