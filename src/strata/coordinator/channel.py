"""The channel: the same frames as gRPC's, in binary WebSocket messages, at several times its speed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.entry.gate import Caller, Gate, UnknownKeyError
from strata.coordinator.entry.roles import check_call
from strata.coordinator.entry.server_tls import ServerTls
from strata.coordinator.flow import MAX_UNSENT_BYTES, RATE_LOOK_S, UnsentBudget
from strata.coordinator.sessions import Session, Sessions
from strata.errors import AccessDeniedError, NotLeaderError, QuotaExceededError, UnauthenticatedError

log = logging.getLogger(__name__)

# The largest exchange payload, and what stands around it.
MAX_FRAME_BYTES = (1 << 20) + 4096
# What connects and does not speak WebSocket within this time is hung up on.
HANDSHAKE_TIMEOUT_S = 5.0
# A connection on which nothing came for so long is pinged, and closed if there is no answer in time.
PING_AFTER_S = 30.0
PONG_TIMEOUT_S = 15.0
# So much is read from a connection at once: fifty heartbeats, or a piece of one large frame.
SIP_BYTES = 2 << 10
PIECE_BYTES = 16 << 10
# To copy more than this costs more than another call to send it.
JOIN_BYTES = 16 << 10
# A turn of the loop can make very many answers for one connection: above this they are sent before it ends.
GATHER_BYTES = 64 << 10
# A thousand workers may come back in the same moment.
BACKLOG = 4096
MAX_REFUSED = 1_000  # so many refused connections wait for their answer; more are closed at once
MAX_REASON_BYTES = 120  # a close frame takes 125 bytes, two of them for the code
# Why a connection is not read from: it has too many requests without an answer, its tenant sent more than its quota of
# requests, its tenant has too much waiting while others are there, or it does not read its answers.
_FULL, _RATE, _TURN, _UNREAD = 1, 2, 4, 8
_BINARY = WSMsgType.BINARY


class _Connections:
    """All connections, and which of them have something to send, until the end of the loop's turn.

    Sending costs more than all else that a frame causes, so what a connection gets in one turn goes out at once: the
    answer to the last arrivals at a barrier and its release, say.
    """

    def __init__(self) -> None:
        self._waiting: list[_Listener] = []
        self.unbounded: set[_Listener] = set()
        """Connections that are read from in pieces of any size, because only one tenant is there."""

    def add(self, listener: _Listener) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.send_all)
        self._waiting.append(listener)

    def send_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for listener in waiting:
            listener.send_unsent()

    def bound_reads(self) -> None:
        """Let every connection be read from in small pieces, because tenants share the coordinator."""
        unbounded, self.unbounded = self.unbounded, set()
        for listener in unbounded:
            listener.bound_reads()


class _Sips(asyncio.BufferedProtocol):
    """Between a socket and the WebSocket parser: lets a little be read at once, however much there is.

    The parser's buffer doubles whenever a read fills it, so a client that floods would be read in ever larger pieces,
    and all others would wait for the work that each of them is. A tenant that is alone does not pay for that.
    """

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._get_buffer = parser.get_buffer
        self._buffer_updated = parser.buffer_updated
        self.is_within_frame = False
        """Whether no frame has become whole since the last read."""

    def get_buffer(self, sizehint: int) -> Any:
        buffer = self._get_buffer(sizehint)
        if len(buffer) <= SIP_BYTES:
            return buffer
        return memoryview(buffer)[: PIECE_BYTES if self.is_within_frame else SIP_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self.is_within_frame = True
        self._buffer_updated(nbytes)

    def eof_received(self) -> Any:
        return self._parser.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser.connection_lost(exc)

    def pause_writing(self) -> None:
        self._parser.pause_writing()

    def resume_writing(self) -> None:
        self._parser.resume_writing()


class _Listener(WSListener):
    def __init__(
        self,
        sessions: Sessions,
        dispatcher: Dispatcher,
        connections: _Connections,
        budget: UnsentBudget,
        gate: Gate,
        caller: Caller,
    ) -> None:
        super().__init__()
        self._gate = gate
        self._caller = caller
        self._let_go: Callable[[], None] = lambda: None
        self._connections = connections
        self._budget = budget
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        # Whether the socket took less than it was given last.
        self._has_unread = False
        self._sessions = sessions
        self._turns = sessions.turns
        self._dispatcher = dispatcher
        self._transport: WSTransport | None = None
        self._session: Session | None = None
        self._sips: _Sips | None = None
        self._holds = 0
        # Since it was hung up on; the transport knows of that a turn later.
        self._is_closed = False

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._socket = transport.underlying_transport
        self._connections.unbounded.add(self)
        principal, address = self._caller.principal, _address(transport)
        self._session = Session(
            self._sessions, self._dispatcher, self._send, self.hang_up, principal, address, refuse=self._refuse
        )
        self._let_go = self._gate.hold(self._caller, self.hang_up)
        if self._turns.is_shared:
            self._connections.bound_reads()

    def bound_reads(self) -> None:
        """Read in small pieces from now on."""
        if not self._is_closed:
            self._sips = _Sips(self._socket.get_protocol())
            self._socket.set_protocol(self._sips)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if self._sips is not None:
            self._sips.is_within_frame = False
        if self._is_closed:
            return  # what was read before it was hung up on
        if frame.msg_type != _BINARY or not frame.fin:
            if frame.msg_type == WSMsgType.CLOSE:
                self._close(WSCloseCode.OK, "")
            else:
                self._close(WSCloseCode.UNSUPPORTED_DATA, "frames are whole binary messages")
            return
        session = self._session
        assert session is not None
        if session.receive(frame.get_payload_as_bytes()):
            self._hold_if_needed(session)

    def _hold_if_needed(self, session: Session) -> None:
        if session.is_full:
            self._hold(_FULL)
        if session.wait_s and not self._holds & _RATE:
            self._hold(_RATE)
            until_s = asyncio.get_running_loop().time() + session.wait_s
            self._wait_for_rate(session, until_s, session.rate_per_s)
        if self._turns.must_wait and session.is_busy and not self._holds & _TURN:
            self._hold(_TURN)
            session.when_read(partial(self._release, _TURN))

    def _wait_for_rate(self, session: Session, until_s: float, rate_per_s: float | None) -> None:
        """Read on when the time is over, or soon after the quota was changed."""
        loop = asyncio.get_running_loop()
        left_s = until_s - loop.time()
        if left_s <= 0 or session.rate_per_s != rate_per_s:
            self._release(_RATE)
        elif not self._is_closed:
            loop.call_later(min(left_s, RATE_LOOK_S), self._wait_for_rate, session, until_s, rate_per_s)

    def pause_writing(self) -> None:
        self._hold(_UNREAD)

    def resume_writing(self) -> None:
        self._release(_UNREAD)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._is_closed = True
        self._connections.unbounded.discard(self)
        self._let_go()
        self._budget.note(self, 0)
        if self._session is not None:
            self._session.lost()

    def send_unsent(self) -> None:
        """Send what has gathered in this turn, with one call if that is possible."""
        unsent, self._unsent = self._unsent, []
        size_bytes, self._unsent_bytes = self._unsent_bytes, 0
        transport = self._transport
        if not unsent or transport is None or self._is_closed:
            return
        socket = self._socket
        waiting_bytes = socket.get_write_buffer_size() if self._has_unread else 0
        if waiting_bytes and waiting_bytes + size_bytes > MAX_UNSENT_BYTES:
            self.hang_up("it does not read what it is sent")
            return
        if len(unsent) == 1 or size_bytes > JOIN_BYTES:
            for data in unsent:
                transport.send(_BINARY, data)
        else:
            socket.write(b"".join([_head(data) + data for data in unsent]))
        waiting_bytes = socket.get_write_buffer_size()
        self._has_unread = waiting_bytes > 0
        if self._has_unread:
            self._budget.note(self, waiting_bytes)

    def unsent_bytes(self) -> int:
        """Return how many bytes the client has not taken."""
        if self._transport is None or self._is_closed:
            return 0
        return self._unsent_bytes + self._socket.get_write_buffer_size()

    def hang_up(self, reason: str) -> None:
        """Close the channel at once; its client connects again."""
        log.warning("a channel is closed: %s", reason)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._is_closed = True
        if self._transport is not None:
            self._transport.disconnect(graceful=False)
        if self._session is not None:
            # At once: what is still to be answered need not be made.
            self._session.lost()

    def _send(self, data: bytes) -> None:
        if self._is_closed:
            return
        if not self._unsent:
            self._connections.add(self)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > GATHER_BYTES:
            self.send_unsent()
        if self._holds & _FULL and self._session is not None and not self._session.is_full:
            self._release(_FULL)

    def _hold(self, why: int) -> None:
        if not self._holds and self._transport is not None and not self._is_closed:
            self._socket.pause_reading()
        self._holds |= why

    def _release(self, why: int) -> None:
        was_held, self._holds = bool(self._holds), self._holds & ~why
        if was_held and not self._holds and self._transport is not None and not self._is_closed:
            self._socket.resume_reading()

    def _refuse(self, problem: str) -> None:
        self._close(WSCloseCode.PROTOCOL_ERROR, problem)

    def _close(self, code: WSCloseCode, reason: str) -> None:
        assert self._transport is not None
        if self._is_closed:
            return
        self.send_unsent()
        self._is_closed = True
        self._transport.send_close(code, reason.encode())
        self._transport.disconnect()


class _Refused(WSListener):
    """A connection that is not let in: nothing of it is read, and it is told so, ever more slowly if it guesses."""

    waiting = 0

    def __init__(self, gate: Gate, problem: str) -> None:
        super().__init__()
        self._gate = gate
        self._problem = problem

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.underlying_transport.pause_reading()
        delay_s = self._gate.refuse(_address(transport), self._problem).delay_s
        if _Refused.waiting >= MAX_REFUSED:
            delay_s = 0.0
        _Refused.waiting += 1
        # Not at once either: who connects is told of it first.
        asyncio.get_running_loop().call_later(delay_s, self._close, transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        pass

    def _close(self, transport: WSTransport) -> None:
        _Refused.waiting -= 1
        if not transport.is_disconnected:
            transport.send_close(WSCloseCode.POLICY_VIOLATION, self._problem.encode()[:MAX_REASON_BYTES])
            transport.disconnect()


def _address(transport: WSTransport) -> str:
    peer = transport.underlying_transport.get_extra_info("peername")
    return str(peer[0]) if peer else "unknown"


def _head(data: bytes) -> bytes:
    """Return the head of a whole binary frame of at most JOIN_BYTES, as a server sends it."""
    if len(data) < 126:
        return bytes((0x82, len(data)))
    return b"\x82\x7e" + len(data).to_bytes(2, "big")


async def serve_channel(
    host: str,
    port: int,
    sessions: Sessions,
    dispatcher: Dispatcher,
    budget: UnsentBudget,
    *,
    max_channels: int,
    gate: Gate,
    tls: ServerTls | None = None,
) -> asyncio.Server:
    """Listen for channels; more than ``max_channels`` are refused with a status that says so.

    The gate is asked who opens a channel, once for each.
    """
    connections = _Connections()
    sessions.turns.after_slice = connections.send_all
    secured: dict[str, Any] = {}
    if tls is not None:
        secured = {"ssl": tls.channel_context(), "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S}
    refusal = f"this coordinator serves its {max_channels} channels; close some, or raise its limit\n".encode()

    def accept(request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        if len(sessions.open) >= max_channels:
            log.warning("a channel is refused: %d are open", max_channels)
            response = WSUpgradeResponse.create_error_response(HTTPStatus.SERVICE_UNAVAILABLE, refusal)
            return WSUpgradeResponseWithListener(response, None)
        if gate.is_open and "origin" in request.headers:  # any web page may open a WebSocket to this machine
            return _Refused(gate, "a web page may not open a channel")
        try:
            caller = gate.admit(request.headers.get("authorization"), "")
            check_call(caller.principal, "Channel")
            dispatcher.bounds.check_channel(dispatcher.cluster, caller.principal.tenant)
        except (NotLeaderError, QuotaExceededError) as error:
            response = WSUpgradeResponse.create_error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())
            return WSUpgradeResponseWithListener(response, None)
        except UnauthenticatedError as error:
            return _Refused(gate, error.problem)
        except AccessDeniedError as error:
            return _Refused(gate, str(error))
        except UnknownKeyError:
            # Clients that ask by gRPC first, as Strata's do, have it fetched there.
            return _Refused(gate, "the key of its token is not known yet")
        return _Listener(sessions, dispatcher, connections, budget, gate, caller)

    return await ws_create_server(
        accept,
        host,
        port,
        max_frame_size=MAX_FRAME_BYTES,
        websocket_handshake_timeout=HANDSHAKE_TIMEOUT_S,
        # It grows for frames that are larger.
        read_buffer_init_size=SIP_BYTES,
        # A worker sends heartbeats, so a connection that is idle is dead, or of another kind of client: it is asked.
        enable_auto_ping=True,
        auto_ping_idle_timeout=PING_AFTER_S,
        auto_ping_reply_timeout=PONG_TIMEOUT_S,
        backlog=BACKLOG,
        **secured,
    )
