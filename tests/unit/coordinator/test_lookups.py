"""Lookups of shards: one answer serves all equal requests, until it may have changed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.coordinator import lookups as module
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.lookups import Lookup, ShardLookups
from strata.errors import BadCommandError, QuotaExceededError, StrataError, UnknownWorkerError
from strata.sharding import DataOrder
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch


class Asked:
    """A coordinator with one worker, and what it says about the worker's shards."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.is_wanted = True
        self.restart()

    def restart(self) -> None:
        """Begin again with what the journal holds."""
        self.dispatcher = Dispatcher(self.journal, limits=Limits(), clock=SystemClock(), deliver=lambda _: None)
        self.lookups = ShardLookups()

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


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every dataset be one that is dealt and looked up in a thread."""
    monkeypatch.setattr("strata.cluster.ledger.ledger.LARGE_SHARDS", 1)
    monkeypatch.setattr(module, "LARGE_SHARDS", 1)


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


async def test_a_worker_can_be_named_by_its_rank_and_one_that_there_is_not_is_refused(asked: Asked) -> None:
    first = await asked.ask(rank=0)
    assert isinstance(first, pb.DataShards)
    assert await asked.ask(worker_id="a") == await asked.ask(rank=0) == first
    for rank in (-1, 1):
        refused = await asked.ask(rank=rank)
        assert isinstance(refused, UnknownWorkerError)
        assert str(refused) == f"worker 'rank {rank}' is not registered; there are a"


@pytest.mark.usefixtures("large")
async def test_a_large_dataset_is_answered_from_a_thread_as_a_small_one_is(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = await asked.ask(worker_id="a")
    monkeypatch.setattr(module, "LARGE_SHARDS", 1_000)
    asked.lookups = ShardLookups()
    assert await asked.ask(worker_id="a") == large


@pytest.mark.usefixtures("large")
async def test_those_who_ask_for_the_same_large_answer_at_once_wait_for_one_encoding(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Lookup] = []
    begun, may_encode = threading.Event(), threading.Event()
    encode = Lookup.encode

    def encode_slowly(lookup: Lookup) -> bytes:
        encoded.append(lookup)
        begun.set()
        assert may_encode.wait(stretch(20))
        return encode(lookup)

    monkeypatch.setattr(Lookup, "encode", encode_slowly)
    # The first one has its shards dealt; the others find them dealt, and the encoding under way.
    several = [asked.begin(worker_id="a") for _ in range(3)]
    async with asyncio.timeout(stretch(20)):
        assert await asyncio.to_thread(begun.wait, stretch(20))
        several += [asked.begin(worker_id="a") for _ in range(3)]
        may_encode.set()
        answers = set(await asyncio.gather(*several))
    assert len(answers) == 1
    assert len(encoded) == 1
    # A later request gets the same answer without any work.
    assert asked.begin(worker_id="a").result() in answers


@pytest.mark.usefixtures("large")
async def test_nothing_is_worked_out_for_a_client_that_is_gone(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Lookup] = []
    monkeypatch.setattr(Lookup, "encode", encoded.append)
    gone = asked.begin(worker_id="a")
    asked.is_wanted = False
    async with asyncio.timeout(stretch(20)):
        # Behind what the question began: one piece of work is done at a time.
        await asked.dispatcher.heavy.run(lambda: None)
        await asyncio.sleep(0)
        # The shards are dealt by now, and it is gone before they are encoded.
        asked.begin(worker_id="a")
        await asked.dispatcher.heavy.run(lambda: None)
    assert encoded == []
    assert not gone.done()


@pytest.mark.usefixtures("large")
async def test_an_answer_that_no_client_would_take_is_refused_and_says_what_to_use(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 20)
    refused = await asked.ask(worker_id="a")
    assert isinstance(refused, QuotaExceededError)
    assert "20 bytes in one answer about 10 shards, which LeaseShards gives in pieces" in str(refused)


@pytest.mark.usefixtures("large")
async def test_an_epoch_that_there_is_not_is_a_bad_command_also_for_a_large_dataset(asked: Asked) -> None:
    refused = await asked.ask(worker_id="a", epoch=-1)
    assert isinstance(refused, BadCommandError)
    assert "epoch is -1; use 0 or more" in str(refused)


@pytest.mark.usefixtures("large")
async def test_a_dataset_that_cannot_be_dealt_refuses_lookups_and_leases_with_the_reason(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("more shards than can be dealt")

    monkeypatch.setattr("strata.cluster.ledger.deals.assign", refuse)
    lease = c.LeaseShards(worker_id="a", incarnation="1", generation=1, dataset_id="d", epoch=0, sequence=1)
    refused = await asked.ask(worker_id="a")
    assert isinstance(refused, BadCommandError)
    assert "more shards than can be dealt" in str(refused)
    with pytest.raises(BadCommandError, match="more shards than can be dealt"):
        await asked.dispatcher.ask(lease)


async def test_what_is_kept_of_answers_is_bounded(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    await asked.ask(worker_id="a")
    size_bytes = asked.lookups._kept_bytes
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 3 * size_bytes)
    expected = [await asked.ask(worker_id="a", epoch=epoch) for epoch in range(10)]
    assert asked.lookups._kept_bytes == sum(map(len, asked.lookups._kept.values())) <= 3 * size_bytes
    assert [await asked.ask(worker_id="a", epoch=epoch) for epoch in range(10)] == expected
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", size_bytes - 1)
    # An answer that is too large to be kept is sent all the same.
    assert await asked.ask(worker_id="a", epoch=11) is not None
    assert asked.lookups._kept == {}


# Which workers join, leave or crash, or whether the coordinator restarts from its journal or a snapshot of it.
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["join", "leave", "fail"]), st.sets(st.sampled_from("abcdefgh"), min_size=1)),
    st.sampled_from([("restart", set[str]()), ("compact", set[str]())]),
)


@given(
    changes=st.lists(st.tuples(CHANGES, st.booleans()), min_size=2, max_size=12),
    shards=st.integers(1, 60),
)
def test_joins_losses_returns_and_restarts_move_as_few_looked_up_shards_as_possible(
    changes: list[tuple[tuple[str, set[str]], bool]], shards: int
) -> None:
    async def look_up_after_each_change() -> None:
        asked, lives, seen = Asked(), Counter[str](), dict[int, str]()
        await asked.make_job(samples=10 * shards)
        present = {"a": "1"}
        for (kind, workers), is_looked_up in changes:
            if kind == "compact":
                asked.journal.snapshot(asked.dispatcher.cluster.snapshot())
            if kind in ("restart", "compact"):
                asked.restart()
            for worker in sorted(workers):
                if kind == "join":
                    lives[worker] += 1
                    present[worker] = f"p.{lives[worker] + 1}"
                    await asked.dispatcher.ask(c.RegisterWorker(worker_id=worker, incarnation=present[worker]))
                elif worker in present:
                    gone = worker, present.pop(worker)
                    goodbye = c.Goodbye(worker_id=worker, incarnation=gone[1])
                    await asked.dispatcher.ask(
                        goodbye if kind == "leave" else c.FailWorkers(workers=(gone,), reason="lost")
                    )
            if not is_looked_up or not present:
                continue
            owners = dict[int, str]()
            for worker in present:
                found = await asked.ask(worker_id=worker)
                assert isinstance(found, pb.DataShards)
                owners |= {shard.shard_id: worker for shard in found.shards}
            assert len(owners) == shards
            if seen:
                moved = sum(seen[shard] != owners[shard] for shard in owners)
                assert moved == count_moves_needed(seen, set(present))
            seen = owners
        await asked.dispatcher.heavy.close()

    asyncio.run(look_up_after_each_change())


def count_moves_needed(owners: dict[int, str], workers: set[str]) -> int:
    """Return how many shards must get another owner so that these workers differ by at most one shard."""
    counts = Counter(owners.values())
    least, larger = divmod(len(owners), len(workers))
    kept = sum(min(counts[worker], least) for worker in workers)
    return len(owners) - kept - min(larger, sum(counts[worker] > least for worker in workers))
