"""Workers are killed at random samples and their number goes from 4 to 3 to 7: each sample was seen exactly once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strata
from strata.checkpoint import CheckpointManager
from strata.client.unary import ask_audit
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.job import ORDERS
from tests.testbed.pace import stretch
from tests.testbed.process import run_program, start
from tests.testbed.programs.counting_worker import SAMPLES

pytestmark = pytest.mark.full

EPOCHS = 2


class Workers:
    """The worker processes of one job, by name; the dead can be started again."""

    def __init__(self, stack: ExitStack, folder: Path, url: str, order: str) -> None:
        self._stack = stack
        self._folder = folder
        self._url = url
        self._command = [sys.executable, "-m", "tests.testbed.programs.counting_worker", str(folder), order]
        # On a busy machine a worker takes longer to start: the others must not be done before it is back.
        self._command += [str(EPOCHS), str(stretch(0.02))]
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        environment = {**os.environ, "COORDINATOR_URL": self._url, "WORKER_ID": name}
        with (self._folder / f"{name}.log").open("ab") as log:
            process = self._stack.enter_context(
                start(self._command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
            )
        self._stack.callback(process.kill)
        self.processes[name] = process

    def wait_for_steps(self, name: str, count: int) -> bool:
        """Read this many steps of a worker; return whether it got so far before its end."""
        output = self.processes[name].stdout
        assert output is not None
        return all(output.readline() for _ in range(count))

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        self.processes[name].send_signal(how)
        self.processes[name].wait()
        self.processes.pop(name)

    def end(self) -> None:
        for process in self.processes.values():
            try:
                process.communicate(timeout=stretch(240))
            except subprocess.TimeoutExpired:
                break
        codes = {name: process.poll() for name, process in self.processes.items()}
        assert set(codes.values()) == {0}, f"{codes}\n{self._logs()}"

    def _logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()}" for log in sorted(self._folder.glob("*.log")))


def write_numbers(folder: Path) -> None:
    (folder / "data").mkdir()
    for part, ids in enumerate(np.array_split(np.arange(SAMPLES), 7)):
        pq.write_table(pa.table({"id": ids}), folder / "data" / f"{part}.parquet", row_group_size=30)


@pytest.mark.xdist_group("whole runs")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("order", ORDERS)
def test_each_sample_is_seen_exactly_once_whatever_is_killed(tmp_path: Path, order: str) -> None:
    chance = random.Random(order)
    write_numbers(tmp_path)
    coordinator = CoordinatorProcess(tmp_path)
    with ExitStack() as stack:
        stack.enter_context(coordinator.serving())
        workers = Workers(stack, tmp_path, coordinator.url, order)
        for number in range(4):
            workers.start(f"w{number}")
        for _ in range(2):
            victim = chance.choice(sorted(workers.processes))
            assert workers.wait_for_steps(victim, chance.randint(4, 12))
            workers.kill(victim)
            workers.start(victim)
        assert workers.wait_for_steps("w3", 3)
        workers.kill("w3", signal.SIGTERM)
        assert workers.wait_for_steps("w0", 4)
        for number in range(3, 7):
            workers.start(f"w{number}")
        if workers.wait_for_steps("w5", chance.randint(1, 5)):
            workers.kill("w5")
        workers.end()
        audits = [ask_audit(coordinator.url, "default", "numbers", epoch=epoch) for epoch in range(EPOCHS)]
        exact, unfinished = (audit_command(coordinator.url, epoch) for epoch in (1, EPOCHS))
    assert [(each.total_samples, each.missing.samples, each.repeated.samples) for each in audits] == [
        (SAMPLES, 0, 0)
    ] * EPOCHS
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        assert (manager.load().data["seen"] == 1).all()
    assert (exact.returncode, unfinished.returncode) == (0, 1)
    assert f"each of its {SAMPLES:,} samples was seen exactly once" in exact.stdout
    assert f"missing   0 to {SAMPLES - 1:,}" in unfinished.stdout


def test_what_could_not_be_read_is_told_apart_from_what_was_missed(tmp_path: Path) -> None:
    write_numbers(tmp_path)
    damaged = tmp_path / "data" / "3.parquet"
    group = pq.read_metadata(damaged).row_group(1).column(0)
    with damaged.open("r+b") as file:
        file.seek(group.dictionary_page_offset or group.data_page_offset)
        file.write(bytes(group.total_compressed_size))
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        with strata.join(checkpoints=tmp_path / "checkpoints", coordinator_url=coordinator.url, worker_id="w") as run:
            data = run.dataset(tmp_path / "data", name="numbers", batch_size=16, on_error="skip")
            state = {"seen": np.zeros(SAMPLES, np.int64)}
            for step in run.steps(state, data):
                with step:
                    assert step.batch is not None
                    state["seen"][step.batch["id"]] += 1
        audit = audit_command(coordinator.url, 0)
    unread = np.flatnonzero(state["seen"] == 0)
    assert (len(unread), state["seen"].max(), audit.returncode) == (30, 1, 0)
    assert "seen exactly once, but for 30 that could not be read" in audit.stdout
    assert f"skipped   {unread[0]} to {unread[-1]}" in audit.stdout


def test_files_with_a_bad_footer_are_counted_where_an_index_has_their_rows_and_named_where_none_has(
    tmp_path: Path,
) -> None:
    write_numbers(tmp_path)
    rows = pq.read_metadata(tmp_path / "data" / "3.parquet").num_rows
    for name in ("indexed", "scanned"):
        shutil.copytree(tmp_path / "data", tmp_path / name)
    run_program([sys.executable, "-m", "strata", "data", "index", str(tmp_path / "indexed")], check=True)
    coordinator = CoordinatorProcess(tmp_path)
    said = {}
    with coordinator.serving():
        for name in ("indexed", "scanned"):
            damaged = tmp_path / name / "3.parquet"
            damaged.write_bytes(damaged.read_bytes()[:-9])
            with strata.join(checkpoints=tmp_path / f"c-{name}", coordinator_url=coordinator.url, job_id=name) as run:
                data = run.dataset(tmp_path / name, name="numbers", batch_size=16, on_error="skip")
                state = {"seen": np.zeros(1)}
                for step in run.steps(state, data):
                    state["seen"] += len(step.batch["id"])
            assert state["seen"] == SAMPLES - rows
            command = [sys.executable, "-m", "strata", "data", "audit", name, "numbers", "--coordinator"]
            said[name] = [
                run_program([*command, coordinator.url, *form], capture_output=True, text=True, check=True).stdout
                for form in ([], ["--json"])
            ]
    shown, found = said["indexed"]
    assert f"each of its {SAMPLES:,} samples was seen exactly once, but for {rows:,} that could not be read" in shown
    assert "left out" not in shown
    assert (int(json.loads(found)["skipped"]["samples"]), json.loads(found)["left_out"]) == (rows, [])
    shown, found = said["scanned"]
    assert f"each of its {SAMPLES - rows:,} samples was seen exactly once\n" in shown
    assert "3.parquet: it could not be understood, so its samples are not counted" in shown
    assert [Path(file).name for file in json.loads(found)["left_out"]] == ["3.parquet"]


def audit_command(url: str, epoch: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strata", "data", "audit", "default", "numbers", "--epoch", str(epoch)]
    return run_program([*command, "--coordinator", url], capture_output=True, text=True, check=False)
