"""The short way to read and write frames says the same as the general one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster import commands as c
from strata.cluster.commits import CommitProgress
from strata.cluster.events import BarrierReleased, GenerationChanged
from strata.cluster.replies import Done, HeartbeatReply, Registered, Reply
from strata.coordinator import frames
from strata.coordinator.frames import read_command, write_effect, write_reply, write_shards
from strata.errors import StrataError, UnknownJobError
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb
from tests.unit.wire.test_convert import values

NUMBERS = st.integers(0, 2**64 - 1)
COUNTS = st.integers(0, 2**40)


@pytest.mark.parametrize("kind", convert.COMMANDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_command_is_read_as_the_general_way_reads_it(kind: type[c.Command], data: st.DataObject) -> None:
    message = convert.command_to_message(data.draw(values(kind)))
    assert read_command(message) == convert.command_from_message(message)


@pytest.mark.parametrize("field", ["heartbeat", "arrive_at_barrier"])
def test_an_empty_message_means_the_same_defaults(field: str) -> None:
    message = pb.Command()
    getattr(message, field).SetInParent()
    assert read_command(message) == convert.command_from_message(message)


def test_a_state_that_there_is_not_is_refused_as_ever() -> None:
    with pytest.raises(ValueError, match="asleep"):
        read_command(pb.Command(heartbeat=pb.Heartbeat(worker_id="w", state="asleep")))


replies = st.one_of(
    st.just(Done()),
    st.builds(HeartbeatReply, rank=COUNTS, world_size=COUNTS, generation=COUNTS, waits_for=COUNTS),
    st.builds(CommitProgress, phase=st.text(max_size=5), missing=st.tuples(st.text(max_size=5)), reason=st.just("")),
    st.just(UnknownJobError("x", known=["y"])),
)


@given(number=NUMBERS, reply=replies)
def test_every_reply_is_written_as_the_general_way_writes_it(number: int, reply: Reply | StrataError) -> None:
    written = pb.ServerFrame.FromString(write_reply(number, reply, channel_url="ws://h:1"))
    assert written == pb.ServerFrame(reply=convert.reply_to_message(number, reply))


def test_a_registration_carries_where_the_channel_is() -> None:
    reply = Registered(rank=1, world_size=2, generation=3, waits_for=0, lease_s=10.0)
    written = pb.ServerFrame.FromString(write_reply(7, reply, channel_url="ws://h:1"))
    assert written.reply.registered.channel_url == "ws://h:1"
    assert (written.reply.id, written.reply.registered.rank) == (7, 1)


@given(number=NUMBERS, count=st.integers(0, 300))
def test_shards_are_carried_as_they_were_encoded(number: int, count: int) -> None:
    shards = pb.DataShards(total_shards=count, shards=[pb.DataShard(shard_id=n) for n in range(count)])
    written = pb.ServerFrame.FromString(write_shards(number, shards.SerializeToString()))
    assert written == pb.ServerFrame(reply=pb.Reply(id=number, data_shards=shards))


def test_an_effect_does_not_carry_the_names_of_all_who_get_it() -> None:
    everyone = tuple(f"worker-{number}" for number in range(1_000))
    released = BarrierReleased(job_id="j", to=everyone, name="b", generation=1, payloads=(b"x",), waited_s=0.5)
    changed = GenerationChanged(job_id="j", to=everyone, generation=2, reason="w joined")
    for effect in (released, changed):
        data = write_effect(effect)
        assert len(data) < 100
        again = convert.effect_from_message(pb.ServerFrame.FromString(data).effect)
        assert (type(again), again.to) == (type(effect), ())


def test_answers_to_heartbeats_are_kept_in_bounded_memory_and_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_KEPT", 3)
    monkeypatch.setattr(frames, "_heartbeat_replies", {})
    replies = [HeartbeatReply(rank=rank, world_size=10, generation=1, waits_for=0) for rank in range(10)]
    for reply in (*replies, *reversed(replies)):
        written = pb.ServerFrame.FromString(write_reply(7, reply, channel_url=""))
        assert written.reply.heartbeat_reply.rank == reply.rank
        assert len(frames._heartbeat_replies) <= 3
