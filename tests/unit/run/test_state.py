"""A state goes into a checkpoint and back into the same objects, and n workers write it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, Slice
from strata.run.state import SPREAD_BYTES, has_slices, put_back, spread, to_like, to_tree


class Counter:
    """Keeps its own state, as a scheduler does."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def round_trip(saved: Any, into: Any, folder: Path) -> Any:
    with CheckpointManager(folder) as manager:
        manager.save(to_tree(saved), 1)
        return put_back(into, manager.load(like=to_like(into)).data)


def test_arrays_are_filled_in_place_and_plain_values_and_keepers_of_their_own_state_come_back(tmp_path: Path) -> None:
    counter, other = Counter(), Counter()
    counter.count = 5
    weights = np.zeros(3)
    saved = {"w": np.arange(3.0), "step": 7, "schedule": counter, "history": [1, np.ones(2)]}
    into = {"w": weights, "step": 0, "schedule": other, "history": [0, np.zeros(2)]}
    assert round_trip(saved, into, tmp_path) is into
    assert weights.tolist() == [0, 1, 2]
    assert (into["step"], other.count) == (7, 5)
    assert into["schedule"] is other
    assert into["history"][0] == 1
    assert into["history"][1].tolist() == [1, 1]


@pytest.mark.part("torch")
def test_a_fresh_optimizer_takes_the_momentum_that_the_checkpoint_has(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def make() -> dict[str, Any]:
        model = torch.nn.Linear(3, 2)
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters())}

    trained, fresh = make(), make()
    trained["model"](torch.ones(1, 3)).sum().backward()
    trained["optimizer"].step()
    round_trip(trained, fresh, tmp_path)
    for one, other in zip(trained["model"].parameters(), fresh["model"].parameters(), strict=True):
        assert torch.equal(one, other)
        mine, theirs = trained["optimizer"].state[one], fresh["optimizer"].state[other]
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])


@pytest.mark.part("jax")
def test_arrays_that_cannot_change_are_replaced_in_the_state(tmp_path: Path) -> None:
    jnp = pytest.importorskip("jax.numpy")
    into = {"w": jnp.zeros(3)}
    round_trip({"w": jnp.arange(3.0)}, into, tmp_path)
    assert into["w"].tolist() == [0, 1, 2]


@given(rows=st.integers(1, 40), world_size=st.integers(1, 8))
def test_the_shares_of_all_workers_make_up_each_large_tensor(rows: int, world_size: int) -> None:
    whole = np.arange(rows * SPREAD_BYTES // 8, dtype=np.float64).reshape(rows, -1)
    shares = [spread({"w": whole}, rank=rank, world_size=world_size)["w"] for rank in range(world_size)]
    if world_size == 1 or rows < world_size:
        assert all(share is whole for share in shares)
        return
    assert all(isinstance(share, Slice) and share.shape == whole.shape for share in shares)
    assert np.array_equal(np.concatenate([share.data for share in shares]), whole)
    assert [share.start[0] for share in shares[1:]] == np.cumsum([len(share.data) for share in shares])[:-1].tolist()


def test_small_tensors_plain_values_and_slices_stay_as_they_are() -> None:
    own = Slice(np.zeros((2, 2)), (4, 2), (0, 0))
    tree = {"small": np.zeros(4), "own": own, "n": 3, "text": "x", "raw": b"y", "list": [1, (2.0, None)]}
    assert spread(tree, rank=1, world_size=2) == tree
    assert has_slices(tree)
    assert not has_slices({"a": [1, (np.zeros(2),)]})
