"""A script of the first API, as it was written, against a real coordinator and a real bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING

import grpc
import pytest

from strata import CheckpointManager
from strata.compat.dataset_registry import DatasetRegistry
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.network.raw_channel import RawChannel
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

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


def test_shards_that_are_looked_up_move_only_where_they_must_through_every_interface_and_after_a_restart(
    tmp_path: Path,
) -> None:
    service = CoordinatorProcess(tmp_path, "--lease", "3600")
    registry = DatasetRegistry(service.url)

    def register(worker_id: str, incarnation: str = "1.1") -> None:
        service.call(None, "RegisterWorker", pb.RegisterWorker(worker_id=worker_id, incarnation=incarnation))

    def show_shards() -> dict[str, int]:
        with urllib.request.urlopen(f"{service.http_url}/api/datasets", timeout=stretch(10)) as response:
            return {each["worker_id"]: each["shards"] for each in json.load(response)["items"][0]["shards"]}

    def look_up() -> dict[int, str]:
        """Return the owner of each shard, which all interfaces agree about."""
        job = service.job()
        workers = {worker.rank: worker.worker_id for worker in job.workers if worker.state != "left"}
        owners = {shard.shard_id: name for rank, name in workers.items() for shard in registry.get_shard("d", rank)}
        with grpc.insecure_channel(service.url) as channel, RawChannel(service.channel_port) as raw:
            for name in workers.values():
                question = pb.GetDataShard(dataset_id="d", worker_id=name)
                found = stubs.CoordinatorStub(channel).GetDataShard(question, timeout=stretch(10))
                assert {shard.shard_id for shard in found.shards} == {at for at in owners if owners[at] == name}
                raw.send(pb.ClientFrame(id=1, get_data_shard=question).SerializeToString())
                assert pb.ServerFrame.FromString(raw.receive() or b"").reply.data_shards == found
        wait_until(lambda: show_shards() == Counter(owners.values()))
        return owners

    with service.serving():
        for number in range(10):
            register(f"w{number}")
        registry.register("d", "", total_samples=10_000, shard_size=10)
        before = look_up()
        service.call(None, "DeregisterWorker", pb.Goodbye(worker_id="w3", incarnation="1.1"))
        without = look_up()
        assert {shard for shard in before if before[shard] != without[shard]} == {
            shard for shard in before if before[shard] == "w3"
        }
    with service.serving():
        assert look_up() == without
        register("w3", "1.2")
    with service.serving():
        after = look_up()
        assert sum(after[shard] != without[shard] for shard in after) == 100
        assert {after[shard] for shard in after if after[shard] != without[shard]} == {"w3"}
