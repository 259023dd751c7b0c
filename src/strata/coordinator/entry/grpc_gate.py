"""The gate of gRPC: each call is let in by its token and by what its role may do, before anything of it is decoded.

It stands in the handlers themselves. An interceptor of grpc.aio would cost a call several times what the check costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from strata.cluster.access import LOCAL, Principal
from strata.coordinator.entry.gate import Caller, Gate, UnknownKeyError
from strata.coordinator.entry.roles import MAY_CALL, check_call
from strata.errors import AccessDeniedError, NotLeaderError, StrataError, UnauthenticatedError
from strata.wire.errors import ERROR_TRAILER, status_of, to_error

MAX_PEERS = 10_000
Handlers = Mapping[str, Any]
Context = grpc.aio.ServicerContext[Any, Any]

# The call that is served in this task, and those that it starts.
_caller: ContextVar[Caller] = ContextVar("caller")
NOBODY = Caller(LOCAL, "")


def caller_of_call() -> Caller:
    """Return who makes the call that is being served."""
    return _caller.get(NOBODY)


def principal_of_call(_: object) -> Principal:
    """Return as whom that is."""
    return _caller.get(NOBODY).principal


class GrpcGate:
    """Lets calls in, or answers them with the reason."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def guard(self, handlers: Handlers) -> dict[str, Any]:
        """Return the handlers of a service, by the names of its calls, with the gate before each of them."""
        return {name: self._guard(name, handler) for name, handler in handlers.items()}

    def _guard(self, name: str, handler: Any) -> Any:
        if handler.request_streaming:
            # Its requests are decoded when they are asked for.
            guarded = self._before_stream(name, handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(
                guarded, handler.request_deserializer, handler.response_serializer
            )
        if handler.response_streaming:
            guarded = self._before_replies(name, handler)
            return grpc.unary_stream_rpc_method_handler(guarded, None, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(self._before_reply(name, handler), None, handler.response_serializer)

    def _before_reply(self, name: str, handler: Any) -> Any:
        serve, decode = handler.unary_unary, handler.request_deserializer

        async def guarded(data: bytes, context: Context) -> Any:
            caller = self._gate.recall(_authorization(context))
            if caller is not None and name in MAY_CALL[caller.principal.role]:
                _caller.set(caller)
            else:
                await self._enter(name, context)
            try:
                request = decode(data)
            except DecodeError as error:
                await _refuse_bytes(context, error)
            return await serve(request, context)

        return guarded

    def _before_replies(self, name: str, handler: Any) -> Any:
        serve, decode = handler.unary_stream, handler.request_deserializer

        async def guarded(data: bytes, context: Context) -> None:
            await self._enter(name, context)
            try:
                request = decode(data)
            except DecodeError as error:
                await _refuse_bytes(context, error)
            await serve(request, context)

        return guarded

    def _before_stream(self, name: str, serve: Any) -> Any:
        async def guarded(requests: Any, context: Context) -> None:
            await self._enter(name, context)
            await serve(requests, context)

        return guarded

    async def _enter(self, name: str, context: Context) -> None:
        """Note who makes a call, or end it with why not."""
        gate = self._gate
        if gate.is_open:
            return
        authorization = _authorization(context)
        try:
            try:
                caller = gate.admit(authorization, "")
            except UnknownKeyError:
                caller = await gate.admit_patiently(authorization, "")
            check_call(caller.principal, name)
            gate.remember(authorization, caller)
        except NotLeaderError as error:
            # A standby says to everyone where the leader is, and nothing else.
            if name != "Describe":
                await _refuse(context, error)
        except UnauthenticatedError as error:
            # Ever more slowly to those who guess.
            await gate.slow_down(peer_address(context.peer()), error.problem)
            await _refuse(context, error)
        except AccessDeniedError as error:
            await _refuse(context, error)
        else:
            _caller.set(caller)


@lru_cache(maxsize=MAX_PEERS)
def peer_address(peer: str) -> str:
    """Return the address of a gRPC peer such as ipv4:10.0.0.5:41000, without its port; a connection asks each time."""
    host = peer.partition(":")[2].rpartition(":")[0]
    return host.replace("%5B", "").replace("%5D", "").strip("[]") or peer


def _authorization(context: Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value.decode("latin-1") if isinstance(value, bytes) else value
    return None


async def _refuse_bytes(context: Context, error: DecodeError) -> NoReturn:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be decoded: {error}")
    raise AssertionError("abort raises")


async def _refuse(context: Context, error: StrataError) -> NoReturn:
    trailers = ((ERROR_TRAILER, to_error(error).SerializeToString()),)
    await context.abort(status_of(error), str(error), trailers)
    raise AssertionError("abort raises")
