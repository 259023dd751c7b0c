"""Mixtures in torch's loaders, and loaders with workers under DDP: every batch is a resume point for any numbers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.pace import stretch
from tests.testbed.process import end, start

pytestmark = [
    pytest.mark.part("torch"),
    pytest.mark.timeout(300),
    # torch starts its workers by fork while the threads of a loader are there.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    # JAX says so as soon as another test has imported it; no worker here uses JAX.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
    # There may be fewer cores than workers here.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata calls what torch no longer wants to be called.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

STEPS = 18
KINDS = ["stop", "repeat"]


def opened(kind: str, **share: Any) -> Any:
    from tests.testbed.programs.ddp_loader import open_kind

    return open_kind(kind, **share)


def stateful(dataset: Any, num_workers: int, *, persistent: bool = False) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from strata.integrations.torch_data import TorchDataset

    return StatefulDataLoader(
        TorchDataset(dataset), batch_size=None, num_workers=num_workers, persistent_workers=persistent
    )


def take(batches: Any, count: int) -> list[list[int]]:
    return [batch["id"].tolist() for batch in islice(batches, count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True), (3, False)])
def test_every_batch_of_a_mixture_is_a_resume_point_of_a_stateful_loader(
    kind: str, num_workers: int, persistent: bool
) -> None:
    expected = take(opened(kind), STEPS)
    loader = stateful(opened(kind), num_workers, persistent=persistent)
    seen, states = [], []
    for batch in islice(loader, STEPS):
        seen.append(batch["id"].tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert seen == expected
    for count, state in enumerate(states[:-1], start=1):
        resumed = stateful(opened(kind), num_workers, persistent=persistent)
        resumed.load_state_dict(state)
        assert take(resumed, STEPS - count) == expected[count:], count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_goes_on_exactly_whatever_the_numbers_of_ranks_and_workers_become(kind: str, seed: int) -> None:
    from strata.integrations.torch_data import merge_loader_states

    chance = random.Random(seed)
    expected = take(opened(kind), STEPS)
    seen: list[list[int]] = []
    state = None
    while len(seen) < STEPS:
        world_size, num_workers = chance.randint(1, 3), chance.choice([0, 1, 2, 3])
        steps = chance.randint(1, min(6, STEPS - len(seen)))
        shares, states = [], []
        for rank in range(world_size):
            dataset = opened(kind, rank=rank, world_size=world_size)
            if state is not None:
                dataset.load_state_dict(state)
            loader = stateful(dataset, num_workers)
            shares.append(take(loader, steps))
            states.append(loader.state_dict())
        seen += [[number for share in step for number in share] for step in zip(*shares, strict=True)]
        state = json.loads(json.dumps(merge_loader_states(states)))
    assert seen == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ddp_with_loader_workers_goes_on_exactly_with_other_numbers_of_both(kind: str, tmp_path: Path) -> None:
    expected = take(opened(kind), 10)
    seen = []
    for life, (world_size, num_workers, steps) in enumerate([(2, 1, 5), (1, 2, 5)]):
        arguments = [str(world_size), str(num_workers), str(steps), kind]
        command = [sys.executable, "-m", "tests.testbed.programs.ddp_loader", str(tmp_path), str(life)]
        ranks = [
            start([*command, str(rank), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(world_size)
        ]
        try:
            for rank in ranks:
                said, _ = rank.communicate(timeout=stretch(120))
                assert rank.returncode == 0, said
        finally:
            for rank in ranks:
                end(rank)
        seen += json.loads((tmp_path / f"seen-{life}.json").read_text())
    assert seen == expected
