"""Between the cluster's commands, replies and effects and the messages of the wire, both ways.

A kind of value and its field in ``Command``, ``Reply`` or ``Effect`` have the same name, so the tables are derived: a
new command needs its message in the contract, its class, and a method of that name: of ``Job``, or of ``Access`` if it
is about a tenant.
"""

from __future__ import annotations

from typing import Any, get_args

from google.protobuf.message import Message

from strata.cluster import commands, events, replies
from strata.cluster.access.administration import TENANT_COMMANDS
from strata.cluster.commands import Command
from strata.cluster.events import Effect
from strata.cluster.replies import Reply
from strata.cluster.values import snake_case
from strata.errors import StrataError
from strata.wire import codec
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire.errors import from_error, to_error

COMMANDS: dict[type[Command], str] = {kind: snake_case(kind) for kind in (*commands.COMMANDS, *TENANT_COMMANDS)}
REPLIES: dict[type[Any], str] = {kind: snake_case(kind) for kind in get_args(replies.Reply)}
EFFECTS: dict[type[Effect], str] = {kind: snake_case(kind) for kind in events.EFFECTS}
_COMMAND_OF = {field: kind for kind, field in COMMANDS.items()}
_REPLY_OF = {field: kind for kind, field in REPLIES.items()}
_EFFECT_OF = {field: kind for kind, field in EFFECTS.items()}


def command_to_message(command: Command, message: pb.Command | None = None) -> pb.Command:
    """Return the message of a command."""
    message = message or pb.Command()
    field = getattr(message, COMMANDS[type(command)])
    codec.fill(field, command)
    field.SetInParent()
    return message


def command_from_message(message: pb.Command) -> Command:
    """Return the command of a message, or raise ValueError if it has none."""
    field = message.WhichOneof("kind")
    if field is None:
        raise ValueError("the frame has no command, or one of a newer version")
    return read_command(_COMMAND_OF[field], getattr(message, field))


def read_command(kind: type[Command], message: Message) -> Command:
    """Return the command of a kind from its own message, as the unary calls carry it."""
    command: Command = codec.read(kind, message)
    return command


def reply_to_message(number: int, reply: Reply | StrataError) -> pb.Reply:
    """Return the message of a reply, or of the error that came instead."""
    message = pb.Reply(id=number)
    if isinstance(reply, StrataError):
        message.error.CopyFrom(to_error(reply))
        return message
    field = getattr(message, REPLIES[type(reply)])
    codec.fill(field, reply)
    field.SetInParent()
    return message


def reply_from_message(message: pb.Reply) -> Reply | StrataError:
    """Return the reply of a message, or the error that it carries."""
    field = message.WhichOneof("kind")
    if field == "error":
        return from_error(message.error)
    if field is None:
        raise ValueError("the reply has no content, or one of a newer version")
    reply: Reply = codec.read(_REPLY_OF[field], getattr(message, field))
    return reply


def effect_to_message(effect: Effect) -> pb.Effect:
    """Return the message of an effect."""
    message = pb.Effect()
    field = getattr(message, EFFECTS[type(effect)])
    codec.fill(field, effect)
    field.SetInParent()
    return message


def effect_from_message(message: pb.Effect) -> Effect:
    """Return the effect of a message."""
    field = message.WhichOneof("kind")
    if field is None:
        raise ValueError("the effect has no content, or one of a newer version")
    effect: Effect = codec.read(_EFFECT_OF[field], getattr(message, field))
    return effect
