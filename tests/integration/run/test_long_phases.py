"""A worker that waits for another one does not give up before that one's own watchdog does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import strata
from strata.errors import BarrierTimeoutError
from strata.run.team import coordinated_team
from strata.run.team.protocol import WorkerView
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        yield coordinator


def test_a_meeting_waits_on_for_a_worker_in_a_long_phase_that_it_announced(
    served: CoordinatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinated_team, "MEET_TIMEOUT_S", 0.2)
    caplog.set_level(logging.INFO, coordinated_team.__name__)

    def join(name: str) -> strata.Run:
        return strata.join(
            coordinator_url=served.url, worker_id=name, checkpoints=tmp_path / "c", world_size=2, save_every="5 steps"
        )

    with ThreadPoolExecutor(2) as pool:
        a, b = pool.map(join, "ab")
        with a, b:
            a.refresh()
            b.refresh()
            with a.pause_watchdog("eval"):
                wait_until(lambda: any(worker.resources.get("paused") for worker in served.job().workers))
                waiting = pool.submit(b.exchange, "x", b"b")
                wait_until(lambda: caplog.text.count("waiting again") >= 2)
            assert a.exchange("x", b"a", timeout_s=stretch(30)) == waiting.result(stretch(30))
            with pytest.raises(BarrierTimeoutError, match="missing a"):
                b.exchange("y", b"b", timeout_s=0.2)


@pytest.mark.parametrize(
    ("resources", "may_take_longer"),
    [
        ({}, False),
        ({"paused": 1.0}, True),
        ({"stalled_s": 2_000.0, "limit_s": 3_000.0}, True),
        ({"stalled_s": 2_000.0, "limit_s": 900.0}, False),
    ],
)
def test_a_missing_worker_may_take_as_long_as_its_watchdog_says(
    resources: dict[str, float], may_take_longer: bool
) -> None:
    worker = WorkerView(worker_id="w", rank=0, state="training", step=3, silent_s=0.1, resources=resources)
    assert worker.may_take_longer == may_take_longer
