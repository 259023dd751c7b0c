"""A script of the first API, as it was written, against a real coordinator and a real bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from strata import CheckpointManager
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.process import start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.testbed.servers import S3Server

WORLD_SIZE = 3
SCRIPT = """
import asyncio, os, sys
from dtruntime import DatasetRegistry, CheckpointManager, TrainingOrchestrator

async def main():
    WORLD_SIZE = int(sys.argv[2])
    RANK = int(sys.argv[3])
    steps_per_epoch = 10
    orchestrator = TrainingOrchestrator(
        worker_id=f"worker-{RANK}",
        coordinator_url=sys.argv[1],
        world_size=WORLD_SIZE,
        rank=RANK
    )
    await orchestrator.register_worker(ip="192.168.1.10", port=8080)
    registry = DatasetRegistry(sys.argv[1])
    registry.register(
        dataset_id="imagenet",
        path="/data/imagenet",
        format="parquet",
        total_samples=1_281_167,
        shard_size=10_000,
        shuffle=True
    )
    await orchestrator.wait_barrier("start")
    shard_files = registry.get_shard("imagenet", worker_rank=RANK, epoch=0)
    checkpoint_mgr = CheckpointManager(f"/checkpoints/{RANK}", backend="s3")
    for step in range(20):
        if step % 5 == 0:
            model_state = bytes([step]) * 1000
            await checkpoint_mgr.save_async(model_state, step=step)
        if step % steps_per_epoch == 0:
            await orchestrator.wait_barrier(f"epoch_{step // steps_per_epoch}")
    checkpoint_mgr.close()
    await orchestrator.wait_barrier("end")
    await orchestrator.deregister()
    print(len(shard_files))

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_usage_example_runs(tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_REGION": "us-east-1",
        "CHECKPOINT_BUCKET": s3_server.bucket,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    service = CoordinatorProcess(tmp_path)
    with service.serving():
        workers = [
            start(
                [sys.executable, "-c", SCRIPT, f"http://{service.url}", str(WORLD_SIZE), str(rank)],
                stdout=subprocess.PIPE,
                text=True,
                env=dict(os.environ),
            )
            for rank in range(WORLD_SIZE)
        ]
        printed = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * WORLD_SIZE
    assert sum(map(int, printed)) == 129
    with CheckpointManager("/checkpoints/1", backend="s3") as manager:
        assert manager.list_checkpoints() == [0, 5, 10, 15]
        assert manager.load().data == bytes([15]) * 1000
