"""torchrun's rendezvous state as it comes from the network: read without ever running what is in it.

torch keeps the state as a pickle and loads it itself, so whoever could write the key could run code on every node. Here
it is read by an unpickler that knows torch's own two classes and those of time, and nothing else; then each field is
checked, and torch is given the bytes of what was checked.
"""

from __future__ import annotations

import io
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

MAX_STATE_BYTES = 1 << 20
_ALLOWED = {
    (_RendezvousState.__module__, _RendezvousState.__qualname__): _RendezvousState,
    (_NodeDesc.__module__, _NodeDesc.__qualname__): _NodeDesc,
    ("datetime", "datetime"): datetime,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("builtins", "set"): set,
}


class UnsafeStateError(ValueError):
    """The state holds something that torch never puts there; it was not loaded."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise UnsafeStateError(f"it names {module}.{name}, which is none of torch's rendezvous") from None

    def persistent_load(self, _: Any, /) -> Any:
        raise UnsafeStateError("it refers to an object outside of it")


def load_state(data: bytes) -> _RendezvousState:
    """Return the state of some bytes, or raise UnsafeStateError. No code of anyone runs meanwhile."""
    if len(data) > MAX_STATE_BYTES:
        raise UnsafeStateError(f"it has {len(data)} bytes, more than {MAX_STATE_BYTES}")
    try:
        state = _Unpickler(io.BytesIO(data)).load()
        _check(state)
    except UnsafeStateError:
        raise
    except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, LookupError, EOFError, MemoryError) as error:
        raise UnsafeStateError(f"it cannot be read: {type(error).__name__}") from error
    return state


def dump_state(state: _RendezvousState) -> bytes:
    """Return the bytes that torch may load: only what was checked is in them."""
    return pickle.dumps(state)


def _check(state: Any) -> None:
    if type(state) is not _RendezvousState or set(vars(state)) != set(vars(_RendezvousState())):
        raise UnsafeStateError("it is no rendezvous state of this version of torch; use the same on every node")
    nodes = [*state.participants, *state.wait_list, *state.redundancy_list, *state.last_heartbeats]
    is_right = (
        type(state.round) is int
        and all(type(flag) is bool for flag in (state.complete, state.closed))
        and (state.deadline is None or type(state.deadline) is datetime)
        and all(type(each) is dict for each in (state.participants, state.last_heartbeats))
        and all(type(each) is set for each in (state.wait_list, state.redundancy_list))
        and all(type(rank) is int for rank in state.participants.values())
        and all(type(at) is datetime for at in state.last_heartbeats.values())
        and all(_is_node(node) for node in nodes)
    )
    if not is_right:
        raise UnsafeStateError("a field of it is of another type than torch's")


def _is_node(node: Any) -> bool:
    return (
        type(node) is _NodeDesc
        and set(vars(node)) == {"addr", "pid", "local_id"}
        and type(node.addr) is str
        and type(node.pid) is int
        and type(node.local_id) is int
    )
