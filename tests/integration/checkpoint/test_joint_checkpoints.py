"""Workers that save together through a coordinator: whatever is killed when, what is listed loads, and all go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, SavePolicy, Slice
from strata.client.client import Client
from strata.errors import (
    CheckpointAbortedError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    DamagedCheckpointError,
)
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.programs.joint_worker import DEADLY_STEP, ROWS, STEPS
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.full

# Where a save can be when something dies; the last two only the one comes to that writes the manifest: rank 0.
PHASES = ["writing", "reported", "acknowledging", "committing", "committed"]


@pytest.fixture
def service(tmp_path: Path) -> CoordinatorProcess:
    return CoordinatorProcess(tmp_path)


class Worker:
    """A worker process; its lines are collected while it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)

    def end(self) -> list[str]:
        self.process.wait()
        self._reading.join()
        return self.lines


@contextmanager
def workers(url: str, folder: Path, count: int, *, killer: int, phase: str, victim: str) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        started = []
        for rank in range(count):
            command = [
                sys.executable,
                "-m",
                "tests.testbed.programs.joint_worker",
                url,
                str(folder),
                f"w{rank}",
                str(count),
            ]
            command += [phase, victim] if rank == killer else []
            process = stack.enter_context(start(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            started.append(Worker(process))
        yield started


def check_storage(folder: Path, announced: set[int]) -> None:
    """Every step that was announced is listed, and every one that is listed is whole."""
    with CheckpointManager(folder, keep_count=None) as manager:
        listed = manager.list_checkpoints()
        assert announced <= set(listed)
        for step in listed:
            restored = manager.load(step)
            np.testing.assert_array_equal(restored.data["w"], np.full((ROWS, 1000), float(step)))
            assert restored.data["step"] == step


def announced_in(lines: list[str]) -> set[int]:
    return {int(line.split()[1]) for line in lines if line.startswith("committed")}


@pytest.mark.parametrize("phase", PHASES)
def test_a_worker_killed_in_any_phase_ends_in_a_commit_or_a_clean_abort(
    service: CoordinatorProcess, tmp_path: Path, phase: str
) -> None:
    killer = 0 if phase in ("committing", "committed") else 2
    folder = tmp_path / "checkpoints"
    with service.serving(), workers(service.url, folder, 3, killer=killer, phase=phase, victim="self") as party:
        outputs = [worker.end() for worker in party]
    survivors = [lines for rank, lines in enumerate(outputs) if rank != killer]
    for lines in survivors:
        assert lines[-1] == "done"
        if killer == 0:
            # All parts were durable: the others commit it.
            assert f"committed {DEADLY_STEP}" in lines
        else:
            (failure,) = [line for line in lines if line.startswith(f"failed {DEADLY_STEP}")]
            assert "w2 failed: its connection closed" in failure
        assert f"committed {STEPS}" in lines
    check_storage(folder, set().union(*map(announced_in, outputs)))


@pytest.mark.quick
@pytest.mark.parametrize("phase", PHASES)
def test_a_coordinator_killed_in_any_phase_loses_nothing(
    service: CoordinatorProcess, tmp_path: Path, phase: str
) -> None:
    folder = tmp_path / "checkpoints"
    with ExitStack() as stack:
        first = stack.enter_context(service.serving())
        party = stack.enter_context(workers(service.url, folder, 3, killer=0, phase=phase, victim=str(first.pid)))
        first.wait()
        with service.serving():
            outputs = [worker.end() for worker in party]
    for lines in outputs:
        assert announced_in(lines) == set(range(1, STEPS + 1))
        assert lines[-1] == "done"
    check_storage(folder, set(range(1, STEPS + 1)))


@contextmanager
def joined(
    service: CoordinatorProcess, folder: Path, *names: str, **options: object
) -> Iterator[list[CheckpointManager]]:
    """Managers of several workers in this process; all know of each other."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(service.url, name)) for name in names]
        for client in clients:
            client.wait_registered()
        wait_until(lambda: all(client.get_rank_info().world_size == len(names) for client in clients))
        yield [stack.enter_context(CheckpointManager(folder, coordinator=client, **options)) for client in clients]


def part_of(rank: int, value: float, *, rows: int = 4) -> dict[str, object]:
    return {"w": Slice(np.full(rows, value), (2 * rows,), (rank * rows,)), f"own{rank}": rank}


def test_a_save_that_waits_in_vain_names_the_worker(service: CoordinatorProcess, tmp_path: Path) -> None:
    with (
        service.serving(),
        joined(service, tmp_path / "c", "a", "b", saving=SavePolicy(commit_timeout_s=3.0)) as (a, _),
    ):
        handle = a.save_background(part_of(0, 1.0), 1)
        wait_until(lambda: handle.waits_for == ("b",))
        with pytest.raises(CheckpointTimeoutError, match="still committing, waiting for b after"):
            handle.result(0.1)
        with pytest.raises(CheckpointTimeoutError, match="still committing, waiting for b after 3 s"):
            handle.result()


def test_parts_that_do_not_fit_are_given_up_by_all_and_block_nothing(
    service: CoordinatorProcess, tmp_path: Path
) -> None:
    with service.serving(), joined(service, tmp_path / "c", "a", "b") as managers:
        handles = [each.save_background({"same": rank}, 1) for rank, each in enumerate(managers)]
        for handle in handles:
            with pytest.raises(CheckpointAbortedError, match="two parts have different values"):
                handle.result(stretch(30))
        handles = [each.save_background(part_of(rank, 2.0), 2) for rank, each in enumerate(managers)]
        for handle in handles:
            assert handle.result(stretch(30)).committed
        assert managers[0].list_checkpoints() == [2]


def test_retention_is_done_by_one_and_the_coordinator_is_told(service: CoordinatorProcess, tmp_path: Path) -> None:
    with service.serving(), joined(service, tmp_path / "c", "a", "b", keep_count=2) as managers:
        for step in range(1, 6):
            handles = [each.save_background(part_of(rank, step), step) for rank, each in enumerate(managers)]
            for handle in handles:
                handle.result(stretch(30))
        for manager in managers:
            manager.wait_pending()
        wait_until(lambda: [checkpoint.step for checkpoint in service.job().checkpoints] == [4, 5])
        assert managers[0].list_checkpoints() == [4, 5]
        left = sorted(path.name for path in (tmp_path / "c").rglob("*") if path.is_file())
        assert not [name for name in left if name.startswith("part-")]


@pytest.mark.quick
def test_all_workers_restore_the_same_step_also_from_a_coordinator_that_lost_its_journal(
    service: CoordinatorProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    with service.serving(), joined(service, folder, "a", "b") as managers:
        with pytest.raises(CheckpointNotFoundError):
            managers[0].load()
        for step in (1, 2):
            for handle in [each.save_background(part_of(rank, step), step) for rank, each in enumerate(managers)]:
                handle.result(stretch(30))
    for journal in tmp_path.glob("j.db*"):
        journal.unlink()
    with service.serving(), joined(service, folder, "a", "b", "c") as managers:
        restored = [manager.load() for manager in managers]
        assert [each.step for each in restored] == [2, 2, 2]
        assert all(np.array_equal(each.data["w"], np.full(8, 2.0)) for each in restored)
        assert [checkpoint.step for checkpoint in service.job().checkpoints] == [1, 2]


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["a flipped bit", "no manifest"])
def test_all_workers_go_back_further_when_one_of_them_cannot_read_its_slice(
    service: CoordinatorProcess, tmp_path: Path, damage: str
) -> None:
    """torchtitan#4011, for many: whoever finds the damage, nobody trains on from another step than the others."""
    folder = tmp_path / "c"
    rows = 2**20

    def save(managers: list[CheckpointManager], step: int, value: float) -> None:
        parts = [part_of(rank, value, rows=rows) for rank in range(2)]
        for handle in [each.save_background(part, step) for each, part in zip(managers, parts, strict=True)]:
            assert handle.result(stretch(30)).committed

    with service.serving():
        with joined(service, folder, "a", "b", saving=SavePolicy(delta=True)) as managers:
            save(managers, 1, 1.0)
            save(managers, 2, 2.0)
        newest = folder / "default/checkpoints/step_2"
        if damage == "no manifest":
            (newest / "metadata.json").unlink()
        else:
            flip_last_byte(next(newest.glob("model-00002-of-00002.*")))
        with joined(service, folder, "a", "b", saving=SavePolicy(delta=True)) as managers:
            likes = [{"w": Slice(np.zeros(rows), (2 * rows,), (rank * rows,))} for rank in range(2)]
            with ThreadPoolExecutor() as pool:
                restored = list(pool.map(lambda each, like: each.load(like=like, only="w"), managers, likes))
            # A step without its manifest has left the index by then.
            found = any("step 2" in str(skipped) for each in restored for skipped in each.skipped)
            assert found == (damage == "a flipped bit")
            # The one whose half was good may have had it before the other one spoke; it is told, and restores again.
            assert [each.load(like=like).step for each, like in zip(managers, likes, strict=True)] == [1, 1]
            # A delta does not point at what cannot be read, though its bytes would be the same.
            save(managers, 3, 2.0)
            assert np.array_equal(managers[0].load(3).data["w"], np.full(2 * rows, 2.0))


def test_all_workers_restore_what_is_there_when_another_process_deleted_the_step_they_agreed_on(
    service: CoordinatorProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "c"
    with service.serving(), joined(service, folder, "a", "b") as managers:
        for step in (1, 2):
            for handle in [each.save_background(part_of(rank, step), step) for rank, each in enumerate(managers)]:
                handle.result(stretch(30))
        assert [each.load().step for each in managers] == [2, 2]
        with CheckpointManager(folder, keep_count=1) as elsewhere:
            elsewhere.save({"w": np.full(8, 3.0)}, 3)
            elsewhere.wait_pending()
            assert elsewhere.list_checkpoints() == [3]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda each: each.load(), managers))
        restored = [each.load() for each in managers]
        assert [each.step for each in restored] == [3, 3]
        assert all(np.array_equal(each.data["w"], np.full(8, 3.0)) for each in restored)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert "is damaged" not in caplog.text


def test_a_worker_that_looks_elsewhere_does_not_send_the_others_back(
    service: CoordinatorProcess, tmp_path: Path
) -> None:
    with service.serving():
        with joined(service, tmp_path / "c", "a") as (manager,):
            for step in (1, 2):
                manager.save({"w": np.full(4, step)}, step)
        with joined(service, tmp_path / "elsewhere", "b") as (stray,):
            with pytest.raises(CheckpointNotFoundError, match="no checkpoint of step 2") as found:
                stray.load()
            assert "do all workers use the same storage?" in found.value.__notes__[0]
        assert [checkpoint.step for checkpoint in service.job().checkpoints] == [1, 2]


def test_the_only_checkpoint_is_not_given_up_for_a_new_beginning(service: CoordinatorProcess, tmp_path: Path) -> None:
    with service.serving(), joined(service, tmp_path / "c", "a") as (manager,):
        manager.save({"w": np.ones(4)}, 1)
        flip_last_byte(next((tmp_path / "c/default/checkpoints/step_1").glob("model-*")))
        with pytest.raises(DamagedCheckpointError, match="step 1 is damaged") as found:
            manager.load()
        assert "the only checkpoint of job 'default'" in found.value.__notes__[0]


def test_saves_go_on_while_the_coordinator_is_away_and_are_committed_when_it_is_back(
    service: CoordinatorProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        process = stack.enter_context(service.serving())
        managers = stack.enter_context(joined(service, tmp_path / "c", "a", "b"))
        os.kill(process.pid, 9)
        process.wait()
        handles = [
            each.save_background(part_of(rank, step), step) for step in (1, 2, 3) for rank, each in enumerate(managers)
        ]
        wait_until(lambda: all(handle.phase == "committing" for handle in handles))
        stack.enter_context(service.serving())
        assert all(handle.result(stretch(40)).committed for handle in handles)
        assert managers[0].list_checkpoints() == [1, 2, 3]


def test_a_state_of_a_generation_that_is_over_is_not_saved(service: CoordinatorProcess, tmp_path: Path) -> None:
    with service.serving(), joined(service, tmp_path / "c", "a") as (manager,):
        with pytest.raises(CheckpointAbortedError, match="generation 7 is over, it is 1 now"):
            manager.save({"w": np.zeros(3)}, 1, generation=7)
        assert manager.save({"w": np.zeros(3)}, 1).committed
        with pytest.raises(ValueError, match="the rank says which part this is"):
            manager.save({"w": np.zeros(3)}, 2, part=1, parts=2)


def test_what_is_deleted_by_hand_leaves_the_index_at_the_next_commit_and_at_the_next_start(
    service: CoordinatorProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"

    def known(client: Client) -> list[int]:
        return list(client.list_checkpoints().result(stretch(20)))

    def remove(step: int) -> None:
        shutil.rmtree(folder / "default" / "checkpoints" / f"step_{step}")

    with service.serving():
        with Client(service.url, "a") as client:
            client.wait_registered()
            with CheckpointManager(folder, coordinator=client, keep_count=None) as manager:
                for step in (1, 2, 3):
                    manager.save({"w": np.full(3, float(step))}, step)
                remove(3)
                manager.save({"w": np.full(3, 4.0)}, 4)
                wait_until(lambda: known(client) == [1, 2, 4])
        for step in (1, 4):
            remove(step)
        with Client(service.url, "a") as client:
            client.wait_registered()
            assert known(client) == [1, 2, 4]
            with CheckpointManager(folder, coordinator=client) as manager:
                assert manager.load().step == 2
                assert known(client) == [2]
