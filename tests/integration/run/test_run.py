"""Runs of real processes: whatever dies, leaves, stops or joins, every sample counts exactly once in the end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strata
from strata.client.unary import ask_audit
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.job import ORDERS, Job

pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.xdist_group("whole runs")]


# Those who die or hang are missed sooner than by default, so that the tests are over sooner.
QUICK = ("--lease", "4", "--grace", "1")


@pytest.fixture
def coordinator(tmp_path: Path) -> CoordinatorProcess:
    return CoordinatorProcess(tmp_path, *QUICK)


@pytest.fixture
def served(coordinator: CoordinatorProcess) -> Iterator[CoordinatorProcess]:
    with coordinator.serving():
        yield coordinator


@pytest.mark.quick
@pytest.mark.parametrize("order", ORDERS)
def test_a_killed_worker_is_missed_and_replaced_and_no_sample_is_lost(
    served: CoordinatorProcess, tmp_path: Path, order: str
) -> None:
    with Job(tmp_path, served.url, order=order) as job:
        job.start("a", "b", "c", WORLD_SIZE="3")
        job.wait_for_step(12)
        job.kill("b")
        job.wait_until(lambda: job.world_size() == 2, "the others go on alone")
        job.start("b")
        job.wait_until(lambda: job.world_size() == 3 or job.workers["a"].process.poll() is not None, "it is back")
        job.check_finished()
    for epoch in range(2):
        audit = ask_audit(served.url, "default", "d", epoch=epoch)
        assert (audit.missing.samples, audit.repeated.samples) == (0, 0)


@pytest.mark.parametrize("save_every", ["1 h", pytest.param("1000 steps", marks=pytest.mark.slow)])
def test_a_worker_that_is_told_to_end_leaves_when_all_have_saved_whatever_the_cadence(
    served: CoordinatorProcess, tmp_path: Path, save_every: str
) -> None:
    with Job(tmp_path, served.url, save_every=save_every, epochs=4) as job:
        job.start("a", "b", "c", WORLD_SIZE="3")
        job.wait_for_step(10)
        job.signal("c", signal.SIGTERM)
        assert job.workers["c"].wait() == 143, job.all_errors()
        assert job.workers["c"].said[-1] == {"left": True, "saved": True}
        left_at = job.workers["c"].said[-2]["step"]
        job.check_finished()
        later = [said["step"] for said in job.workers["a"].said if said.get("world_size") == 2]
        assert later[0] == left_at + 1, "all saved before it went"


@pytest.mark.parametrize("save_every", ["1 h", pytest.param("1000 steps", marks=pytest.mark.slow)])
def test_a_loop_by_hand_leaves_on_sigterm_when_all_have_saved_too(
    served: CoordinatorProcess, tmp_path: Path, save_every: str
) -> None:
    with Job(tmp_path, served.url, save_every=save_every, epochs=4, options=("--by-hand",)) as job:
        job.start("a", "b", WORLD_SIZE="2")
        job.wait_for_step(10)
        job.signal("b", signal.SIGTERM)
        assert job.workers["b"].wait() == 143, job.all_errors()
        assert job.workers["b"].said[-1] == {"left": True, "saved": True}
        left_at = job.workers["b"].said[-2]["step"]
        job.check_finished()
        later = [said["step"] for said in job.workers["a"].said if said.get("world_size") == 1]
        assert later[0] == left_at + 1, "all saved before it went"


@pytest.mark.quick
def test_a_loop_by_hand_without_a_coordinator_saves_on_sigterm_and_goes_on_there(tmp_path: Path) -> None:
    with Job(tmp_path, None, save_every="1000 steps", options=("--by-hand",)) as job:
        job.start("a")
        job.wait_for_step(5)
        job.signal("a", signal.SIGTERM)
        assert job.workers["a"].wait() == 143, job.all_errors()
        assert job.workers["a"].said[-1] == {"left": True, "saved": True}
        left_at = job.workers["a"].said[-2]["step"]
        job.start("a")
        job.check_finished()
        assert job.workers["a"].said[0]["step"] == left_at + 1


@pytest.mark.parametrize("save_every", ["1 h", pytest.param("1000 steps", marks=pytest.mark.slow)])
def test_workers_that_are_all_told_to_end_save_together_and_the_next_start_goes_on_there(
    served: CoordinatorProcess, tmp_path: Path, save_every: str
) -> None:
    with Job(tmp_path, served.url, save_every=save_every, epochs=4) as job:
        job.start("a", "b", "c", WORLD_SIZE="3")
        job.wait_for_step(10)
        for name in "abc":
            job.signal(name, signal.SIGTERM)
        assert [job.workers[name].wait() for name in "abc"] == [143] * 3, job.all_errors()
        last = {name: job.workers[name].said[-2]["step"] for name in "abc"}
        saved = {name: job.workers[name].said[-1]["saved"] for name in "abc"}
        assert any(saved.values()), "the last step is saved"
        job.start("a", "b", "c", WORLD_SIZE="3")
        job.wait_until(lambda: bool(job.workers["a"].said), "it goes on")
        assert job.workers["a"].said[0]["step"] >= min(last.values()) + 1
        job.check_finished()


@pytest.mark.quick
def test_a_coordinator_that_is_killed_is_missed_and_no_worker_is_lost(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack, Job(tmp_path, coordinator.url) as job:
        first = stack.enter_context(ExitStack())
        service = first.enter_context(coordinator.serving())
        job.start("a", "b", WORLD_SIZE="2")
        job.wait_for_step(9)
        generation = job.workers["a"].said[-1]["generation"]
        service.kill()
        first.close()
        stack.enter_context(coordinator.serving())
        job.check_finished()
        assert {said.get("generation", generation) for said in job.workers["a"].said} == {generation}


def test_a_loop_that_meets_nobody_trains_on_while_the_coordinator_is_away(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    state = {"x": np.zeros(1)}
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        first.enter_context(coordinator.serving())
        fields = {"worker_id": "w", "checkpoints": tmp_path / "c", "save_every": "5 steps"}
        with strata.join(coordinator_url=coordinator.url, **fields) as run:
            for step in run.steps(state, until=40):
                with step:
                    state["x"] += 1
                    if step.number == 10:
                        first.close()
                    if step.number == 30:
                        stack.enter_context(coordinator.serving())
            assert run.checkpoints.list_checkpoints()[-1] == 40
            assert (state["x"][0], run.generation) == (40, 1)


async def test_barriers_and_exchanges_have_twins_for_an_event_loop(served: CoordinatorProcess, tmp_path: Path) -> None:
    with strata.join(coordinator_url=served.url, worker_id="w", checkpoints=tmp_path / "c") as run:
        await run.barrier_async("here")
        assert await run.exchange_async("names", b"w") == [b"w"]


@pytest.mark.slow
def test_a_worker_that_hangs_longer_than_its_lease_is_out_and_comes_back_by_itself(
    served: CoordinatorProcess, tmp_path: Path
) -> None:
    with Job(tmp_path, served.url, epochs=5, pace_s=0.06) as job:
        job.start("a", "b", "c", WORLD_SIZE="3")
        job.wait_for_step(9)
        job.signal("b", signal.SIGSTOP)
        job.wait_until(lambda: job.world_size() == 2, "its lease ends")
        job.signal("b", signal.SIGCONT)
        job.wait_until(lambda: job.world_size() == 3, "it is back")
        job.check_finished()


def test_a_run_that_was_interrupted_goes_on_where_it_was_with_another_number_of_workers(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    with coordinator.serving(), Job(tmp_path, coordinator.url) as job:
        job.start("a", "b", "c", WORLD_SIZE="3")
        job.wait_for_step(20)
        for name in "abc":
            job.signal(name, signal.SIGINT)
        assert all(job.workers[name].wait() != 0 for name in "abc")
        states = {worker.worker_id: worker.state for worker in _workers(coordinator)}
        assert states == dict.fromkeys("abc", "left"), "Ctrl-C says goodbye"
        for name in "abc":
            job.retired.append(job.workers.pop(name))
        job.start("x", "y", WORLD_SIZE="2")
        job.wait_until(lambda: bool(job.workers["x"].said), "it goes on")
        assert job.workers["x"].said[0]["step"] > 10
        job.check_finished()


def test_a_coordinator_that_lost_everything_learns_from_the_checkpoints(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with ExitStack() as stack:
        before = CoordinatorProcess(first)
        with before.serving(), Job(tmp_path, before.url) as job:
            job.start("a", "b", WORLD_SIZE="2")
            job.wait_for_step(20)
            job.kill("a")
            job.kill("b")
        after = CoordinatorProcess(second)
        stack.enter_context(after.serving())
        job._url = after.url
        job.workers.clear()
        job.start("a", "b", WORLD_SIZE="2")
        job.wait_until(lambda: bool(job.workers["a"].said), "it goes on")
        assert job.workers["a"].said[0]["step"] > 10
        stack.enter_context(job)
        job.check_finished()


@pytest.mark.parametrize("order", ORDERS)
def test_a_checkpoint_that_storage_damaged_sends_all_back_to_the_one_before_it(
    served: CoordinatorProcess, tmp_path: Path, order: str
) -> None:
    with Job(tmp_path, served.url, order=order) as job:
        job.start("a", "b", WORLD_SIZE="2")
        folder = tmp_path / "checkpoints/default/checkpoints"
        job.wait_until(lambda: len(list(folder.glob("step_*/metadata.json"))) >= 3, "two checkpoints and the beginning")
        job.kill("a")
        job.kill("b")
        before, newest = sorted(int(path.parent.name[5:]) for path in folder.glob("step_*/metadata.json"))[-2:]
        for part in folder.glob(f"step_{newest}/model-*"):
            part.write_bytes(part.read_bytes()[:-1] + b"!")
        job.start("a", "b", WORLD_SIZE="2")
        job.wait_until(lambda: bool(job.workers["a"].said), "it goes on")
        # One whose parts were all durable when its workers died may have been committed since.
        assert job.workers["a"].said[0]["step"] in {before + 1, *range(newest + 2, newest + 20)}
        job.check_finished()
    for epoch in range(2):
        audit = ask_audit(served.url, "default", "d", epoch=epoch)
        assert (audit.missing.samples, audit.repeated.samples) == (0, 0)


@pytest.mark.quick
def test_the_same_script_runs_alone_and_survives_a_kill(tmp_path: Path) -> None:
    with Job(tmp_path, None, epochs=1, pace_s=0.01) as job:
        job.start("alone")
        job.wait_for_step(12)
        job.kill("alone")
        job.start("alone")
        job.check_finished()
        assert job.workers["alone"].said[0]["step"] > 5


ACTIONS = st.lists(
    st.tuples(
        st.integers(2, 18),
        st.sampled_from([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, "coordinator"]),
        st.sampled_from("abc"),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(order=st.sampled_from(["sticky", "global", "dynamic"]), actions=ACTIONS)
def test_whatever_happens_when_every_sample_counts_once(
    tmp_path_factory: pytest.TempPathFactory, order: str, actions: list[tuple[int, object, str]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    coordinator = CoordinatorProcess(folder, *QUICK)
    with ExitStack() as stack, Job(folder, coordinator.url, order=order, epochs=3) as job:
        serving = stack.enter_context(ExitStack())
        service = serving.enter_context(coordinator.serving())
        job.start("a", "b", "c", WORLD_SIZE="3")
        step = 0
        for wait_steps, action, name in actions:
            step += wait_steps
            job.wait_until(
                lambda step=step: job.step() >= step or all(w.process.poll() is not None for w in job.workers.values()),
                f"step {step}",
            )
            worker = job.workers[name]
            if action == "coordinator":
                service.kill()
                serving.close()
                service = serving.enter_context(coordinator.serving())
            elif worker.process.poll() is not None:
                continue
            elif action == signal.SIGSTOP:
                job.signal(name, signal.SIGSTOP)
                timer = threading.Timer(1.5, job.signal, (name, signal.SIGCONT))
                timer.start()
                stack.callback(timer.join)
            else:
                assert isinstance(action, signal.Signals)
                job.signal(name, action)
                worker.wait()
                job.start(name)
        job.check_finished()


def _workers(coordinator: CoordinatorProcess) -> list:
    status = coordinator.status()
    assert status is not None
    return list(status.workers)
