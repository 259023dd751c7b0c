"""Which blocks of a JAX array are in this process, and which processes hold the same: layouts over absent devices.

Real arrays on several devices and in several processes: tests/integration/checkpoint/test_sharded_jax.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from strata.checkpoint.format.blocks import Block, Held
from strata.checkpoint.format.sharded import Local, count_processes, find_sharded

pytestmark = pytest.mark.part("jax")

UPPER, LOWER = (slice(0, 2), slice(None)), (slice(2, 4), slice(None))


class Device(NamedTuple):
    """A device of some process, which is all that a layout asks of it."""

    process_index: int
    number: int


def lay_out(shape: tuple[int, ...], *devices: tuple[int, tuple[slice, ...]]) -> Any:
    """Return an array without values; each device is its process and its index. This is process 0."""
    import jax

    places = {Device(process, number): at for number, (process, at) in enumerate(devices)}
    here = {device: at for device, at in places.items() if device.process_index == 0}

    class Elsewhere(jax.sharding.Sharding):
        device_set = frozenset(places)
        num_devices = len(places)
        is_fully_addressable = len(here) == len(places)
        is_fully_replicated = False
        memory_kind = None

        def devices_indices_map(self, shape: Any) -> Any:
            return places

        def addressable_devices_indices_map(self, shape: Any) -> Any:
            return here

        def check_compatible_aval(self, shape: Any) -> None:
            """Accept any shape: JAX asks this of its own shardings."""

    return jax.ShapeDtypeStruct(shape, "float32", sharding=Elsewhere())


def test_blocks_that_two_processes_hold_name_both() -> None:
    array = lay_out((4, 3), (0, UPPER), (0, LOWER), (1, UPPER), (1, LOWER))
    assert count_processes(array) == 2
    found = find_sharded(array)
    assert found is not None
    blocks = Block((0, 0), (2, 3), (0, 1)), Block((2, 0), (2, 3), (0, 1))
    assert found.held == Held((0, 1), 4, blocks)
    assert found.me == 0
    assert found.locals == tuple(Local(block, None) for block in blocks)


def test_processes_are_numbered_by_those_that_hold_a_part() -> None:
    found = find_sharded(lay_out((4, 3), (0, UPPER), (5, LOWER)))
    assert found is not None
    assert found.held == Held((0, 5), 4, (Block((0, 0), (2, 3), (0,)), Block((2, 0), (2, 3), (1,))))
    assert found.locals == (Local(Block((0, 0), (2, 3), (0,)), None),)


def test_a_process_that_holds_nothing_of_an_array_is_none_of_its_holders() -> None:
    found = find_sharded(lay_out((4, 3), (1, UPPER), (2, LOWER)))
    assert found is not None
    assert (found.me, found.locals) == (-1, ())


def test_the_devices_of_one_process_need_no_agreement_and_empty_blocks_are_left_out() -> None:
    array = lay_out((4, 3), (0, UPPER), (0, LOWER), (0, LOWER), (0, (slice(4, 4), slice(None))))
    assert count_processes(array) == 1
    found = find_sharded(array)
    assert found is not None
    assert found.held is None
    assert [local.block for local in found.locals] == [Block((0, 0), (2, 3), (0,)), Block((2, 0), (2, 3), (0,))]
