"""Rewinding whole jobs: the final weights are those of a run that never saw the skipped batches, to the bit."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strata
from strata.checkpoint import CheckpointManager
from strata.cli.app import main
from strata.client.unary import ask_audit
from strata.demo.model import BATCH_SIZE, BLOCK_SIZE, apply_gradients, block_gradients, make_state
from strata.demo.samples import make_dataset
from strata.errors import RewindError
from strata.run.launch.group.claim import LauncherRecord, StandaloneClaim
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.job import Worker
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.xdist_group("whole runs")]

ROWS, EPOCHS = 1_000, 3
PER_EPOCH = 16  # 15 full batches and a smaller one
OPTIONS: dict[str, Any] = {"order": "global", "global_batch_size": BATCH_SIZE, "seed": 7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "data", ROWS)
    return tmp_path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    coordinator = CoordinatorProcess(tmp_path, "--lease", "4", "--grace", "1")
    with coordinator.serving():
        yield coordinator


def rewind(*arguments: str) -> None:
    """Call ``strata rewind``; what it refuses is raised."""
    with pytest.raises(SystemExit) as ended:
        main(["rewind", *arguments])
    assert not ended.value.code


def train_by_hand(folder: Path, *, without: range) -> dict[str, Any]:
    """Return what a plain loop comes to, without a run and without the batches of these numbers."""
    state = make_state()
    number = 0
    with strata.open_dataset(folder / "data", batch_size=BATCH_SIZE, epochs=EPOCHS, **OPTIONS) as data:
        for batch in data:
            number += 1
            if number not in without:
                gradients, _ = block_gradients(state, batch["x"], batch["y"])
                apply_gradients(state, [gradients.tobytes()])
    assert number == EPOCHS * PER_EPOCH
    return state


def train_alone(folder: Path, *, until: int | None = None, by_hand: bool = False) -> list[int]:
    """Train as a single process; return the steps that it did."""
    state, done = make_state(), []
    with strata.join(
        checkpoints=folder / "checkpoints",
        save_every="5 steps",
        local=True,
        job_id="alone",
        checkpoint_options={"keep_count": None},
    ) as run:
        data = run.dataset(folder / "data", name="d", block_size=BLOCK_SIZE, **OPTIONS)

        def learn(batch: Any) -> None:
            gradients, _ = block_gradients(state, batch["x"], batch["y"])
            apply_gradients(state, run.exchange(f"gradients/{len(done)}", gradients.tobytes()))

        if not by_hand:
            for step in run.steps(state, data, epochs=EPOCHS, until=until):
                with step:
                    learn(step.batch)
                    done.append(step.number)
            return done
        run.restore(state)
        while data.epoch < EPOCHS and (until is None or run.step_number < until):
            for batch in data:
                learn(batch)
                run.step()
                done.append(run.step_number)
                if run.should_save():
                    run.save(state)
                if run.step_number == until:
                    break
        run.save(state).result()
    return done


def check_weights(folder: Path, job_id: str, *, without: range) -> None:
    expected = train_by_hand(folder, without=without)
    with CheckpointManager(folder / "checkpoints", job_id=job_id) as manager:
        found = manager.load()
    for name, value in expected.items():
        np.testing.assert_array_equal(found.data[name], value, err_msg=name)


@pytest.mark.quick
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_job_of_one_process_goes_on_from_the_step_without_the_batches(
    folder: Path, by_hand: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    where = str(folder / "checkpoints")
    assert train_alone(folder, until=30, by_hand=by_hand)[-1] == 30
    rewind("alone", "--to-step", "10", "--skip-batches", "13..18", "--checkpoints", where)
    assert "rewound from step 30 to step 10, skipped batches 13..18 of d" in capsys.readouterr().out

    steps = train_alone(folder, by_hand=by_hand)

    assert steps == [11, 12, *range(19, EPOCHS * PER_EPOCH + 1)]
    check_weights(folder, "alone", without=range(13, 19))
    with CheckpointManager(where, job_id="alone") as manager:
        newest = manager.latest()
    assert newest is not None
    assert [str(each) for each in newest.rewinds] == ["rewound from step 30 to step 10, skipped batches 13..18 of d"]


def test_batches_at_the_end_of_the_data_are_skipped_and_the_job_is_finished(folder: Path) -> None:
    where = str(folder / "checkpoints")
    train_alone(folder)
    rewind("alone", "--to-step", "40", "--skip-batches", "47..48", "--checkpoints", where)
    assert train_alone(folder) == list(range(41, 47))
    assert train_alone(folder) == []
    check_weights(folder, "alone", without=range(47, 49))


def test_a_whole_epoch_can_be_skipped(folder: Path) -> None:
    where = str(folder / "checkpoints")
    train_alone(folder, until=10)
    rewind("alone", "--to-step", "10", "--skip-batches", "15..35", "--checkpoints", where)
    assert train_alone(folder) == [*range(11, 15), *range(36, 49)]
    check_weights(folder, "alone", without=range(15, 36))


def test_a_second_rewind_says_anew_what_is_skipped_after_its_step(folder: Path) -> None:
    where = str(folder / "checkpoints")
    train_alone(folder, until=20)
    rewind("alone", "--to-step", "10", "--skip-batches", "12..14", "--checkpoints", where)
    train_alone(folder, until=30)
    rewind("alone", "--to-step", "5", "--skip-batches", "20", "--checkpoints", where)
    assert train_alone(folder) == [*range(6, 20), *range(21, 49)]
    check_weights(folder, "alone", without=range(20, 21))


def test_a_process_that_does_not_know_of_the_rewind_leaves_nothing_that_is_restored(folder: Path) -> None:
    where = folder / "checkpoints"
    train_alone(folder, until=20)
    with CheckpointManager(where, job_id="alone") as unaware:
        state = unaware.load().data
        rewind("alone", "--to-step", "10", "--checkpoints", str(where))
        state["weights"] += 1
        unaware.save(state, 21)
    assert train_alone(folder)[0] == 11
    check_weights(folder, "alone", without=range(0))


class Workers:
    """Workers of the demonstration's training script, at a coordinator."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self.running: list[Worker] = []

    def start(self, count: int) -> None:
        command = [sys.executable, "-m", "strata.demo.worker", str(self._folder), str(EPOCHS), "0"]
        self.running = [
            Worker(
                command,
                {
                    "COORDINATOR_URL": self._url,
                    "WORKER_ID": f"w{rank}",
                    "WORLD_SIZE": str(count),
                    "RANK": str(rank),
                    "OPENBLAS_NUM_THREADS": "1",
                },
            )
            for rank in range(count)
        ]

    def wait_for_step(self, number: int) -> None:
        wait_until(
            lambda: any(said.get("step", 0) >= number for worker in self.running for said in list(worker.said)),
            lambda: "\n".join("".join(worker.errors)[-2_000:] for worker in self.running),
            timeout_s=60.0,
        )

    def stop(self, number: int) -> list[int]:
        for worker in self.running:
            worker.process.send_signal(number)
        return self.wait()

    def wait(self) -> list[int]:
        return [worker.wait() for worker in self.running]

    def steps(self) -> list[int]:
        return [said["step"] for said in self.running[0].said if "step" in said]


