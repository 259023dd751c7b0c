"""Every value of the cluster crosses the wire and comes back equal."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster import commands, replies
from strata.cluster.access import Role, administration
from strata.cluster.access.quotas import Quotas
from strata.cluster.commands import Command, WorkerState
from strata.cluster.commits import CommitProgress
from strata.cluster.events import Cause, Effect
from strata.cluster.values import CommitRecord, Divergence, Meeting, PartReport, SaveNote, WorkerAccount
from strata.errors import BarrierTimeoutError, MissingWorker, StaleGenerationError
from strata.sharding import DataOrder
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb

NUMBERS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(max_size=8)
SECONDS = st.floats(allow_nan=False)
SAVES = st.builds(SaveNote, NUMBERS, *([SECONDS] * 4), NUMBERS, st.booleans(), st.booleans())
ACCOUNTS = st.builds(WorkerAccount, *([SECONDS] * 8), *([NUMBERS] * 5), st.lists(SAVES, max_size=2).map(tuple))
REPORTS = st.builds(PartReport, NAMES, NUMBERS, NAMES, NAMES)
DIVERGED = st.none() | st.builds(Divergence, st.lists(NUMBERS, max_size=3).map(tuple), NAMES, NUMBERS, st.booleans())
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "state": st.sampled_from(WorkerState),
    "data_order": st.sampled_from(DataOrder),
    "workers": st.lists(st.tuples(NAMES, NAMES), max_size=3).map(tuple),
    "spans": st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple),
    "checkpoints": st.lists(st.builds(CommitRecord, NUMBERS, NUMBERS, NAMES, NAMES, DIVERGED), max_size=3).map(tuple),
    "repairs": st.lists(REPORTS, max_size=3).map(tuple),
    "reports": st.lists(REPORTS, max_size=3).map(tuple),
    "meetings": st.lists(st.builds(Meeting, NAMES, NUMBERS), max_size=3).map(tuple),
    "steps": st.lists(NUMBERS, max_size=3).map(tuple),
    "to": st.lists(NAMES, max_size=3).map(tuple),
    "payloads": st.lists(st.binary(max_size=5), max_size=3).map(tuple),
    "payload": st.none() | st.binary(max_size=5),
    "resources": st.dictionaries(NAMES, st.floats(allow_nan=False), max_size=3),
    "shuffle": st.booleans(),
    "allow_suspect": st.booleans(),
    "even_newest": st.booleans(),
    "is_passed_over": st.booleans(),
    "is_over": st.booleans(),
    "cause": st.sampled_from(Cause),
    "quotas": st.builds(Quotas, jobs=st.none() | st.integers(1, 9), requests_per_s=st.none() | st.floats(0.5, 9)),
    "role": st.sampled_from(Role),
    "token_ids": st.lists(NAMES, max_size=3).map(tuple),
    "error": st.just(BarrierTimeoutError("b", 1, 2, [MissingWorker("w", 1, "training", 7, 0.5)])),
}
BY_TYPE = {
    "str": NAMES,
    "int": NUMBERS,
    "float": st.floats(allow_nan=False),
    "int | None": st.none() | NUMBERS,
    "float | None": st.none() | SECONDS,
    "PartReport": REPORTS,
    "PartReport | None": st.none() | REPORTS,
    "Divergence | None": DIVERGED,
    "WorkerAccount | None": st.none() | ACCOUNTS,
    "bytes": st.binary(max_size=5),
}


def values(kind: type[Any]) -> st.SearchStrategy[Any]:
    known = {field.name: str(field.type) for field in fields(kind)}
    return st.builds(kind, **{name: BY_NAME[name] if name in BY_NAME else BY_TYPE[of] for name, of in known.items()})


@pytest.mark.parametrize("kind", convert.COMMANDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_command_comes_back_equal(kind: type[Command], data: st.DataObject) -> None:
    command = data.draw(values(kind))
    frame = pb.ClientFrame(id=7, command=convert.command_to_message(command))
    assert convert.command_from_message(pb.ClientFrame.FromString(frame.SerializeToString()).command) == command


@pytest.mark.parametrize("kind", convert.EFFECTS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_an_effect_comes_back_equal(kind: type[Effect], data: st.DataObject) -> None:
    effect = data.draw(values(kind))
    again = convert.effect_from_message(pb.Effect.FromString(convert.effect_to_message(effect).SerializeToString()))
    for field in fields(kind):
        before, after = getattr(effect, field.name), getattr(again, field.name)
        assert (str(before), vars(before)) == (str(after), vars(after)) if field.name == "error" else before == after


@pytest.mark.parametrize(
    "reply",
    [
        replies.Done(),
        replies.Registered(rank=1, world_size=2, generation=3, waits_for=0, lease_s=10.0),
        replies.HeartbeatReply(rank=1, world_size=2, generation=3, waits_for=4),
        replies.KeyValue(),
        replies.KeyValue(value=b"x", token=3, is_set=True),
        replies.RestorePoint(checkpoint=None),
        CommitProgress(phase="collecting", missing=("b", "c"), reason=""),
        replies.RestorePoint(checkpoint=CommitRecord(5, 1, "m", "[]")),
        replies.RestorePoint(checkpoint=CommitRecord(5, 1, "m", "[]", Divergence((2, 7), "w", 3))),
    ],
    ids=repr,
)
def test_a_reply_comes_back_equal(reply: replies.Reply) -> None:
    message = pb.Reply.FromString(convert.reply_to_message(9, reply).SerializeToString())
    assert message.id == 9
    assert convert.reply_from_message(message) == reply


def test_an_error_instead_of_a_reply_comes_back_as_that_error() -> None:
    error = StaleGenerationError("w", sent=1, current=2)
    message = pb.Reply.FromString(convert.reply_to_message(9, error).SerializeToString())
    again = convert.reply_from_message(message)
    assert (message.id, type(again), vars(again)) == (9, StaleGenerationError, vars(error))


def test_a_shard_lease_comes_back_equal() -> None:
    for rows in ([], [(1, 0, 5), (2, 5, 6)]):
        lease = replies.ShardLease(spans=np.array(rows, dtype=np.int64).reshape(-1, 3))
        again = convert.reply_from_message(convert.reply_to_message(1, lease))
        assert isinstance(again, replies.ShardLease)
        assert np.array_equal(again.spans, lease.spans)


def test_every_command_reply_and_effect_has_its_message() -> None:
    modules = vars(commands), vars(administration)
    kinds = {k for names in modules for k in names.values() if isinstance(k, type) and issubclass(k, Command)}
    # The coordinator repeats an arrival by itself: that is never in a frame, nor in the journal.
    concrete = {kind for kind in kinds if not kind.__name__.endswith("Command")} - {commands.ArriveAgain}
    assert set(convert.COMMANDS) == concrete
    # By name: dataclasses with slots leave a class of the same name behind.
    assert {kind.__name__ for kind in convert.EFFECTS} == {kind.__name__ for kind in Effect.__subclasses__()}
    assert {field.name for field in pb.Command.DESCRIPTOR.oneofs_by_name["kind"].fields} == set(
        convert.COMMANDS.values()
    )


def test_what_another_language_leaves_out_has_its_default() -> None:
    beat = convert.read_command(commands.Heartbeat, pb.Heartbeat(worker_id="w", incarnation="i"))
    assert beat == commands.Heartbeat(worker_id="w", incarnation="i")
    arrival = convert.read_command(commands.ArriveAtBarrier, pb.ArriveAtBarrier(name="b", generation=1))
    assert arrival == commands.ArriveAtBarrier(worker_id="", incarnation="", generation=1, name="b")


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="has no command"):
        convert.command_from_message(pb.Command())
    with pytest.raises(ValueError, match="'napping' is not a valid WorkerState"):
        convert.read_command(commands.Heartbeat, pb.Heartbeat(state="napping"))


def test_a_reply_and_an_effect_of_a_newer_version_are_refused() -> None:
    newer = b"\xfa\x3f\x00"  # field 1023, which no message has
    with pytest.raises(ValueError, match="the reply has no content, or one of a newer version"):
        convert.reply_from_message(pb.Reply.FromString(pb.Reply(id=9).SerializeToString() + newer))
    with pytest.raises(ValueError, match="the effect has no content, or one of a newer version"):
        convert.effect_from_message(pb.Effect.FromString(newer))
