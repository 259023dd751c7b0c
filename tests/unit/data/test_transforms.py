"""Filters and transforms run beside the loop: order is kept, errors come at their batch, death is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata import open_dataset
from strata.data import Dataset
from strata.errors import CorruptFileError, TransformProcessError
from tests.testbed.data.rows import MemoryRows, refuse_row
from tests.testbed.pace import stretch

Arrays = dict[str, Any]


def double(batch: Arrays) -> Arrays:
    return {"id": batch["id"], "twice": batch["id"] * 2, "pid": np.full(len(batch["id"]), os.getpid())}


def slow_at_first(batch: Arrays) -> Arrays:
    # The first of each few takes longest, so that those behind it are ready before.
    time.sleep(0.03 if batch["id"][0] // 10 % 4 == 0 else 0)
    return batch


def fail_at_50(batch: Arrays) -> Arrays:
    if 50 in batch["id"]:
        raise ZeroDivisionError("fifty")
    return batch


def die_at_50(batch: Arrays) -> Arrays:
    if 50 in batch["id"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def is_even(batch: Arrays) -> Any:
    return batch["id"] % 2 == 0


def opened(**options: Any) -> Dataset:
    return open_dataset(MemoryRows(100), **{"batch_size": 10, "shard_size": 20, "shuffle": False, **options})


@pytest.mark.parametrize("processes", [0, 2])
def test_batches_keep_their_order_however_long_each_takes(processes: int) -> None:
    with opened(transform=slow_at_first, processes=processes, threads=3) as dataset:
        assert [batch["id"][0] for batch in dataset] == list(range(0, 100, 10))


def test_processes_do_the_work_and_are_kept_from_epoch_to_epoch() -> None:
    with opened(transform=double, processes=2) as dataset:
        first, second = list(dataset), list(dataset)
        assert [batch["twice"].tolist() for batch in first] == [list(range(at, at + 20, 2)) for at in range(0, 200, 20)]
        pids = {int(pid) for batch in first + second for pid in batch["pid"]}
        assert os.getpid() not in pids
        assert len(pids) <= 2


@pytest.mark.parametrize("processes", [0, 2])
def test_an_error_of_a_transform_comes_out_at_its_batch(processes: int) -> None:
    with opened(transform=fail_at_50, processes=processes) as dataset:
        batches = iter(dataset)
        assert [next(batches)["id"][0] for _ in range(5)] == [0, 10, 20, 30, 40]
        with pytest.raises(ZeroDivisionError, match="fifty"):
            next(batches)
        assert dataset.state_dict()["consumed"] == [0, 50]


def test_an_error_of_reading_waits_for_the_batches_before_it() -> None:
    rows = MemoryRows(100, before_read=refuse_row(57))
    dataset = open_dataset(rows, batch_size=10, shard_size=10, shuffle=False, transform=slow_at_first)
    batches = iter(dataset)
    assert [next(batches)["id"][0] for _ in range(5)] == [0, 10, 20, 30, 40]
    with pytest.raises(CorruptFileError):
        next(batches)


def test_a_process_that_dies_is_an_error_and_the_next_iteration_goes_on() -> None:
    with opened(transform=die_at_50, processes=1) as dataset:
        seen: list[int] = []
        with pytest.raises(TransformProcessError, match="one of the 1 processes"):
            seen.extend(int(batch["id"][0]) for batch in dataset)
        # The pool is lost with all that it had; what was delivered before stays delivered, and no more.
        assert seen == list(range(0, 10 * len(seen), 10))
        assert dataset.state_dict()["consumed"] == ([0, 10 * len(seen)] if seen else [])
        with pytest.raises(TransformProcessError):
            list(dataset)


def test_what_cannot_be_sent_to_processes_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="transform cannot be sent to other processes"):
        opened(transform=lambda batch: batch, processes=1)
    with pytest.raises(ValueError, match="filter cannot be sent to other processes"):
        opened(filter=lambda batch: batch["id"] > 0, processes=1)


def test_filtered_samples_count_as_delivered_and_batches_are_not_filled_up() -> None:
    dataset = opened(filter=is_even)
    batches = iter(dataset)
    assert next(batches)["id"].tolist() == [0, 2, 4, 6, 8]
    assert dataset.state_dict()["consumed"] == [0, 10]
    assert [len(batch["id"]) for batch in batches] == [5] * 9
    assert dataset.state_dict()["epoch"] == 1


def test_a_batch_without_rows_is_passed_over_but_not_where_ranks_must_take_equal_steps() -> None:
    def keep_end(batch: Arrays) -> Any:
        return batch["id"] >= 70

    assert [batch["id"][0] for batch in opened(filter=keep_end)] == [70, 80, 90]
    sizes = [len(batch["id"]) for batch in opened(filter=keep_end, order="global")]
    assert sizes == [0] * 7 + [10] * 3
    dataset = opened(filter=lambda batch: batch["id"] < 0)
    assert list(dataset) == []
    assert dataset.epoch == 1


def test_a_filter_or_transform_that_returns_something_else_is_told_what_to_return() -> None:
    with pytest.raises(ValueError, match="one boolean for each row"):
        list(opened(filter=lambda batch: batch["id"]))
    with pytest.raises(TypeError, match="transform returned list; return a dict"):
        list(opened(transform=lambda batch: [1]))


def test_threads_transform_beside_the_loop() -> None:
    names = set()

    def note_thread(batch: Arrays) -> Arrays:
        names.add(threading.current_thread().name)
        return batch

    list(opened(transform=note_thread))
    assert names
    assert all(name.startswith("strata-work") for name in names)


def test_iterations_that_are_left_early_give_their_memory_back() -> None:
    with opened(transform=slow_at_first, processes=1, epochs=None) as dataset:
        seen = [next(iter(dataset))["id"][0] for _ in range(12)]
    assert seen == [*range(0, 100, 10), 0, 10]


@pytest.mark.parametrize("processes", [0, 1])
def test_an_iteration_that_is_thrown_away_late_does_not_end_the_one_after_it(processes: int) -> None:
    with opened(transform=slow_at_first, processes=processes) as dataset:
        early = iter(dataset)
        assert next(early)["id"][0] == 0
        later = iter(dataset)
        assert next(later)["id"][0] == 10
        early.close()
        assert [batch["id"][0] for batch in later] == list(range(20, 100, 10))


def fail(batch: Arrays) -> Arrays:
    raise ZeroDivisionError(int(batch["id"][0]))


def test_errors_give_their_memory_back() -> None:
    with opened(transform=fail, processes=1) as dataset:
        for _ in range(6):
            with pytest.raises(ZeroDivisionError):
                list(dataset)


SCRIPT = """
import os, sys, time
from strata.data import open_dataset
from tests.testbed.data.rows import MemoryRows
from tests.unit.data.test_transforms import double

