"""The one place that knows how to reach a coordinator: with TLS or without, and with which token."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.request
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import grpc

from strata.address import Endpoints, is_loopback, parse_endpoints, proxy_option, split_address
from strata.client.credentials import Credentials
from strata.client.local_tokens import find_local_token
from strata.errors import UnsafeTokenError, UntrustedCoordinatorError

PROBE_TIMEOUT_S = 5.0
HEADER = "authorization"
NO_CERTIFICATE = (
    "it takes no connection from this client, and may want a certificate of an authority that it trusts: "
    "STRATA_TLS_CERT and STRATA_TLS_KEY"
)


@dataclass(frozen=True, slots=True)
class Dial:
    """Opens connections to the coordinators of one URL."""

    endpoints: Endpoints
    credentials: Credentials

    @classmethod
    def to(cls, url: str) -> Dial:
        """Return how to reach the coordinators of a URL, with the credentials of the settings."""
        return cls(parse_endpoints(url), Credentials.load())

    def open_grpc(
        self, address: str, *, name: str | None = None, options: Sequence[tuple[str, Any]] = ()
    ) -> grpc.Channel:
        """Return a gRPC channel; it connects when it is used. Each call carries the token as it is then.

        ``name`` is the address that stands on the certificate, where ``address`` is one of its records.
        """
        options = (proxy_option(), *options)
        if self.endpoints.is_secure:
            if name is not None and name != address:
                options = (*options, ("grpc.ssl_target_name_override", split_address(name)[0]))
            channel = grpc.secure_channel(address, self.credentials.grpc_credentials(), options=options)
        else:
            channel = grpc.insecure_channel(address, options=options)
        if self._has_token or find_local_token(address) is not None:
            return grpc.intercept_channel(channel, _WithToken(lambda: self.headers(address)))
        return channel

    def headers(self, address: str) -> dict[str, str]:
        """Return what a request carries to prove who sends it; raise UnsafeTokenError rather than show it to a wire."""
        if (local := find_local_token(address)) is not None:
            return {HEADER: f"Bearer {local}"}
        if not self._has_token:
            return {}
        self.refuse_plain(address)
        return {HEADER: f"Bearer {self.credentials.token()}"}

    def refuse_plain(self, address: str) -> None:
        """Raise UnsafeTokenError if a token would cross a network to this address unencrypted."""
        if not (self.endpoints.is_secure or self.credentials.is_insecure or is_loopback(split_address(address)[0])):
            raise UnsafeTokenError(address)

    def context_for(self, url: str) -> ssl.SSLContext | None:
        """Return the TLS of a wss:// or https:// URL; None for one without."""
        return self.credentials.ssl_context() if urlsplit(url).scheme in ("wss", "https") else None

    def open_http(self, request: urllib.request.Request, *, timeout_s: float, host: str | None = None) -> Any:
        """Send a request to the coordinator's HTTP API and return its response; never through a proxy.

        ``host`` is the one that stands on the certificate, if not that of the request.
        """
        where = urlsplit(request.full_url)
        for name, value in self.headers(where.netloc).items():
            # Not sent along where a redirect leads.
            request.add_unredirected_header(name.title(), value)
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if (context := self.context_for(request.full_url)) is not None:
            named = _NamedHandler(context, host) if host is not None else urllib.request.HTTPSHandler(context=context)
            handlers.append(named)
        return urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)

    def find_tls_problem(self, address: str, *, name: str) -> UntrustedCoordinatorError | None:
        """Return why no connection comes about though someone listens there; None if TLS is not the reason.

        ``name`` is the address that stands on the certificate, where ``address`` is one of its records.
        """
        host, port = split_address(address)
        probe = self._probe_tls if self.endpoints.is_secure else _probe_plain
        try:
            with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as plain:
                problem = probe(plain, split_address(name)[0])
        except OSError:
            return None
        return None if problem is None else UntrustedCoordinatorError(address, problem)

    def _probe_tls(self, plain: socket.socket, host: str) -> str | None:
        context = self.credentials.ssl_context()
        context.set_alpn_protocols(["h2"])
        try:
            with context.wrap_socket(plain, server_hostname=host) as secured:
                if secured.selected_alpn_protocol() != "h2":
                    return "what listens there is not gRPC; use the coordinator's port for gRPC, by default 50051"
                # Whether it takes this client's certificate it says with its first bytes, in TLS 1.3.
                return None if secured.recv(1) else NO_CERTIFICATE
        except TimeoutError as error:
            return describe_tls_error(error)
        except ConnectionError:
            return NO_CERTIFICATE
        except ssl.SSLError as error:
            return describe_tls_error(error)

    @property
    def _has_token(self) -> bool:
        return self.credentials.secret is not None or self.credentials.token_file is not None


def describe_tls_error(error: OSError) -> str:
    """Say in words what is wrong with a handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        reason = error.reason.lower().replace("_", " ")
        if "certificate required" in reason or "bad certificate" in reason or "unknown ca" in reason:
            return f"{NO_CERTIFICATE} ({reason})"
        return "it does not speak TLS there" if reason == "wrong version number" else reason
    return str(error) or type(error).__name__


def _probe_plain(plain: socket.socket, host: str) -> str | None:
    """Return that a port speaks TLS, where it was spoken to without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent to it and nothing believed: it is only asked which language it speaks.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(plain, server_hostname=host).close()
    except OSError:
        return None
    return "it speaks TLS, and the address does not; use grpcs:// or stratas://"


class _NamedConnection(http.client.HTTPSConnection):
    """A connection to a host whose certificate has another name."""

    def __init__(self, host: str, *, tls: ssl.SSLContext, name: str, **options: Any) -> None:
        super().__init__(host, context=tls, **options)
        self._tls = tls
        self._name = name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


class _NamedHandler(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        super().__init__(context=context)
        self._connect = partial(_NamedConnection, tls=context, name=name)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connect, request)


class _WithToken(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to every call. gRPC's own way to do so refuses connections without TLS, as on loopback."""

    def __init__(self, headers: Callable[[], dict[str, str]]) -> None:
        self._headers = headers

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._add(details), request)

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._add(details), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(self._add(details), requests)

    def _add(self, details: Any) -> Any:
        metadata = [*(details.metadata or ()), *self._headers().items()]
        return _Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, details.compression
        )


_Fields = namedtuple(  # noqa: PYI024 - gRPC looks for exactly these
    "_Fields", ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression")
)


class _Details(_Fields, grpc.ClientCallDetails):
    pass
