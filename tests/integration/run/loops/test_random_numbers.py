"""Random numbers after a restart: the same as in a run that was never disturbed, for every generator of a worker."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import RandomState

import strata
from strata.checkpoint import CheckpointManager
from strata.checkpoint.format.random_state import RANDOM_STATE, RandomStateOf, SavedRandomState
from strata.errors import Reconfigure, UnsavableStateError
from strata.run.randomness.randomness import Randomness
from tests.integration.run.loops.joining import join
from tests.testbed.pace import stretch

STEPS = 8


def seed_everything(seed: int) -> None:
    """As a script does at its beginning, in every process alike."""
    random.seed(seed)
    np.random.seed(seed)


def draw() -> tuple[float, float, float]:
    """One number of each generator, and a normal one: those come in pairs, of which the second is kept."""
    return random.random(), np.random.random(), random.gauss(0, 1) + np.random.standard_normal()


def train(run: strata.Run, state: dict[str, Any], *, until: int = STEPS) -> dict[int, Any]:
    drawn = {}
    for step in run.steps(state, until=until):
        with step:
            state["x"] += 1
            drawn[step.number] = draw()
    return drawn


def test_a_restarted_run_draws_the_numbers_of_an_undisturbed_one(tmp_path: Path) -> None:
    seed_everything(5)
    with join(tmp_path / "whole") as run:
        expected = train(run, {"x": np.zeros(1)})
    seed_everything(5)
    with join(tmp_path / "parts") as run:
        train(run, {"x": np.zeros(1)}, until=6)
    seed_everything(77)
    with join(tmp_path / "parts") as run:
        drawn = train(run, {"x": np.zeros(1)})
    assert drawn == {number: expected[number] for number in (7, 8)}


def test_a_worker_at_a_coordinator_goes_on_with_its_numbers_from_step_0_on(tmp_path: Path, url: str) -> None:
    seed_everything(5)
    with join(tmp_path, url, save_every="1000 steps") as run:
        steps = run.steps({"x": np.zeros(1)}, until=STEPS)
        next(steps)
        expected = draw()
        steps.close()
    seed_everything(77)
    with join(tmp_path, url, save_every="1000 steps") as run:
        next(run.steps({"x": np.zeros(1)}, until=STEPS))
        assert draw() == expected


def test_numbers_are_drawn_again_when_the_membership_changes_in_the_process(tmp_path: Path, url: str) -> None:
    seed_everything(5)
    drawn: dict[int, list[Any]] = {}
    with join(tmp_path, url, "w") as run:
        state = {"x": np.zeros(1)}
        for step in run.steps(state, until=STEPS):
            with step:
                state["x"] += 1
                drawn.setdefault(step.number, []).append(draw())
                if step.number == 5 and len(drawn[5]) == 1:
                    assert run.last_save is not None
                    run.last_save.result(stretch(30))
                    with join(tmp_path, url, "visitor"):
                        pass
                    raise Reconfigure(run.generation, "a visitor came")
    assert {number: len(draws) for number, draws in drawn.items()} == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 1, 7: 1, 8: 1}
    assert all(first == again for first, again in (drawn[4], drawn[5]))


def save_as_two_workers(folder: Path, state: dict[str, Any], random_states: list[bytes | None]) -> None:
    with CheckpointManager(folder / "checkpoints") as manager:
        for part, random_state in enumerate(random_states):
            manager.save_background(
                state if part == 0 else {}, 6, part=part, parts=2, random_state=random_state
            ).wait_staged()
        manager.wait_pending()
        manager.commit(6)


def test_another_number_of_workers_gets_numbers_by_seed_step_and_rank(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    drawn = []
    for before in (1, 2):
        seed_everything(before)
        folder = tmp_path / str(before)
        both = [Randomness().read({}), Randomness().read({})]
        save_as_two_workers(folder, {"x": np.zeros(1)}, both)
        with join(folder, seed=3) as run:
            drawn.append(train(run, {"x": np.zeros(1)}))
    assert drawn[0] == drawn[1]
    assert drawn[0].keys() == {7, 8}
    said = [each.getMessage() for each in caplog.records if "random state" in each.getMessage()]
    line = "step 6 was saved by 2 workers, and there are 1 now; generators are seeded by (seed 3, step 6, rank)"
    assert said == [f"random state: {line}"] * 2


def test_a_checkpoint_without_random_state_is_restored_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save({"x": np.zeros(1)}, 6)
    seed_everything(5)
    expected = draw()
    seed_everything(5)
    with join(tmp_path) as run:
        assert train(run, {"x": np.zeros(1)})[7] == expected
    said = [each.getMessage() for each in caplog.records if "random state" in each.getMessage()]
    assert said == ["random state: step 6 was saved without it; the generators are left as the script seeded them"]


@pytest.mark.parametrize("setting", ["argument", "environment"])
def test_a_seed_makes_a_fresh_run_draw_the_same_numbers(
    tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    if setting == "environment":
        monkeypatch.setenv("STRATA_SEED", "11")
    for number in (1, 2):
        seed_everything(number)
        with join(tmp_path / str(number), **({"seed": 11} if setting == "argument" else {})) as run:
            drawn.append((draw(), train(run, {"x": np.zeros(1)})))
    assert drawn[0] == drawn[1]


def test_a_run_without_a_seed_leaves_the_scripts_own_seeding_alone(tmp_path: Path) -> None:
    seed_everything(5)
    expected = [draw() for _ in range(STEPS)]
    seed_everything(5)
    with join(tmp_path) as run:
        assert list(train(run, {"x": np.zeros(1)}).values()) == expected


def test_generators_are_neither_saved_nor_seeded_nor_restored_if_the_script_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seed_everything(5)
    with join(tmp_path, random_state=False, seed=3) as run:
        expected = draw()
        train(run, {"x": np.zeros(1)}, until=6)
    seed_everything(5)
    with join(tmp_path, random_state=False) as run:
        assert train(run, {"x": np.zeros(1)})[7] == expected
        assert run.checkpoints.latest() is not None
    assert not any("random" in each.getMessage() for each in caplog.records)
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        assert manager.load(like={"x": np.zeros(1), RANDOM_STATE: RandomStateOf(0)}).data[
            RANDOM_STATE
        ] == SavedRandomState(None, 0)


def test_what_is_saved_of_generators_is_no_part_of_the_state(tmp_path: Path) -> None:
    with join(tmp_path) as run:
        train(run, {"x": np.zeros(1), "y": np.ones(2)})
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        restored = manager.load()
        assert restored.data.keys() == {"x", "y"}
        assert manager.load(only="*").data.keys() == {"x", "y"}
        assert manager.load(like={"x": np.zeros(1)}).unused == ["y"]
        with pytest.raises(UnsavableStateError, match="Strata's own"):
            manager.save({RANDOM_STATE: np.zeros(3)}, 100)


def test_generators_of_the_script_stand_in_the_state_as_they_are(tmp_path: Path) -> None:
    def make(seed: int) -> dict[str, Any]:
        bits = (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
        numpy = [np.random.Generator(each(seed)) for each in bits]
        return {"x": np.zeros(1), "own": {"python": random.Random(seed), "numpy": numpy}, "old": RandomState(seed)}

    def draw_own(state: dict[str, Any]) -> list[float]:
        own = state["own"]
        return [own["python"].gauss(0, 1), state["old"].normal(), *(each.normal() for each in own["numpy"])]

    def train_own(run: strata.Run, state: dict[str, Any], until: int) -> list[list[float]]:
        drawn = []
        for step in run.steps(state, until=until):
            with step:
                state["x"] += 1
                drawn.append(draw_own(state))
        return drawn

    with join(tmp_path / "whole") as run:
        expected = train_own(run, make(1), STEPS)
    # They are asked for by standing in the state, whatever is said of those that all code shares.
    with join(tmp_path / "parts", random_state=False) as run:
        train_own(run, make(1), 6)
    state = make(2)
    generator = state["own"]["python"]
    with join(tmp_path / "parts", random_state=False) as run:
        assert train_own(run, state, STEPS) == expected[6:]
    assert state["own"]["python"] is generator
