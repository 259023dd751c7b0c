"""Blocks that several workers hold are compared: all of them on the host, by two holders each time elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from strata.checkpoint.format.digest import digest_bytes
from strata.checkpoint.format.tensors import find_tensor
from strata.checkpoint.save import pieces
from strata.checkpoint.save.pieces import Copy, digest_live


def copy_of(values: np.ndarray, *, name: str = "w", position: int = 0, holders: int = 1) -> Copy:
    tensor = find_tensor(values)
    assert tensor is not None
    return Copy(name, (0,), tensor, None, position, holders)


@pytest.mark.parametrize("holders", [2, 3, 8])
def test_two_neighbours_compare_a_block_at_each_step_and_every_holder_has_its_turn(holders: int) -> None:
    copies = [copy_of(np.ones(1), position=position, holders=holders) for position in range(holders)]
    turns = [[copy.position for copy in copies if copy.is_due(step)] for step in range(200)]
    assert all(len(due) == 2 and (due[1] - due[0]) in (1, holders - 1) for due in turns)
    assert {position for due in turns for position in due} == set(range(holders))


def test_two_blocks_are_not_compared_by_the_same_holders_at_every_step() -> None:
    due = {name: [copy_of(np.ones(1), name=name, holders=8).is_due(step) for step in range(50)] for name in "ab"}
    assert due["a"] != due["b"]


@pytest.mark.parametrize("parallel_bytes", [0, 1 << 40])
def test_digests_are_the_same_from_one_thread_and_from_several(
    monkeypatch: pytest.MonkeyPatch, parallel_bytes: int
) -> None:
    monkeypatch.setattr(pieces, "PARALLEL_BYTES", parallel_bytes)
    arrays = [np.full(1_000, number) for number in range(5)]
    found = digest_live([copy_of(array) for array in arrays], step=1)
    assert found == {number: digest_bytes(array.tobytes()) for number, array in enumerate(arrays)}
