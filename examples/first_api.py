"""The first API, as scripts written for dtruntime use it; new scripts use strata.join()."""

from __future__ import annotations

import asyncio
import os
import sys

import numpy as np
from dtruntime import CheckpointManager, DatasetRegistry, TrainingOrchestrator

STEPS, STEPS_PER_EPOCH = 40, 10


async def main() -> None:
    folder = sys.argv[1]
    url = os.environ["COORDINATOR_URL"]
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])

    orchestrator = TrainingOrchestrator(
        worker_id=f"worker-{rank}", coordinator_url=url, world_size=world_size, rank=rank
    )
    await orchestrator.register_worker(ip="127.0.0.1", port=8080)

    registry = DatasetRegistry(url)
    registry.register(
        dataset_id="example",
        path=f"{folder}/data",
        format="parquet",
        total_samples=2_000,
        shard_size=100,
        shuffle=True,
    )
    await orchestrator.wait_barrier("start")
    shards = registry.get_shard("example", worker_rank=rank, epoch=0)
    print(f"{len(shards)} shards, the first is rows {shards[0].start_index} to {shards[0].end_index}")

    checkpoints = CheckpointManager(f"{folder}/first-api/{rank}")
    saved = checkpoints.list_checkpoints()  # of an earlier run, whose steps are repeated and not saved again
    weights = np.zeros(1_000)
    for step in range(1, STEPS + 1):
        weights += step
        if step % STEPS_PER_EPOCH == 0:
            if step not in saved:
                await checkpoints.save_async({"weights": weights}, step=step)
            await orchestrator.wait_barrier(f"epoch_{step // STEPS_PER_EPOCH}")
    checkpoints.close()
    await orchestrator.deregister()
    print(f"checkpoints of steps {CheckpointManager(f'{folder}/first-api/{rank}').list_checkpoints()}")


if __name__ == "__main__":
    asyncio.run(main())
