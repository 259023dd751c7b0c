"""TrainingOrchestrator: one worker's part in a job, as scripts written for ``dtruntime`` use it.

Without a coordinator's URL it works alone in its process.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from strata.client.client import Client
from strata.client.unary import ask_latest_checkpoint
from strata.cluster.commands import WorkerState
from strata.cluster.replies import HeartbeatReply, Registered
from strata.cluster.values import CommitRecord
from strata.errors import GenerationChangedError, StaleGenerationError


class TrainingOrchestrator:
    """One worker's part in a job: joining it, meeting the others, and finding its last checkpoint."""

    def __init__(
        self,
        worker_id: str,
        coordinator_url: str | None = None,
        world_size: int = 1,
        rank: int = 0,
        *,
        job_id: str = "default",
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank} in a world of {world_size}; use 0 to {world_size - 1}")
        self._url = coordinator_url
        self._worker_id = worker_id
        self._world_size = world_size
        self._rank = rank
        self._job_id = job_id
        self._client: Client | None = None

    async def register_worker(
        self, ip: str = "", port: int = 0, gpu_count: int = 0, memory_bytes: int = 0
    ) -> Registered:
        """Join the job; its reply has the rank, world size and generation."""
        if self._url is None:
            return Registered(rank=self._rank, world_size=1, generation=1, waits_for=0, lease_s=float("inf"))
        self._client = await asyncio.to_thread(
            Client,
            self._url,
            self._worker_id,
            job_id=self._job_id,
            address=f"{ip}:{port}" if ip else "",
            gpu_count=gpu_count,
            memory_bytes=memory_bytes,
            preferred_rank=self._rank,
        )
        return await asyncio.to_thread(self._client.wait_registered)

    async def wait_barrier(self, name: str, timeout_s: float = 300.0) -> None:
        """Return when all workers of the world are there, or raise who is missing.

        The world has a fixed size here, so a worker that joins or comes back meanwhile only means to meet anew.
        """
        if self._client is None:
            return
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.001, deadline_s - time.monotonic())
            try:
                await asyncio.to_thread(self._client.meet, name, expected=self._world_size, timeout_s=left_s)
            except (GenerationChangedError, StaleGenerationError):
                await asyncio.to_thread(self._client.heartbeat)
            else:
                return

    async def heartbeat(
        self, state: str = "training", step: int = 0, epoch: int = 0, **resources: float
    ) -> HeartbeatReply | None:
        """Say what this worker is doing; it is also said by itself in the background."""
        if self._client is None:
            return None
        fields: dict[str, Any] = {"state": WorkerState(state), "step": step, "epoch": epoch, "resources": resources}
        return await asyncio.to_thread(self._client.heartbeat, **fields)

    async def latest_checkpoint(self) -> CommitRecord | None:
        """Return the newest committed checkpoint of the job, or None."""
        if self._url is None:
            return None
        return await asyncio.to_thread(ask_latest_checkpoint, self._url, self._job_id)

    async def deregister(self) -> None:
        """Leave the job."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None
