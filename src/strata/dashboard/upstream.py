"""The coordinator's HTTP API, forwarded: so that the page and the API have one origin wherever the page is served."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import h11
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from strata.address import MAX_ADDRESSES, Endpoints, host_on_certificate, join_address, parse_host_port, split_address
from strata.client.credentials import Credentials
from strata.client.dial import HEADER, NO_CERTIFICATE, Dial, describe_tls_error
from strata.errors import AccessError

CONNECT_S: Final = 5.0
HEAD_S: Final = 15.0
# Longer than the pause between two signs of life in a stream of events.
BODY_S: Final = 60.0
_READ_BYTES: Final = 64 << 10
_ASKED: Final = ("accept", "accept-encoding", "if-none-match", "last-event-id")
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"trailer", b"te", b"date", b"server"}
)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The head of an answer, on a connection that its body comes on."""

    head: h11.Response
    parser: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def header(self, name: bytes) -> str:
        return next((value.decode("latin-1") for key, value in self.head.headers if key == name), "")

    def stream(self) -> Response:
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in self.head.headers
            if name not in _HOP_BY_HOP
        }
        return StreamingResponse(_body(self.parser, self.reader, self.writer), self.head.status_code, headers)


class Upstream:
    """Where the coordinators' HTTP API is. Each request is forwarded on a connection of its own.

    Of several coordinators the one that answered last is asked first. A standby says who leads, and that one is asked
    instead of telling the browser, which may not reach it.
    """

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        """Reach the API with these credentials. A request that brings a token of its own goes with that one alone."""
        scheme, separator, rest = url.partition("://")
        if not separator:
            scheme, rest = "http", url
        hosts = rest.removesuffix("/").split(",")
        if scheme not in ("http", "https") or len(hosts) > MAX_ADDRESSES:
            raise ValueError(f"{_shown(url)!r} is no address of a coordinator; use http://HOST:8080")
        self._scheme = scheme
        self._addresses = list(dict.fromkeys(self._address_of(host, url) for host in hosts))
        self.url = f"{scheme}://{','.join(self._addresses)}"
        endpoints = Endpoints(tuple(self._addresses), scheme == "https")
        self._dial = Dial(endpoints, credentials or Credentials())

    async def forward(self, request: Request) -> Response:
        """Ask the coordinators the same, and stream the answer; if there is none, say so as the API would."""
        refused: list[_Answer] = []
        reasons: list[str] = []
        try:
            for address in tuple(self._addresses):
                found = await self._ask_leader(address, request)
                if isinstance(found, str):
                    reasons.append(f"the coordinator at {self._scheme}://{address} does not answer: {found}")
                elif found.head.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
                    refused.append(found)
                else:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                    return found.stream()
            if refused:
                return refused.pop().stream()
        finally:
            for each in refused:
                each.writer.close()
        return JSONResponse({"detail": "; ".join(reasons)}, HTTPStatus.BAD_GATEWAY, {"Cache-Control": "no-store"})

    async def _ask_leader(self, address: str, request: Request) -> _Answer | str:
        """Ask a coordinator, and where it says that another one leads, that one."""
        found = await self._ask(address, request)
        if isinstance(found, str) or found.head.status_code != HTTPStatus.TEMPORARY_REDIRECT:
            return found
        found.writer.close()
        leader = urlsplit(found.header(b"location"))
        if leader.scheme != self._scheme or not leader.hostname:
            return f"it says that {leader.scheme}://{leader.netloc} leads, which is no address of its kind"
        name = host_on_certificate(leader.hostname, address)
        return await self._ask(join_address(leader.hostname, leader.port or self._default_port), request, name=name)

    async def _ask(self, address: str, request: Request, *, name: str | None = None) -> _Answer | str:
        """Return what one coordinator answers, or why it does not; ``name`` is the one on its certificate."""
        host, port = split_address(address)
        try:
            asked = self._request(request, address)
            async with asyncio.timeout(CONNECT_S):
                tls = self._dial.context_for(self.url)
                known_as = (name or host) if tls else None
                reader, writer = await asyncio.open_connection(host, port, ssl=tls, server_hostname=known_as)
        except ssl.SSLError as error:
            return describe_tls_error(error)
        except (OSError, TimeoutError, AccessError) as error:
            return str(error) or f"no connection within {CONNECT_S:g} s"
        parser = h11.Connection(h11.CLIENT)
        try:
            async with asyncio.timeout(HEAD_S):
                writer.write(parser.send(asked) or b"")
                writer.write(parser.send(h11.EndOfMessage()) or b"")
                await writer.drain()
                head = await _next_event(parser, reader)
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            writer.close()
            if not isinstance(error, h11.RemoteProtocolError):
                return str(error) or "no answer"
            # Closed without a byte, as a coordinator does with TLS 1.3 whose client has no certificate that it trusts.
            is_silent = parser.trailing_data == (b"", True)
            return (
                NO_CERTIFICATE if tls and is_silent else "it does not speak HTTP; give its HTTP port, 8080 by default"
            )
        assert isinstance(head, h11.Response)
        return _Answer(head, parser, reader, writer)

    def _request(self, request: Request, address: str) -> h11.Request:
        query = request.url.query
        headers = [("Host", address), ("Connection", "close")]
        headers += [(name, value) for name in _ASKED if (value := request.headers.get(name)) is not None]
        headers += self._authorization(request.headers.get(HEADER), address).items()
        # h11 takes text as ASCII; what a browser sends may be any byte that Starlette read as Latin-1.
        encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
        # As the browser wrote it: decoded and encoded again, a path could become another one.
        path = request.scope["raw_path"].decode("latin-1").partition("?")[0]
        return h11.Request(method=request.method, target=f"{path}?{query}" if query else path, headers=encoded)

    def _authorization(self, given: str | None, address: str) -> dict[str, str]:
        """Return the token that someone gave to the page, or else the one of the settings.

        A password that a proxy in front asked the browser for is not the coordinator's business.
        """
        if given is None or not given.lower().startswith("bearer "):
            return self._dial.headers(address)
        self._dial.refuse_plain(address)
        return {HEADER: given}

    @property
    def _default_port(self) -> int:
        return 443 if self._scheme == "https" else 8080

    def _address_of(self, host: str, url: str) -> str:
        try:
            return parse_host_port(host, default_port=self._default_port)
        except ValueError as error:
            raise ValueError(f"{_shown(url)!r} is no address of a coordinator: {error}; use http://HOST:8080") from None


def _shown(url: str) -> str:
    """Return what an error may show of a URL: what stands before an @ may be a secret."""
    return url.rpartition("@")[2]


async def _next_event(parser: h11.Connection, reader: asyncio.StreamReader) -> h11.Event | type[h11.PAUSED]:
    while True:
        event = parser.next_event()
        if event is not h11.NEED_DATA:
            if isinstance(event, h11.InformationalResponse):
                continue
            assert not isinstance(event, type) or event is h11.PAUSED
            return event
        parser.receive_data(await reader.read(_READ_BYTES))


async def _body(
    parser: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncIterator[bytes]:
    """Yield what comes until it ends. A coordinator that goes away in the middle ends it: the page asks again."""
    try:
        with suppress(OSError, TimeoutError, h11.RemoteProtocolError):
            while True:
                async with asyncio.timeout(BODY_S):
                    event = await _next_event(parser, reader)
                if not isinstance(event, h11.Data):
                    return
                yield bytes(event.data)
    finally:
        writer.close()
