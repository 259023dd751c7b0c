"""Frames as bytes: what comes in most often is read, and what goes out most often is written, by the shortest way.

The general way is :mod:`strata.wire.convert`, and a test holds these to it. A heartbeat and its answer make up nearly
all traffic of a large job, so here they cost a third of the general way.
"""

from __future__ import annotations

from strata.cluster import commands as c
from strata.cluster.access import Principal
from strata.cluster.access.names import present, shown
from strata.cluster.commands import Command, WorkerState
from strata.cluster.events import Effect
from strata.cluster.replies import Done, HeartbeatReply, Registered, Reply
from strata.cluster.values import WorkerAccount
from strata.errors import StrataError
from strata.wire import PROTOCOL, codec, convert
from strata.wire._generated import coordinator_pb2 as pb

_STATES = {str(state): state for state in WorkerState}
# The answer to every heartbeat of one rank is the same value until the membership changes; only its number differs. By
# identity, because to compare them costs more.
_heartbeat_replies: dict[int, tuple[HeartbeatReply, bytes]] = {}
MAX_KEPT = 20_000
_SMALL = [bytes((value,)) for value in range(0x80)]
_DONE = pb.Reply(done=pb.Done()).SerializeToString()


def read_command(message: pb.Command) -> Command:
    """Return the command of a message, or raise ValueError."""
    kind = message.WhichOneof("kind")
    if kind == "heartbeat":
        beat = message.heartbeat
        state = _STATES.get(beat.state)
        if state is None and not beat.HasField("state"):
            state = WorkerState.IDLE
        if state is not None:
            return c.Heartbeat(
                job_id=beat.job_id or ("" if beat.HasField("job_id") else "default"),
                worker_id=beat.worker_id,
                incarnation=beat.incarnation,
                state=state,
                step=beat.step,
                epoch=beat.epoch,
                resources=dict(beat.resources) if beat.resources else {},
                account=codec.read(WorkerAccount, beat.account) if beat.HasField("account") else None,
            )
    if kind == "arrive_at_barrier":
        arrival = message.arrive_at_barrier
        return c.ArriveAtBarrier(
            job_id=arrival.job_id or ("" if arrival.HasField("job_id") else "default"),
            worker_id=arrival.worker_id,
            incarnation=arrival.incarnation,
            generation=arrival.generation,
            name=arrival.name,
            round=arrival.round if arrival.HasField("round") else 1,
            expected=arrival.expected if arrival.HasField("expected") else None,
            timeout_s=arrival.timeout_s if arrival.HasField("timeout_s") else c.BARRIER_TIMEOUT_S,
            payload=arrival.payload if arrival.HasField("payload") else None,
        )
    return convert.command_from_message(message)


def write_reply(number: int, reply: Reply | StrataError, *, channel_url: str) -> bytes:
    """Return the frame of a reply; one to a registration also says where the channel is."""
    if type(reply) is HeartbeatReply:
        kept = _heartbeat_replies.get(id(reply))
        if kept is None:
            if len(_heartbeat_replies) >= MAX_KEPT:
                _heartbeat_replies.clear()
            kept = reply, convert.reply_to_message(0, reply).SerializeToString()
            # It is kept with its content, so nothing else has its identity.
            _heartbeat_replies[id(reply)] = kept
        return _number(number, kept[1])
    if type(reply) is Done:
        return _number(number, _DONE)
    message = convert.reply_to_message(number, reply)
    if type(reply) is Registered:
        message.registered.channel_url = channel_url
        message.registered.protocol = PROTOCOL
    return pb.ServerFrame(reply=message).SerializeToString()


def write_shards(number: int, shards: bytes) -> bytes:
    """Return the frame of a reply with shards that were encoded before."""
    # Joined in one go: it is copied once.
    head = b"\x08" + _varint(number) + b"\x4a" + _varint(len(shards))
    return b"".join((b"\x0a", _varint(len(head) + len(shards)), head, shards))


def write_effect(effect: Effect) -> bytes:
    """Return the frame of an effect. To whom it goes is left out: a thousand names for each of a thousand workers."""
    message = convert.effect_to_message(effect)
    getattr(message, convert.EFFECTS[type(effect)]).ClearField("to")
    return pb.ServerFrame(effect=message).SerializeToString()


class EffectFrames:
    """An effect as it is sent: made once for each name that those who are told have for the job."""

    __slots__ = ("_effect", "_frames", "_last", "_to")

    def __init__(self, effect: Effect) -> None:
        self._effect = effect
        self._frames: dict[str, bytes] = {}
        # Most who are told are the same principal.
        self._to: Principal | None = None
        self._last = b""

    def of(self, principal: Principal) -> bytes:
        """Return the bytes for someone."""
        if principal is not self._to:
            self._to, self._last = principal, self._make(principal)
        return self._last

    def _make(self, principal: Principal) -> bytes:
        name = shown(principal, self._effect.job_id)
        frame = self._frames.get(name)
        if frame is None:
            frame = self._frames[name] = write_effect(present(principal, self._effect))
        return frame


def _number(number: int, content: bytes) -> bytes:
    """Put the number before an encoded Reply that has none, and all of it into an encoded ServerFrame."""
    numbered = b"\x08" + _varint(number) + content
    return b"\x0a" + _varint(len(numbered)) + numbered


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
