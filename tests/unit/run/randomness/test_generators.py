"""Generators of every library are read as JSON, put back exactly, and seeded by numbers that never change."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.checkpoint.format.random_state import SavedRandomState
from strata.run.randomness import generators
from strata.run.randomness.randomness import Purpose, Randomness, derive_seed

BITS = (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
MAKERS: dict[str, Any] = {
    "random.Random": random.Random,
    "RandomState": np.random.RandomState,
    **{f"Generator of {each.__name__}": lambda seed, each=each: np.random.Generator(each(seed)) for each in BITS},
    **{f"RandomState of {each.__name__}": lambda seed, each=each: np.random.RandomState(each(seed)) for each in BITS},
}


def draw(generator: Any) -> list[float]:
    """Numbers of both kinds that are kept in pairs."""
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1), *(generator.random() for _ in range(700))]
    if isinstance(generator, np.random.Generator):
        return [generator.normal(), float(generator.integers(0, 9, dtype=np.int32)), *generator.normal(size=700)]
    return [generator.normal(), *generator.normal(size=700)]


def round_trip(states: dict[str, Any]) -> dict[str, Any]:
    return generators.decode(generators.encode(states))


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), draws=st.integers(0, 2))
def test_a_generator_that_is_put_back_draws_the_same_numbers(name: str, seed: int, draws: int) -> None:
    one, other = MAKERS[name](seed), MAKERS[name](seed + 1 & 0xFFFF)
    for _ in range(draws):
        draw(one)
    generators.put_back(other, round_trip({"g": generators.read_state(one)})["g"])
    assert draw(other) == draw(one)


@pytest.mark.parametrize("name", MAKERS)
def test_a_seeded_generator_forgets_what_it_drew_before(name: str) -> None:
    one, other = MAKERS[name](1), MAKERS[name](2)
    draw(one)
    for each in (one, other):
        generators.seed(each, 2**64 - 1)
    assert draw(one) == draw(other)


def test_a_state_of_another_kind_is_refused() -> None:
    states = {name: generators.read_state(make(1)) for name, make in MAKERS.items()}
    for name, other in (
        ("random.Random", "RandomState"),
        ("RandomState", "random.Random"),
        ("RandomState", "RandomState of PCG64"),
        ("Generator of PCG64", "Generator of Philox"),
    ):
        with pytest.raises(generators.RefusedStateError):
            generators.put_back(MAKERS[name](1), states[other])


def test_what_is_saved_is_json_without_pickle() -> None:
    data = Randomness(5).read({"own.rng": np.random.default_rng(1)})
    assert data is not None
    saved = json.loads(data)
    assert saved["version"] == 1
    assert saved["seed"] == 5
    assert {"python", "numpy"} <= saved["shared"].keys()
    assert saved["held"]["own.rng"]["bit_generator"] == "PCG64"


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_saved_keeps_its_size_whatever_was_drawn(name: str) -> None:
    generator, sizes = MAKERS[name](1), set()
    for _ in range(20):
        sizes.add(len(generators.encode({"g": generators.read_state(generator)})))
        draw(generator)
    assert len(sizes) == 1


def test_a_source_of_the_system_has_no_state_that_could_be_saved() -> None:
    assert not generators.is_generator(random.SystemRandom())
    assert not any(map(generators.is_generator, (random, np.random, 5, None, "x", [random.Random(1)])))


def test_seeds_are_the_same_in_every_process_and_version() -> None:
    assert derive_seed(0, Purpose.WORKER, 0, 0, "torch") == 18267204027948892055
    assert derive_seed(7, Purpose.BLOCK, 100, 3, "python") == 1007736321791961916


@given(
    st.sets(st.tuples(st.integers(0, 5), st.sampled_from(Purpose), st.integers(0, 50), st.integers(0, 50)), max_size=50)
)
def test_seeds_of_different_steps_workers_and_blocks_differ(keys: set[tuple[int, Purpose, int, int]]) -> None:
    seeds = {derive_seed(*key, generator) for key in keys for generator in ("python", "numpy", "torch")}
    assert len(seeds) == 3 * len(keys)


def test_shared_generators_are_seeded_in_a_block_and_go_on_after_it_as_if_nothing_was() -> None:
    def numbers() -> tuple[float, float]:
        return random.random(), np.random.random()

    randomness = Randomness(1)
    random.seed(1)
    np.random.seed(1)
    expected = [numbers(), numbers()]
    random.seed(1)
    np.random.seed(1)
    before = numbers()
    drawn = []
    for block in (4, 5, 4):
        with randomness.seeded(2, block):
            drawn.append(numbers())
    with pytest.raises(ZeroDivisionError), randomness.seeded(2, 4):
        1 / 0  # noqa: B018 - it is to raise
    assert [before, numbers()] == expected
    assert drawn[0] == drawn[2] != drawn[1]


def test_generators_that_do_not_take_their_state_are_seeded_and_named(caplog: pytest.LogCaptureFixture) -> None:
    randomness = Randomness(1)
    saved = SavedRandomState(randomness.read({"rng": np.random.default_rng(1)}), 1)
    drawn = []
    for seed in (1, 2):
        other = np.random.Generator(np.random.Philox(seed))
        randomness.put_back(saved, {"rng": other, "new": random.Random(1)}, step=5, rank=0, world_size=1)
        drawn.append(other.normal())
    assert drawn[0] == drawn[1]
    said = [each.getMessage() for each in caplog.records][:2]
    assert said[0].startswith("generator rng does not take its state of step 5 and is seeded by (seed 1, step, rank): ")
    assert said[1] == "the checkpoint of step 5 has no state of the generators new"


def test_a_run_with_another_seed_than_its_checkpoint_says_so(caplog: pytest.LogCaptureFixture) -> None:
    saved = SavedRandomState(Randomness(1).read({}), 1)
    Randomness(2).put_back(saved, {}, step=5, rank=0, world_size=1)
    assert "was saved with seed 1, and this run has seed 2" in caplog.text


def cuda_of(count: int, current: int) -> tuple[Any, list[Any]]:
    import torch

    devices = [torch.Generator().manual_seed(number) for number in range(count)]

    class Cuda:
        default_generators = devices
        is_initialized = staticmethod(lambda: True)
        current_device = staticmethod(lambda: current)

    return Cuda, devices


@pytest.mark.part("torch")
def test_the_generator_of_a_cuda_device_goes_on_at_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    cuda, devices = cuda_of(4, current=3)
    monkeypatch.setattr(torch, "cuda", cuda)
    saved = SavedRandomState(Randomness().read({}), 1)
    expected = [float(torch.rand(1, generator=devices[number])) for number in (3, 0)]
    cuda, devices = cuda_of(2, current=1)
    monkeypatch.setattr(torch, "cuda", cuda)
    Randomness().put_back(saved, {}, step=5, rank=0, world_size=1)
    assert [float(torch.rand(1, generator=devices[number])) for number in (1, 0)] == expected


@pytest.mark.part("torch")
def test_dropout_and_generators_of_torch_go_on_where_they_were() -> None:
    import torch

    def draw_torch(own: Any) -> list[float]:
        return [*torch.nn.functional.dropout(torch.ones(100)).tolist(), *torch.randn(5, generator=own).tolist()]

    torch.manual_seed(1)
    own = torch.Generator().manual_seed(2)
    draw_torch(own)
    saved = SavedRandomState(Randomness().read({"own": own}), 1)
    expected = draw_torch(own)
    torch.manual_seed(3)
    other = torch.Generator().manual_seed(4)
    Randomness().put_back(saved, {"own": other}, step=5, rank=0, world_size=1)
    assert draw_torch(other) == expected
