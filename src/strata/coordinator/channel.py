"""The channel: the same frames as gRPC's, in binary WebSocket messages, at several times its speed."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from google.protobuf.message import DecodeError
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
from strata.coordinator.sessions import Session, Sessions
from strata.wire._generated import coordinator_pb2 as pb

log = logging.getLogger(__name__)

# The largest exchange payload, and what stands around it.
MAX_FRAME_BYTES = (1 << 20) + 4096
# A client that does not read has so much sent to it and no more; then it must connect again.
MAX_UNSENT_BYTES = 16 << 20
# What connects and does not speak WebSocket within this time is hung up on.
HANDSHAKE_TIMEOUT_S = 5.0
# Most frames are much smaller; it grows for those that are not.
READ_BUFFER_BYTES = 4096
# To copy more than this costs more than another call to send it.
JOIN_BYTES = 16 << 10
# A thousand workers may come back in the same moment.
BACKLOG = 4096


class _Outbox:
    """Connections with something to send, until the end of the loop's turn.

    Sending costs more than all else that a frame causes, so what a connection gets in one turn goes out at once: the
    answer to the last arrivals at a barrier and its release, say.
    """

    def __init__(self) -> None:
        self._waiting: list[_Listener] = []

    def add(self, listener: _Listener) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._waiting.append(listener)

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for listener in waiting:
            listener.send_unsent()


class _Listener(WSListener):
    def __init__(self, sessions: Sessions, dispatcher: Dispatcher, outbox: _Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self._unsent: list[bytes] = []
        self._sessions = sessions
        self._dispatcher = dispatcher
        self._transport: WSTransport | None = None
        self._session: Session | None = None

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._session = Session(self._sessions, self._dispatcher, self._send)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            self.send_unsent()
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            return
        if frame.msg_type != WSMsgType.BINARY or not frame.fin:
            self._refuse(WSCloseCode.UNSUPPORTED_DATA, "frames are whole binary messages")
            return
        try:
            message = pb.ClientFrame.FromString(frame.get_payload_as_bytes())
        except DecodeError:
            self._refuse(WSCloseCode.PROTOCOL_ERROR, "not a ClientFrame")
            return
        assert self._session is not None
        self._session.receive(message)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._session is not None:
            self._session.lost()

    def send_unsent(self) -> None:
        """Send what has gathered in this turn, with one call if that is possible."""
        unsent, self._unsent = self._unsent, []
        transport = self._transport
        if transport is None or transport.is_disconnected:
            return
        if transport.underlying_transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("a client does not read what it is sent; its channel is closed")
            transport.disconnect(graceful=False)
            return
        if len(unsent) == 1 or sum(map(len, unsent)) > JOIN_BYTES:
            for data in unsent:
                transport.send(WSMsgType.BINARY, data)
        else:
            transport.underlying_transport.write(b"".join([_head(data) + data for data in unsent]))

    def _send(self, data: bytes) -> None:
        if not self._unsent:
            self._outbox.add(self)
        self._unsent.append(data)

    def _refuse(self, code: WSCloseCode, reason: str) -> None:
        assert self._transport is not None
        self.send_unsent()
        self._transport.send_close(code, reason.encode())
        self._transport.disconnect()


def _head(data: bytes) -> bytes:
    """Return the head of a whole binary frame, as a server sends it."""
    if len(data) < 126:
        return bytes((0x82, len(data)))
    if len(data) < 1 << 16:
        return b"\x82\x7e" + len(data).to_bytes(2, "big")
    return b"\x82\x7f" + len(data).to_bytes(8, "big")


async def serve_channel(
    host: str, port: int, sessions: Sessions, dispatcher: Dispatcher, *, max_channels: int
) -> asyncio.Server:
    """Listen for channels; more than ``max_channels`` are refused with a status that says so."""
    outbox = _Outbox()
    refusal = f"this coordinator serves its {max_channels} channels; close some, or raise its limit\n".encode()

    def accept(request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        if len(sessions.open) >= max_channels:
            log.warning("a channel is refused: %d are open", max_channels)
            response = WSUpgradeResponse.create_error_response(HTTPStatus.SERVICE_UNAVAILABLE, refusal)
            return WSUpgradeResponseWithListener(response, None)
        return _Listener(sessions, dispatcher, outbox)

    return await ws_create_server(
        accept,
        host,
        port,
        max_frame_size=MAX_FRAME_BYTES,
        websocket_handshake_timeout=HANDSHAKE_TIMEOUT_S,
        read_buffer_init_size=READ_BUFFER_BYTES,
        backlog=BACKLOG,
    )
