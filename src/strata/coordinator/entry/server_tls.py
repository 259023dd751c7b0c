"""TLS of the coordinator: one certificate for gRPC, channel and HTTP, taken up anew whenever its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from strata.client.credentials import describe_pem_problem, refuse_passphrase
from strata.errors import TokenFileError

log = logging.getLogger(__name__)

WATCH_S = 1.0
_USABLE = object()


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """The files of a coordinator's TLS; with ``client_ca`` only clients with a certificate of it get in."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


class ServerTls:
    """What new connections are offered. Files that changed count from the next handshake on; open connections stay.

    Files that do not fit together, such as a new certificate whose key is not there yet, change nothing: the ones
    before are used until they do.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        # gRPC, the channel and HTTP shake hands in three threads.
        self._lock = threading.Lock()
        # What the files were when they were last found unusable, which is told once.
        self._refused: object = _USABLE
        self._channels: list[tuple[object, ssl.SSLContext]] = []
        self._version, self._context, self._grpc = self._read()

    def context(self) -> ssl.SSLContext:
        """Return the context of a socket that Python's own asyncio serves; each handshake gets the newest files."""
        listening = _new_context(self._config)
        listening.sni_callback = self._renew
        return listening

    def channel_context(self) -> ssl.SSLContext:
        """Return the context of the channel's socket, which :meth:`watch` renews in place.

        Its TLS engine does not call back into Python. So an authority of clients that was taken out of its file is
        refused by the channel only after a restart.
        """
        listening = _new_context(self._config)
        self._channels.append((self._version, listening))
        return listening

    async def watch(self) -> None:
        """Renew the contexts of channels until cancelled; to be run on the loop that serves them."""
        while True:
            await asyncio.sleep(WATCH_S)
            self._newest()
            for number, (version, context) in enumerate(self._channels):
                if version != self._version:
                    # Files that change again in this moment are read once more after the next pause.
                    with suppress(OSError):
                        _load(context, self._config)
                        self._channels[number] = self._version, context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the same for gRPC."""

        def fetch() -> grpc.ServerCertificateConfiguration:
            return self._newest()[1]

        is_mutual = self._config.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(self._grpc, fetch, require_client_authentication=is_mutual)

    def _renew(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._newest()[0]

    def _newest(self) -> tuple[ssl.SSLContext, grpc.ServerCertificateConfiguration]:
        with self._lock:
            version: object = None
            try:
                version = self._stat()
                if version != self._version:
                    self._version, self._context, self._grpc = self._read()
                    log.info("a new certificate is in use: %s", self._config.cert)
                self._refused = _USABLE
            except (OSError, TokenFileError) as error:
                if version != self._refused:
                    log.warning("the previous certificate stays in use: %s", error)
                self._refused = version
            return self._context, self._grpc

    def _read(self) -> tuple[object, ssl.SSLContext, grpc.ServerCertificateConfiguration]:
        config = self._config
        try:
            before = self._stat()
            context = _new_context(config)
            key, cert = config.key.read_bytes(), config.cert.read_bytes()
            authorities = None if config.client_ca is None else config.client_ca.read_bytes()
            if self._stat() != before:
                raise TokenFileError(str(config.cert), "it changes while it is read")
        except OSError as error:  # an SSLError too: no certificate, or the key of another one
            raise TokenFileError(" with ".join(map(str, config.files)), describe_pem_problem(error)) from error
        return before, context, grpc.ssl_server_certificate_configuration([(key, cert)], authorities)

    def _stat(self) -> Any:
        found = [path.stat() for path in self._config.files]
        return [(each.st_ino, each.st_mtime_ns, each.st_ctime_ns, each.st_size) for each in found]


def _new_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Refused instead of answered: a client could make the server work for free.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _load(context, config)
    return context


def _load(context: ssl.SSLContext, config: TlsConfig) -> None:
    context.load_cert_chain(config.cert, config.key, refuse_passphrase)
    if config.client_ca is not None:
        context.load_verify_locations(config.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
