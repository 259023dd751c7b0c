"""A state goes into a checkpoint and back into the same objects, and n workers write it once."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.format.tree import flatten
from strata.checkpoint.save.pieces import cut_pieces
from strata.errors import StrataError
from strata.run.loop.state import find_own_buffers, is_spread, put_back, spread, to_like, to_tree


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
    import torch

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
    import jax.numpy as jnp

    into = {"w": jnp.zeros(3)}
    round_trip({"w": jnp.arange(3.0)}, into, tmp_path)
    assert into["w"].tolist() == [0, 1, 2]


@given(sizes=st.lists(st.integers(0, 40), max_size=6), world_size=st.integers(1, 8))
def test_the_workers_write_each_tensor_once_and_all_about_equally_much(sizes: list[int], world_size: int) -> None:
    whole = {f"w{n}": np.arange(rows * 32_000, dtype=np.float64).reshape(rows, 32_000) for n, rows in enumerate(sizes)}
    reports, written = [], []
    for rank in range(world_size):
        pieces = cut_pieces(flatten(spread(whole, rank=rank, world_size=world_size)))
        reports.append({entry: (leaf, pieces.whole[entry]) for entry, leaf in pieces.entries.items()})
        written.append(sum(leaf.tensor.nbytes for leaf in pieces.entries.values()))
    for name, value in whole.items():
        rebuilt = np.full_like(value, -1)
        for leaf, of in (each for report in reports for each in report.values()):
            if of == name:
                rows = slice(leaf.start[0], leaf.start[0] + leaf.tensor.shape[0])
                rebuilt[rows] = leaf.tensor.source
        assert np.array_equal(rebuilt, value)
    total = sum(value.nbytes for value in whole.values())
    assert sum(written) == total
    assert max(written) - min(written) <= total / world_size / 2 + 2 * 32_000 * 8


@pytest.mark.part("torch")
def test_small_tensors_are_of_one_rank_and_the_buffers_of_ddp_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    # Real DDP needs a process group, and nothing here looks at more than its type.
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", torch.nn.Sequential)
    own = find_own_buffers({"model": model})
    pieces = [
        cut_pieces(flatten(spread(to_tree({"model": model}), rank=rank, world_size=3, own=own))) for rank in range(3)
    ]
    assert [len(each.entries) for each in pieces] == [7, 0, 0]
    assert {copy.name for copy in pieces[1].copies} == {
        "model.0.weight",
        "model.0.bias",
        "model.1.weight",
        "model.1.bias",
    }


def test_plain_values_and_trees_with_slices_stay_as_they_are() -> None:
    own = Slice(np.zeros((2, 2)), (4, 2), (0, 0))
    tree = {"small": np.zeros(4), "own": own, "n": 3, "text": "x", "raw": b"y", "list": [1, (2.0, None)]}
    assert spread(tree, rank=1, world_size=2) is tree
    assert is_spread(tree)
    plain = {"n": 3, "text": "x", "raw": b"y", "list": [1, (2.0, None)]}
    assert spread(plain, rank=1, world_size=2) == plain
    assert not is_spread({"a": [1, (np.zeros(2),)]})


def test_what_no_checkpoint_can_keep_is_left_for_the_checkpoint_to_name(tmp_path: Path) -> None:
    refused = np.array([object()])
    share = spread({"w": np.zeros(4), "bad": refused}, rank=0, world_size=2)
    assert share["bad"] is refused
    with CheckpointManager(tmp_path) as manager, pytest.raises(StrataError, match="bad"):
        manager.save(share, 1)


def test_containers_keep_their_kind_in_what_each_worker_saves() -> None:
    """A state of several workers goes through two more copies of its tree than one of a process alone."""
    kept = OrderedDict(w=np.zeros(4), names=defaultdict(list, a=[1]), last=deque([np.ones(2)], maxlen=3))
    shares = [spread(to_tree(kept), rank=rank, world_size=2) for rank in range(2)]
    assert [flatten(share).structure for share in shares] == [flatten(kept).structure] * 2
