"""A coordinator that lets nobody in without a token, in this process, with TLS or without; and ways to knock at it."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from strata.cluster import Limits
from strata.cluster.access import DEFAULT_TENANT, Role
from strata.cluster.access import administration as t
from strata.coordinator.entry.certificates import CertificateFiles, make_certificates
from strata.coordinator.entry.secret_tokens import make_token
from strata.coordinator.entry.server_tls import TlsConfig
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.testbed.pace import stretch


@dataclass
class Guarded:
    """Where it is, and its administrator's token."""

    coordinator: Coordinator
    files: CertificateFiles | None
    admin: str
    token_ids: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{'grpc' if self.files is None else 'grpcs'}://127.0.0.1:{self.coordinator.grpc_port}"

    @property
    def http_url(self) -> str:
        return f"{'http' if self.files is None else 'https'}://127.0.0.1:{self.coordinator.http_port}"

    async def make_tenant(self, tenant: str) -> None:
        await self.coordinator.dispatcher.ask(t.CreateTenant(tenant=tenant))

    async def make_token(self, role: Role, *, tenant: str = DEFAULT_TENANT, **fields: Any) -> str:
        """Make a token known, and return it."""
        token = make_token()
        command = t.CreateToken(tenant=tenant, token_id=token.token_id, sha256=token.sha256, role=role, **fields)
        await self.coordinator.dispatcher.ask(command)
        self.token_ids[token.text] = token.token_id
        return token.text

    async def revoke(self, token: str, *, tenant: str = DEFAULT_TENANT) -> None:
        await self.coordinator.dispatcher.ask(t.RevokeToken(tenant=tenant, token_id=self.token_ids[token]))

    def open_grpc(self) -> grpc.aio.Channel:
        address = f"127.0.0.1:{self.coordinator.grpc_port}"
        if self.files is None:
            return grpc.aio.insecure_channel(address)
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(self.files.ca.read_bytes()))

    async def call(self, name: str, request: Any, token: str | None, *, timeout_s: float = 10.0) -> Any:
        """Make a call with a token; return its answer, or the error of gRPC."""
        async with self.open_grpc() as channel:
            metadata = [] if token is None else [("authorization", f"Bearer {token}")]
            method = getattr(stubs.CoordinatorStub(channel), name)
            try:
                return await method(request, metadata=metadata, timeout=stretch(timeout_s))
            except grpc.aio.AioRpcError as error:
                return error

    def get(self, path: str, token: str | None, **headers: str) -> tuple[int, Any]:
        """Ask HTTP with a token; return the status and the answer."""
        request = urllib.request.Request(self.http_url + path, headers=headers)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        context = None if self.files is None else ssl.create_default_context(cafile=self.files.ca)
        try:
            with urllib.request.urlopen(request, timeout=stretch(10), context=context) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"{}")


@asynccontextmanager
async def guarding(folder: Path, *, tls: bool = False, mutual: bool = False, **options: Any) -> AsyncIterator[Guarded]:
    """Serve on free ports of this machine until the block ends."""
    files = make_certificates(folder / "tls", hosts=["localhost", "127.0.0.1"], days=1) if tls else None
    config = CoordinatorConfig(
        grpc_address="127.0.0.1:0",
        channel_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        version="test",
        state=f"sqlite://{folder}/journal.db",
        limits=Limits(lease_s=stretch(5), grace_s=stretch(2)),
        admin_token_file=folder / "admin-token",
        tls=None
        if files is None
        else TlsConfig(cert=files.cert, key=files.key, client_ca=files.ca if mutual else None),
        **options,
    )
    async with Coordinator(config) as coordinator:
        yield Guarded(coordinator, files, (folder / "admin-token").read_text().strip())
