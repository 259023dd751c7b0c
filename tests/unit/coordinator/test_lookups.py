"""Who reads which shards is answered once for all who ask the same, and anew as soon as it may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.lookups import ShardLookups
from strata.errors import StrataError
from strata.sharding import DataOrder
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch


class Asked:
    """A coordinator with one worker, and what it says about the worker's shards."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(MemoryJournal(), limits=Limits(), clock=SystemClock(), deliver=lambda _: None)
        self.lookups = ShardLookups()
        self.is_wanted = True

    async def make_job(self, *, samples: int = 95) -> None:
        await self.dispatcher.ask(c.RegisterWorker(worker_id="a", incarnation="1"))
        dataset = {"dataset_id": "d", "total_samples": samples, "shard_size": 10}
        await self.dispatcher.ask(c.RegisterDataset(**dataset, data_order=DataOrder.STICKY))

    def begin(self, **question: object) -> asyncio.Future[bytes | StrataError]:
        told: asyncio.Future[bytes | StrataError] = asyncio.get_running_loop().create_future()
        request = pb.GetDataShard(dataset_id="d", **question)
        self.lookups.answer(self.dispatcher, request, told.set_result, is_wanted=lambda: self.is_wanted)
        return told

    async def ask(self, **question: object) -> pb.DataShards | StrataError:
        async with asyncio.timeout(stretch(20)):
            answer = await self.begin(**question)
        return pb.DataShards.FromString(answer) if isinstance(answer, bytes) else answer


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    made = Asked()
    await made.make_job()
    yield made
    await made.dispatcher.heavy.close()


async def test_a_job_that_was_removed_and_made_again_is_not_answered_with_the_shards_of_the_old_one(
    asked: Asked,
) -> None:
    before = await asked.ask(worker_id="a")
    assert isinstance(before, pb.DataShards)
    assert len(before.shards) == before.total_shards == 10
    await asked.dispatcher.ask(c.Goodbye(worker_id="a", incarnation="1"))
    await asked.dispatcher.ask(c.RemoveJob())
    await asked.make_job(samples=300)
    after = await asked.ask(worker_id="a")
    assert isinstance(after, pb.DataShards)
    assert len(after.shards) == after.total_shards == 30
