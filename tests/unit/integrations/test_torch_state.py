"""torchrun's state from the network is data: no pickle in it ever runs code on a node."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.testbed.parts import LazyModule

rendezvous: Any = LazyModule("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
torch_state: Any = LazyModule("strata.integrations.torch_state")
pytestmark = pytest.mark.part("torch")


def make_state() -> Any:
    node = rendezvous._NodeDesc("10.0.0.5", 42, 0)
    state = rendezvous._RendezvousState()
    state.round, state.complete, state.deadline = 3, True, datetime.now(UTC)
    state.participants = {node: 0}
    state.wait_list = {rendezvous._NodeDesc("10.0.0.6", 1, 1)}
    state.last_heartbeats = {node: datetime.now(UTC)}
    return state


class Runs:
    """A pickle of it calls a function with arguments when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def test_a_state_of_torch_comes_through_whole() -> None:
    state = make_state()
    assert vars(torch_state.load_state(pickle.dumps(state))) == vars(state)
    assert vars(pickle.loads(torch_state.dump_state(state))) == vars(state)


@pytest.mark.parametrize("protocol", range(4, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_pickle_is_read(protocol: int) -> None:
    assert torch_state.load_state(pickle.dumps(make_state(), protocol)).round == 3


@pytest.mark.parametrize("place", ["whole", "round", "participants", "wait_list", "last_heartbeats", "extra"])
@pytest.mark.parametrize(
    "call", [lambda path: Runs(os.mkdir, path), lambda path: Runs(subprocess.call, ["mkdir", path]),
             lambda path: Runs(eval, f"__import__('os').mkdir({path!r})"), lambda path: Runs(getattr, Runs, path)]
)  # fmt: skip
def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path: Path, place: str, call: Any) -> None:
    made = tmp_path / "made"
    hostile = call(str(made))
    state: Any = make_state()
    if place == "whole":
        state = hostile
    elif place in ("round", "extra"):
        setattr(state, place, hostile)
    elif place == "wait_list":
        state.wait_list = [hostile]
    else:
        setattr(state, place, {"node": hostile})
    data = pickle.dumps(state)
    with pytest.raises(torch_state.UnsafeStateError, match="none of torch's"):
        torch_state.load_state(data)
    assert not made.exists()


def test_the_hostile_pickle_of_these_tests_does_run_where_it_is_loaded(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Runs(os.mkdir, str(tmp_path / "made"))))
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("round", "3"), ("complete", 1), ("participants", []), ("wait_list", {}), ("last_heartbeats", {"a": 1})],
)
def test_a_field_of_another_type_is_refused(field: str, value: Any) -> None:
    state = make_state()
    setattr(state, field, value)
    with pytest.raises(torch_state.UnsafeStateError):
        torch_state.load_state(pickle.dumps(state))


def test_a_state_that_refers_to_an_object_outside_of_it_is_refused() -> None:
    class Referring(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            return "somewhere else" if item == 3 else None

    sink = io.BytesIO()
    Referring(sink).dump(make_state())
    with pytest.raises(torch_state.UnsafeStateError, match="it refers to an object outside of it"):
        torch_state.load_state(sink.getvalue())


def test_a_state_that_is_too_long_is_not_even_looked_at() -> None:
    data = pickle.dumps(make_state())
    padded = data + bytes(torch_state.MAX_STATE_BYTES - len(data))
    assert torch_state.load_state(padded).round == 3
    with pytest.raises(torch_state.UnsafeStateError, match="it has 1048577 bytes, more than 1048576"):
        torch_state.load_state(padded + b"\0")


@given(st.binary(max_size=300))
def test_bytes_that_are_no_pickle_are_refused(data: bytes) -> None:
    with pytest.raises(torch_state.UnsafeStateError):
        torch_state.load_state(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_state_is_refused_or_is_a_state(place: int, value: int) -> None:
    data = bytearray(pickle.dumps(make_state()))
    data[place % len(data)] = value
    try:
        state = torch_state.load_state(bytes(data))
    except torch_state.UnsafeStateError:
        return
    assert type(state) is rendezvous._RendezvousState
