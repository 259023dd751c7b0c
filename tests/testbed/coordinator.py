"""A coordinator in a process of its own, that can be killed and started again on the same ports."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.testbed.process import free_ports, running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path


class CoordinatorProcess:
    """Where the coordinator is, and how to start it; its journal lies in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._grpc, self._channel = free_ports(2)
        self.url = f"127.0.0.1:{self._grpc}"

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it until the block ends."""
        log = self._folder / "coordinator.log"
        command = [sys.executable, "-m", "strata", "coordinator", "--grpc-address", self.url]
        command += ["--channel-address", f"127.0.0.1:{self._channel}", "--state", f"sqlite://{self._folder}/j.db"]
        with running(command, log=log, is_ready=lambda: b"ready" in log.read_bytes()) as process:
            yield process

    def status(self, job_id: str = "default") -> pb.JobStatus | None:
        """Return what a job is doing, or None if there is no such job."""
        with grpc.insecure_channel(self.url) as channel:
            status = stubs.CoordinatorStub(channel).GetStatus(pb.GetStatus(), timeout=10, wait_for_ready=True)
        return next((job for job in status.jobs if job.job_id == job_id), None)
