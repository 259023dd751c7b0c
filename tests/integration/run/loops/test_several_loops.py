"""A run with more than one loop, and loops that are left early: they go on where the last one was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strata
from strata.client.unary import ask_audit
from strata.demo.samples import make_dataset
from tests.testbed.coordinator import CoordinatorProcess

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]

ROWS = 480
ORDERS: dict[str, dict[str, Any]] = {
    "global": {"order": "global", "global_batch_size": 48},
    "sticky": {"order": "sticky", "batch_size": 48},
    "dynamic": {"order": "dynamic", "batch_size": 48},
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    make_dataset(tmp_path / "data", ROWS)
    with (coordinator := CoordinatorProcess(tmp_path)).serving():
        yield coordinator


def join(served: CoordinatorProcess | None, folder: Path) -> strata.Run:
    place: dict[str, Any] = {"local": True} if served is None else {"coordinator_url": served.url}
    return strata.join(worker_id="w", checkpoints=folder / "c", save_every="3 steps", **place)


def check_audit(served: CoordinatorProcess) -> None:
    for epoch in range(2):
        audit = ask_audit(served.url, "default", "d", epoch=epoch)
        assert (audit.missing.samples, audit.repeated.samples) == (0, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_a_second_loop_goes_on_where_the_first_one_ended(
    served: CoordinatorProcess, tmp_path: Path, order: str
) -> None:
    seen: list[int] = []
    state = {"steps": np.zeros(1, np.int64)}
    with join(served, tmp_path) as run:
        data = run.dataset(tmp_path / "data", name="d", **ORDERS[order])
        # The first ends within an epoch, the second with one.
        for bound in ({"until": 4, "epochs": 2}, {"epochs": 1}, {"epochs": 2}):
            for step in run.steps(state, data, **bound):
                with step:
                    state["steps"] += 1
                    seen += [] if step.batch is None else step.batch["id"].tolist()
        assert run.step_number == state["steps"][0]
        assert run.checkpoints.list_checkpoints()[-1] == run.step_number
    assert sorted(seen) == sorted([*range(ROWS), *range(ROWS)])
    check_audit(served)


@pytest.mark.parametrize("order", ORDERS)
def test_a_loop_over_batches_that_was_left_early_goes_on_with_the_next_batch(
    served: CoordinatorProcess, tmp_path: Path, order: str
) -> None:
    seen: list[int] = []
    with join(served, tmp_path) as run:
        data = run.dataset(tmp_path / "data", name="d", **ORDERS[order])
        number = run.restore({})
        while len(seen) < 2 * ROWS:
            for batch in data:
                seen += batch["id"].tolist()
                number += 1
                run.step(number)
                if number % 4 == 0:
                    break
    assert sorted(seen[:ROWS]) == sorted(seen[ROWS:]) == list(range(ROWS))
    check_audit(served)


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_loop_that_was_left_by_break_says_what_is_not_saved_and_the_next_one_goes_on(
    served: CoordinatorProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_alone: bool
) -> None:
    seen: list[int] = []
    numbers: list[int] = []
    state = {"x": np.zeros(1)}
    with join(None if is_alone else served, tmp_path) as run:
        data = run.dataset(tmp_path / "data", name="d", **ORDERS["global"])
        for last in (5, 21):
            for step in run.steps(state, data, epochs=2):
                with step:
                    assert step.batch is not None
                    seen += step.batch["id"].tolist()
                    numbers.append(step.number)
                    state["x"] += 1
                if step.number == last:
                    break
    assert "the loop was left in step 5, which does not count, and the last save is of step 3" in caplog.text
    # A step that was left has no end, so its batch is counted with the next one.
    assert numbers == [*range(1, 6), *range(5, 20)]
    assert sorted(seen) == sorted([*range(ROWS), *range(ROWS)])


def test_after_a_step_that_failed_no_other_loop_goes_on_with_half_of_it(
    served: CoordinatorProcess, tmp_path: Path
) -> None:
    with join(served, tmp_path) as run:
        state = {"x": np.zeros(1)}
        with pytest.raises(ZeroDivisionError):
            for step in run.steps(state, until=4):
                with step:
                    state["x"] /= step.number
                    1 / (step.number - 3)
        with pytest.raises(RuntimeError, match="left in step 3 by ZeroDivisionError"):
            next(iter(run.steps(state, until=4)))
