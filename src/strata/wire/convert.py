"""Between the cluster's values and the messages of the wire, both ways.

A message has the fields of its value, by name; so one plan per type does for all of them, and a test holds every value
to its message. What differs is written down in :data:`_ROWS`: tuples of plain values that are messages on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from typing import Any

import numpy as np
from google.protobuf.message import Message

from strata.cluster import commands, events, replies
from strata.cluster.commands import JobCommand, WorkerState
from strata.cluster.commits import CommitProgress, Committed
from strata.cluster.events import Effect
from strata.cluster.replies import Reply
from strata.errors import StrataError
from strata.sharding import DataOrder
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire.errors import from_error, to_error

COMMANDS: dict[type[JobCommand], str] = {
    commands.ConfigureJob: "configure_job",
    commands.RegisterWorker: "register_worker",
    commands.Heartbeat: "heartbeat",
    commands.Vouch: "vouch",
    commands.Goodbye: "goodbye",
    commands.ChannelLost: "channel_lost",
    commands.FailWorkers: "fail_workers",
    commands.ArriveAtBarrier: "arrive_at_barrier",
    commands.CancelBarrier: "cancel_barrier",
    commands.RegisterDataset: "register_dataset",
    commands.AskRestorePoint: "ask_restore_point",
    commands.TakeHand: "take_hand",
    commands.ReportProgress: "report_progress",
    commands.SkipSamples: "skip_samples",
    commands.AckPart: "ack_part",
    commands.ConfirmCommit: "confirm_commit",
    commands.AskCommit: "ask_commit",
    commands.GiveUpCheckpoint: "give_up_checkpoint",
    commands.RejectCheckpoint: "reject_checkpoint",
    commands.AbortCheckpoint: "abort_checkpoint",
    commands.AskForManifest: "ask_for_manifest",
    commands.ExpireBarrier: "expire_barrier",
    commands.AdoptCheckpoints: "adopt_checkpoints",
    commands.ForgetCheckpoints: "forget_checkpoints",
    commands.SetKey: "set_key",
    commands.GetKey: "get_key",
}
REPLIES: dict[type[Any], str] = {
    replies.Done: "done",
    replies.Registered: "registered",
    replies.Heard: "heard",
    replies.RestorePoint: "restore_point",
    CommitProgress: "commit_progress",
    replies.Hand: "hand",
    replies.KeyValue: "key_value",
}
EFFECTS: dict[type[Effect], str] = {
    events.GenerationChanged: "generation_changed",
    events.BarrierReleased: "barrier_released",
    events.BarrierFailed: "barrier_failed",
    events.ManifestWanted: "manifest_wanted",
    events.CheckpointCommitted: "checkpoint_committed",
    events.CheckpointAborted: "checkpoint_aborted",
}
_COMMAND_OF = {field: kind for kind, field in COMMANDS.items()}
_REPLY_OF = {field: kind for kind, field in REPLIES.items()}
_EFFECT_OF = {field: kind for kind, field in EFFECTS.items()}

# Fields whose items are tuples here and messages there: the message, and its fields in the order of the tuple.
_ROWS: dict[str, tuple[type[Message], tuple[str, ...]]] = {
    "workers": (pb.Incarnation, ("worker_id", "incarnation")),
    "spans": (pb.Span, ("shard", "start", "stop")),
    "checkpoints": (pb.Checkpoint, ("step", "epoch", "manifest", "cursors")),
    "parts": (pb.Part, ("path", "size_bytes", "digest")),
}
# What an unset field means, where that is not the zero of its type.
_UNSET: dict[str, Any] = {
    "job_id": "default",
    "timeout_s": 300.0,
    "min_workers": 1,
    "ticket": 1,
}
# Text on the wire that is one of a few words here, and what it means when it is unset.
_WORDS: dict[str, StrEnum] = {"state": WorkerState.IDLE, "data_order": DataOrder.STICKY}


def command_to_message(command: JobCommand, message: pb.Command | None = None) -> pb.Command:
    """Return the message of a command."""
    message = message or pb.Command()
    field = COMMANDS[type(command)]
    _fill(getattr(message, field), command)
    getattr(message, field).SetInParent()
    return message


def command_from_message(message: pb.Command) -> JobCommand:
    """Return the command of a message, or raise ValueError if it has none."""
    field = message.WhichOneof("kind")
    if field is None:
        raise ValueError("the frame has no command, or one of a newer version")
    return read_command(_COMMAND_OF[field], getattr(message, field))


def read_command(kind: type[JobCommand], message: Message) -> JobCommand:
    """Return the command of a kind from its own message, as the unary calls carry it."""
    return kind(**_values(kind, message))


def reply_to_message(number: int, reply: Reply | StrataError) -> pb.Reply:
    """Return the message of a reply, or of the error that came instead."""
    message = pb.Reply(id=number)
    if isinstance(reply, StrataError):
        message.error.CopyFrom(to_error(reply))
        return message
    field = getattr(message, REPLIES[type(reply)])
    fill_reply(field, reply)
    field.SetInParent()
    return message


def fill_reply(message: Message, reply: Reply) -> None:
    """Write a reply into its own message, as the unary calls carry it."""
    match reply:
        case replies.RestorePoint(checkpoint=checkpoint):
            if checkpoint is not None:
                fill_checkpoint(message.checkpoint, checkpoint)  # type: ignore[attr-defined]
        case replies.Hand(spans=spans):
            rows = [pb.Span(shard=shard, start=start, stop=stop) for shard, start, stop in spans.tolist()]
            message.spans.extend(rows)  # type: ignore[attr-defined]
        case _:
            _fill(message, reply)


def reply_from_message(message: pb.Reply) -> Reply | StrataError:
    """Return the reply of a message, or the error that it carries."""
    field = message.WhichOneof("kind")
    if field == "error":
        return from_error(message.error)
    if field is None:
        raise ValueError("the reply has no content, or one of a newer version")
    return read_reply(_REPLY_OF[field], getattr(message, field))


def read_reply(kind: type[Any], message: Any) -> Reply:
    """Return the reply of a kind from its own message."""
    if kind is replies.RestorePoint:
        found = message.checkpoint if message.HasField("checkpoint") else None
        return replies.RestorePoint(checkpoint=None if found is None else read_checkpoint(found))
    if kind is replies.Hand:
        rows = [(span.shard, span.start, span.stop) for span in message.spans]
        return replies.Hand(spans=np.array(rows, dtype=np.int64).reshape(-1, 3))
    reply: Reply = kind(**_values(kind, message))
    return reply


def effect_to_message(effect: Effect) -> pb.Effect:
    """Return the message of an effect."""
    message = pb.Effect()
    field = getattr(message, EFFECTS[type(effect)])
    _fill(field, effect)
    return message


def effect_from_message(message: pb.Effect) -> Effect:
    """Return the effect of a message."""
    field = message.WhichOneof("kind")
    if field is None:
        raise ValueError("the effect has no content, or one of a newer version")
    kind = _EFFECT_OF[field]
    return kind(**_values(kind, getattr(message, field)))


def fill_checkpoint(message: pb.Checkpoint, checkpoint: Committed) -> None:
    """Write a committed checkpoint into its message."""
    message.step, message.epoch = checkpoint.step, checkpoint.epoch
    message.manifest, message.cursors = checkpoint.manifest, checkpoint.cursors


def read_checkpoint(message: pb.Checkpoint) -> Committed:
    """Return the committed checkpoint of a message."""
    return Committed(message.step, message.epoch, message.manifest, message.cursors)


def _fill(message: Any, value: Any) -> None:
    for name, write, _ in _plan(type(value)):
        content = getattr(value, name)
        if content is not None:
            write(message, content)


def _values(kind: type[Any], message: Any) -> dict[str, Any]:
    return {name: read(message) for name, _, read in _plan(kind)}


Step = tuple[str, Callable[[Any, Any], None], Callable[[Any], Any]]
_plans: dict[type[Any], list[Step]] = {}


def _plan(kind: type[Any]) -> list[Step]:
    """Return how each field of a value is written to and read from its message; worked out once for each kind."""
    if kind not in _plans:
        message = pb.DESCRIPTOR.message_types_by_name[kind.__name__]
        _plans[kind] = [_step(field.name, message.fields_by_name[field.name]) for field in fields(kind)]
    return _plans[kind]


def _step(name: str, field: Any) -> Step:
    if name in _ROWS and field.is_repeated:
        row, columns = _ROWS[name]

        def write_rows(message: Any, content: Any) -> None:
            getattr(message, name).extend(row(**dict(zip(columns, item, strict=True))) for item in content)

        return (
            name,
            write_rows,
            lambda message: tuple(
                tuple(getattr(item, column) for column in columns) for item in getattr(message, name)
            ),
        )
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return name, lambda message, content: getattr(message, name).update(content), lambda m: dict(getattr(m, name))
    if name == "error":
        return name, lambda message, content: message.error.CopyFrom(to_error(content)), lambda m: from_error(m.error)
    if field.is_repeated:
        return name, lambda message, content: getattr(message, name).extend(content), lambda m: tuple(getattr(m, name))
    if field.has_presence:
        return (
            name,
            lambda m, content: setattr(m, name, content),
            lambda m: getattr(m, name) if m.HasField(name) else None,
        )
    if name in _WORDS:
        kind, default = type(_WORDS[name]), _WORDS[name]
        return name, lambda m, content: setattr(m, name, str(content)), lambda m: kind(getattr(m, name) or default)
    unset = _UNSET.get(name)
    if unset is not None:
        return name, lambda m, content: setattr(m, name, content), lambda m: getattr(m, name) or unset
    return name, lambda m, content: setattr(m, name, content), lambda m: getattr(m, name)
