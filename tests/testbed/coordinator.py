"""Coordinators: in a process that can be killed and started again on the same ports, or in a thread of the test's."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from strata.background import BackgroundLoop
from strata.coordinator.entry.secret_tokens import make_token
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports, running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message


class CoordinatorProcess:
    """Where the coordinator is, and how to start it; its journal lies in the folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self.grpc_port, self.channel_port, self.http_port = free_ports(3)
        self.url = f"127.0.0.1:{self.grpc_port}"
        self.http_url = f"http://127.0.0.1:{self.http_port}"

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it until the block ends."""
        log = self._folder / "coordinator.log"
        command = [sys.executable, "-m", "strata", "coordinator", "--grpc-address", self.url]
        command += ["--channel-address", f"127.0.0.1:{self.channel_port}", "--state", f"sqlite://{self._folder}/j.db"]
        command += ["--http-port", str(self.http_port), *self._options]
        with running(command, log=log, is_ready=lambda: b"ready grpc=" in log.read_bytes()) as process:
            yield process

    def log(self) -> bytes:
        """Return what it has logged."""
        return (self._folder / "coordinator.log").read_bytes()

    def jobs(self) -> list[pb.JobStatus]:
        """Return what every job is doing; a coordinator that is just being started is waited for."""
        with grpc.insecure_channel(self.url) as channel:
            ask = stubs.CoordinatorStub(channel).GetStatus
            return list(ask(pb.GetStatus(), timeout=stretch(10), wait_for_ready=True).jobs)

    def status(self, job_id: str = "default") -> pb.JobStatus | None:
        """Return what a job is doing, or None if there is no such job."""
        return next((job for job in self.jobs() if job.job_id == job_id), None)

    def job(self) -> pb.JobStatus:
        """Return what the only job is doing."""
        (job,) = self.jobs()
        return job

    def states(self) -> dict[str, str]:
        """Return the state of each worker of the only job, by its id."""
        return {worker.worker_id: worker.state for worker in self.job().workers}

    def call(self, token: str | None, name: str, request: Message) -> None:
        """Make a call with a token, or without one."""
        metadata = [] if token is None else [("authorization", f"Bearer {token}")]
        with grpc.insecure_channel(self.url) as channel:
            getattr(stubs.CoordinatorStub(channel), name)(request, metadata=metadata, timeout=stretch(10))


class GuardedProcess(CoordinatorProcess):
    """A coordinator that lets nobody in without a token."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--admin-token-file", str(folder / "admin-token"))
        self._admin_file = folder / "admin-token"

    @property
    def admin(self) -> str:
        """The administrator's token, when it serves."""
        return self._admin_file.read_text().strip()

    def make_token(self, role: str, *, tenant: str, name: str = "test") -> str:
        """Make a token known, and return it."""
        made = make_token()
        known = {"token_id": made.token_id, "sha256": made.sha256, "role": role, "name": name}
        self.call(self.admin, "CreateToken", pb.CreateToken(tenant=tenant, **known))
        return made.text


@contextmanager
def coordinator_thread(**options: Any) -> Iterator[Coordinator]:
    """Serve in a thread of this process until the block ends, on free ports, by default with the state in memory."""
    ports = {"grpc_address": "127.0.0.1:0", "channel_address": "127.0.0.1:0", "version": "test"}
    background = BackgroundLoop("coordinator", owner="a coordinator")
    coordinator = Coordinator(CoordinatorConfig(**ports, **options))
    background.submit(coordinator.__aenter__()).result(stretch(30))
    try:
        yield coordinator
    finally:
        background.submit(coordinator.__aexit__()).result(stretch(30))
        background.close()


@dataclass(frozen=True)
class ServedCoordinator:
    """Where a coordinator is that runs in a thread."""

    url: str
    http_url: str
    http_port: int


@contextmanager
def serving_in_thread(folder: Path) -> Iterator[ServedCoordinator]:
    """Serve gRPC, the channel and HTTP in a thread of this process, with the state on disk."""
    with coordinator_thread(http_address="127.0.0.1:0", state=f"sqlite://{folder}/j.db") as coordinator:
        assert coordinator.http_port is not None
        http_url = f"http://127.0.0.1:{coordinator.http_port}"
        yield ServedCoordinator(f"127.0.0.1:{coordinator.grpc_port}", http_url, coordinator.http_port)