@pytest.fixture
def workers(folder: Path, served: CoordinatorProcess) -> Iterator[Workers]:
    found = Workers(folder, served.url)
    (folder / "slow").touch()
    yield found
    for worker in found.running:
        worker.process.kill()
        worker.wait()


@pytest.mark.slow
def test_a_job_of_workers_is_rewound_killed_at_once_and_finished_by_another_number_of_them(
    folder: Path, served: CoordinatorProcess, workers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    where = str(folder / "checkpoints")
    arguments = ("default", "--to-step", "10", "--skip-batches", "13..20", "--checkpoints", where)
    workers.start(2)
    workers.wait_for_step(21)
    with pytest.raises(RewindError, match=r"it is running, with 2 workers \(w0, w1\); stop it first"):
        rewind(*arguments, "--coordinator", served.url)
    assert set(workers.stop(signal.SIGTERM)) == {143}
    rewind(*arguments, "--coordinator", served.url)

    workers.start(3)
    workers.wait_for_step(11)
    workers.stop(signal.SIGKILL)
    (folder / "slow").unlink()
    workers.start(3)
    assert workers.wait() == [0, 0, 0]

    assert workers.steps() == [11, 12, *range(21, EPOCHS * PER_EPOCH + 1)]
    check_weights(folder, "default", without=range(13, 21))
    skipped = [ask_audit(served.url, "default", "demo", epoch=epoch) for epoch in range(EPOCHS)]
    assert [(audit.missing.samples, audit.repeated.samples) for audit in skipped] == [(0, 0)] * EPOCHS
    # Batches 13 to 15 are full, 16 is the rest of the first epoch, and 17 to 20 are of the second.
    assert [audit.passed_over.samples for audit in skipped] == [3 * 64 + 40, 4 * 64, 0]
    with pytest.raises(SystemExit):
        main(["events", "--coordinator", served.url, "--job", "default"])
    assert "skipped batches 13..20 of demo" in capsys.readouterr().out


def test_a_coordinator_that_was_not_told_learns_of_the_rewind_from_storage(
    folder: Path, served: CoordinatorProcess, workers: Workers
) -> None:
    (folder / "slow").unlink()
    workers.start(2)
    assert workers.wait() == [0, 0]
    # Without --coordinator, as if the command had been killed before it told.
    where = str(folder / "checkpoints")
    rewind("default", "--to-step", "20", "--skip-batches", "30..31", "--checkpoints", where)
    workers.start(1)
    assert workers.wait() == [0]
    assert workers.steps() == [*range(21, 30), *range(32, EPOCHS * PER_EPOCH + 1)]
    check_weights(folder, "default", without=range(30, 32))


def test_a_job_that_a_launcher_runs_is_not_rewound(folder: Path) -> None:
    home = Path(os.environ["JOBS_PATH"]) / "alone"
    claim = StandaloneClaim(home, "alone", LauncherRecord.of_this_process("box", nproc=1, node_rank=0))
    train_alone(folder, until=10)
    claim.take(takeover=False)
    try:
        with pytest.raises(RewindError, match=r"it is run by launcher 'box'.*stop that first"):
            rewind("alone", "--to-step", "5", "--checkpoints", str(folder / "checkpoints"))
    finally:
        claim.release()


def test_what_was_set_aside_is_listed_and_deleted_only_on_demand(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = str(folder / "checkpoints")
    train_alone(folder, until=20)
    rewind("alone", "--to-step", "10", "--checkpoints", where, "--json")
    assert json.loads(capsys.readouterr().out)["set_aside"] == [15, 20]
    train_alone(folder, until=20)
    with pytest.raises(SystemExit):
        main(["ckpt", "ls", where, "--job", "alone", "--json"])
    listed = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [(each["step"], each["rewound"]) for each in listed] == [
        (5, None),
        (10, None),
        (15, None),
        (20, None),
        (15, 1),
        (20, 1),
    ]
    with pytest.raises(SystemExit):
        main(["ckpt", "prune", where, "--job", "alone", "--rewound"])
    assert capsys.readouterr().out.count("rewind 1 set it aside") == 2
    with CheckpointManager(where, job_id="alone") as manager:
        assert manager.list_checkpoints() == [5, 10, 15, 20]
        assert [manager.load(step).step for step in (5, 10, 15, 20)] == [5, 10, 15, 20]
