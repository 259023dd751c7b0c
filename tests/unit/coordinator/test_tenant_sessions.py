"""Sessions of several tenants on one coordinator: each hears its own names, and its own quotas hold it back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.access import LOCAL, Principal, Role
from strata.cluster.access import administration as t
from strata.cluster.access.quotas import Quotas
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.sessions import Session, Sessions
from strata.coordinator.status import describe, describe_tenants
from strata.errors import AccessDeniedError, InvalidIdError, QuotaExceededError
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.pace import stretch

VISION = Principal("vision worker", "vision", Role.WORKER)
SPEECH = Principal("speech worker", "speech", Role.WORKER)


class Caller:
    """A connection of a principal, and what came on it."""

    def __init__(self, sessions: Sessions, dispatcher: Dispatcher, principal: Principal) -> None:
        self._effects: list[pb.Effect] = []
        self._answers: dict[int, asyncio.Future[pb.Reply]] = {}
        self.session = Session(sessions, dispatcher, self._receive, lambda _: None, principal)

    def _receive(self, data: bytes) -> None:
        frame = pb.ServerFrame.FromString(data)
        if frame.HasField("effect"):
            self._effects.append(frame.effect)
        else:
            self._answers[frame.reply.id].set_result(frame.reply)

    async def ask(self, command: c.Command) -> Any:
        number = len(self._answers) + 1
        self._answers[number] = asyncio.get_running_loop().create_future()
        frame = pb.ClientFrame(id=number, command=convert.command_to_message(command))
        self.session.receive(frame.SerializeToString())
        # From Python 3.12 on, to wait for what is there already lets nobody else run.
        await asyncio.sleep(0)
        return convert.reply_from_message(await asyncio.wait_for(self._answers[number], 30))

    async def ask_shards(self, job_id: str) -> Any:
        number = len(self._answers) + 1
        self._answers[number] = asyncio.get_running_loop().create_future()
        question = pb.GetDataShard(job_id=job_id, dataset_id="d", worker_id="w0")
        self.session.receive(pb.ClientFrame(id=number, get_data_shard=question).SerializeToString())
        async with asyncio.timeout(stretch(30)):
            return convert.reply_from_message(await self._answers[number])

    def effects(self) -> list[Any]:
        return [convert.effect_from_message(effect) for effect in self._effects]


def coordinator(**quotas: Any) -> tuple[Sessions, Dispatcher]:
    sessions = Sessions()
    dispatcher = Dispatcher(MemoryJournal(), limits=Limits(), clock=SystemClock(), deliver=sessions.deliver)
    for tenant in ("vision", "speech"):
        dispatcher.cluster.apply(t.CreateTenant(tenant=tenant, quotas=Quotas(**quotas)), dispatcher.now_s())
    return sessions, dispatcher


def join(worker_id: str = "w0") -> c.RegisterWorker:
    return c.RegisterWorker(job_id="llm", worker_id=worker_id, incarnation="1")


def test_workers_of_equal_names_hear_of_their_own_job_by_their_own_name() -> None:
    async def run() -> None:
        sessions, dispatcher = coordinator()
        vision, speech = (Caller(sessions, dispatcher, each) for each in (VISION, SPEECH))
        for caller in (vision, speech):
            assert (await caller.ask(join())).world_size == 1
        assert (await vision.ask(join("w1"))).world_size == 2
        await vision.ask(c.Heartbeat(job_id="llm", worker_id="w0", incarnation="1"))
        assert {effect.job_id for effect in vision.effects()} == {"llm"}
        assert max(effect.generation for effect in vision.effects()) == 2
        assert {effect.generation for effect in speech.effects()} <= {1}
        own = describe(dispatcher.cluster, VISION, now_s=0.0).jobs
        assert [(job.job_id, job.present) for job in own] == [("llm", 2)]
        every = describe(dispatcher.cluster, LOCAL, now_s=0.0).jobs
        assert [job.job_id for job in every] == ["speech/llm", "vision/llm"]

    asyncio.run(run())


def test_a_refusal_names_no_other_tenant() -> None:
    async def run() -> None:
        sessions, dispatcher = coordinator()
        vision, speech = (Caller(sessions, dispatcher, each) for each in (VISION, SPEECH))
        await speech.ask(join())
        refused = await vision.ask(c.Heartbeat(job_id="llm", worker_id="w0", incarnation="1"))
        assert str(refused) == "there is no job 'llm'; none is registered yet"
        assert isinstance(await vision.ask(t.SetTenant(tenant="speech")), AccessDeniedError)
        with pytest.raises(AccessDeniedError, match="look at tenant 'speech'"):
            describe_tenants(dispatcher.cluster, VISION, "speech", dispatcher.bounds)

    asyncio.run(run())


def test_channels_are_counted_until_they_close() -> None:
    async def run() -> None:
        sessions, dispatcher = coordinator(channels=1)
        bounds, cluster = dispatcher.bounds, dispatcher.cluster
        bounds.check_channel(cluster, "vision")
        vision = Caller(sessions, dispatcher, VISION)
        with pytest.raises(QuotaExceededError, match="1 channels and has 1"):
            bounds.check_channel(cluster, "vision")
        bounds.check_channel(cluster, "speech")
        vision.session.lost()
        vision.session.lost()
        bounds.check_channel(cluster, "vision")
        assert bounds.use("vision")["channels"] == 0

    asyncio.run(run())


def test_who_sends_more_requests_than_its_quota_is_not_heard_for_a_while() -> None:
    async def run() -> None:
        sessions, dispatcher = coordinator(requests_per_s=1.0)
        vision, speech = (Caller(sessions, dispatcher, each) for each in (VISION, SPEECH))
        for _ in range(4):
            await vision.ask(join())
        assert vision.session.wait_s > 0
        await speech.ask(join())
        assert speech.session.wait_s == 0
        # The last quota of its kind is gone with the second one.
        for tenant, caller in (("speech", speech), ("vision", vision)):
            dispatcher.cluster.apply(t.SetTenant(tenant=tenant), dispatcher.now_s())
            await caller.ask(join())
            assert caller.session.wait_s == 0

    asyncio.run(run())


def test_a_tenant_with_a_full_journal_makes_room_by_removing_and_trains_on() -> None:
    async def run() -> None:
        sessions, dispatcher = coordinator(journal_bytes=5_000)
        vision = Caller(sessions, dispatcher, VISION)
        await vision.ask(join())

        def key(value: bytes, token: int) -> c.SetKey:
            return c.SetKey(job_id="llm", key="k", value=value, token=token, writer=str(token))

        await vision.ask(key(bytes(6_000), 0))
        refused = await vision.ask(key(b"more", 1))
        assert isinstance(refused, QuotaExceededError)
        assert (refused.what, refused.limit) == ("journal bytes", 5_000)
        beat = await vision.ask(c.Heartbeat(job_id="llm", worker_id="w0", incarnation="1"))
        assert beat.world_size == 1
        await vision.ask(key(b"", 1))
        async with asyncio.timeout(stretch(30)):
            # The journal is compacted behind the answer.
            while isinstance(taken := await vision.ask(key(b"new", 0)), QuotaExceededError):
                pass
        assert taken.is_set

    asyncio.run(run())


@pytest.mark.parametrize(
    ("principal", "job_id", "error", "words"),
    [
        (VISION, "speech/llm", InvalidIdError, "contains '/'"),
        (
            Principal("tied", "vision", Role.WORKER, "llm-*"),
            "other",
            AccessDeniedError,
            "its token is for jobs 'llm-*'",
        ),
        (Principal("eyes", "vision", Role.VIEWER), "llm", AccessDeniedError, "it takes the role worker"),
    ],
)
async def test_shards_of_a_job_that_is_not_the_callers_are_refused(
    principal: Principal, job_id: str, error: type[Exception], words: str
) -> None:
    answer = await Caller(*coordinator(), principal).ask_shards(job_id)
    assert isinstance(answer, error)
    assert words in str(answer)