if __name__ == "__main__":
    dataset = open_dataset(MemoryRows(100), batch_size=10, transform=double, processes=2)
    batch = next(iter(dataset))
    print(*{int(pid) for pid in batch["pid"]}, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_processes_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)}
    )
    pids = [int(pid) for pid in run.stdout.split()]
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert pids
    deadline = time.monotonic() + stretch(20)
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("order", ["sticky", "global"])
@pytest.mark.parametrize("processes", [0, 1])
def test_an_error_of_a_transform_names_file_rows_and_epoch(tmp_path: Path, order: str, processes: int) -> None:
    for name, first in (("a", 0), ("b", 10)):
        pq.write_table(pa.table({"id": np.arange(first, first + 10)}), tmp_path / f"{name}.parquet")
    dataset = open_dataset(
        tmp_path, batch_size=4, order=order, shuffle=False, transform=refuse_fifteen, processes=processes
    )
    dataset.set_epoch(3)
    with dataset, pytest.raises(LookupError, match="no fifteen") as caught:
        list(dataset)
    (note,) = caught.value.__notes__
    assert "epoch 3" in note
    assert "b.parquet rows 2, 3, 4, 5" in note
    assert "a.parquet" not in note


def refuse_fifteen(batch: Arrays) -> Arrays:
    if 15 in batch["id"]:
        raise LookupError("no fifteen")
    return batch
