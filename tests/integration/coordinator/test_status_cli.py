"""``strata status`` and ``strata events`` as someone on call runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import strata
from strata.checkpoint import CheckpointManager
from strata.cli.output import escape
from strata.cli.watch.status import describe_stall
from strata.client.client import Client
from strata.errors import DivergedReplicasWarning
from strata.run.loop.save_notes import SaveNotes
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.network.raw_channel import RawChannel
from tests.testbed.pace import stretch
from tests.testbed.process import run_program, start
from tests.testbed.waiting import wait_until

COMMAND = Path(sys.executable).with_name("strata")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_program([COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    process = CoordinatorProcess(tmp_path)
    with process.serving():
        yield process


def train(url: str, folder: Path, *, steps: int) -> strata.Run:
    """Train alone and stay in the job."""
    worker = strata.join(coordinator_url=url, worker_id="w", checkpoints=folder, save_every="2 steps")
    state = {"x": np.zeros(1)}
    for step in worker.steps(state, until=steps):
        with step:
            state["x"] += 1
            step.report(loss=1 / step.number)
    worker.checkpoints.wait_pending()
    return worker


def test_status_shows_who_does_what_how_fast_and_with_what_loss(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    assert run("status", "--coordinator", coordinator.url).stdout == "no jobs yet\n"
    with train(coordinator.url, tmp_path / "c", steps=4):
        # It is told with the next beat.
        wait_until(lambda: [worker.step for worker in coordinator.status().workers] == [4])
        shown = run("status", "--coordinator", coordinator.url).stdout.splitlines()
        (job,) = json.loads(run("status", "--coordinator", coordinator.url, "--json").stdout)["jobs"]
    assert shown[0] == "job default: running, generation 1"
    assert shown[1].split() == ["worker", "rank", "state", "step", "epoch", "speed", "reports", "heartbeat"]
    assert shown[2].split()[:2] == ["w", "0"]
    assert "steps/s" in shown[2]
    assert "loss 0.25" in shown[2]
    assert " 4/4 " in shown[2]
    assert shown[-1] == "checkpoint step 4, epoch 0: default/checkpoints/step_4/metadata.json"
    (told,) = job["workers"]
    assert (told["worker_id"], told["step"], told["resources"]["loss"]) == ("w", "4", 0.25)


def test_status_says_in_words_that_a_worker_is_in_a_long_phase(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    with train(coordinator.url, tmp_path / "c", steps=4) as worker, worker.pause_watchdog("eval"):
        wait_until(lambda: coordinator.job().workers[0].resources.get("paused"))
        shown = run("status", "--coordinator", coordinator.url).stdout
    assert "rank 0 (w) is in a long phase that it announced, after step 4; its watchdog is paused" in shown
    assert "paused 1" not in shown


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        ({"loss": 1.0}, ""),
        ({"stalled_s": 40.2, "limit_s": 120.0}, "it runs its own code; its watchdog's limit is 120 s"),
        ({"stalled_s": 40.2, "limit_s": 120.0, "waiting": 1.0}, "it waits for other workers at a barrier"),
        ({"stalled_s": 40.2, "limit_s": 120.0, "in_collective": 1.0}, "it is in a collective"),
    ],
)
def test_a_worker_that_stands_still_is_described_in_words(resources: dict[str, float], sentence: str) -> None:
    worker = pb.WorkerStatus(worker_id="w1", rank=1, state="training", step=120, resources=resources)
    start = "rank 1 (w1) stands still for 40 s in step 121: "
    assert describe_stall(worker) == (start + sentence if sentence else "")
    worker.state = "left"
    assert not describe_stall(worker)


def test_status_names_a_checkpoint_that_cannot_be_restored(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    with train(coordinator.url, tmp_path / "c", steps=4):
        pass
    (tmp_path / "c/default/checkpoints/step_4/metadata.json").write_bytes(b"{")
    with train(coordinator.url, tmp_path / "c", steps=3) as worker:
        assert worker.step_number == 3
        shown = run("status", "--coordinator", coordinator.url).stdout
        events = run("events", "--coordinator", coordinator.url, "--job", "default").stdout
    assert "checkpoint step 4 is not restored: step 4 is damaged" in shown
    assert "default w  checkpoint rejected: step 4: step 4 is damaged" in events


def test_replicas_that_diverged_are_in_status_and_events_with_ranks_and_tensor(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    # What is odd about this name must not keep the commit from being told.
    odd = "b\n" + "x" * 600
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(coordinator.url, f"w{number}")) for number in range(3)]
        wait_until(lambda: all(client.get_rank_info().world_size == 3 for client in clients))
        managers = [stack.enter_context(CheckpointManager(tmp_path, coordinator=client)) for client in clients]
        handles = []
        for client, manager in zip(clients, managers, strict=True):
            rank = client.get_rank_info().rank
            state = {"a": np.zeros(3), odd: np.zeros(3) + (rank == 1), "w": np.zeros(4) + (rank == 2)}
            handles.append(manager.save_background(state, 7))
        with pytest.warns(DivergedReplicasWarning):
            for handle, manager in zip(handles, managers, strict=True):
                handle.result(stretch(60))
                manager.wait_pending(stretch(60))
    notes = SaveNotes()
    for handle in handles:
        notes.add(handle)
    notes.look()
    assert [note.is_diverged for note in notes.recent()].count(True) == 1, "that of the worker with the manifest"
    shown = run("status", "--coordinator", coordinator.url).stdout
    told = "ranks 1, 2 held other values of b?xxx"
    assert f"checkpoint step 7 has replicas that diverged: {told}" in shown
    assert f"default  replicas diverged: step 7: {told}" in run("events", "--coordinator", coordinator.url).stdout
    (job,) = json.loads(run("status", "--coordinator", coordinator.url, "--json").stdout)["jobs"]
    assert job["checkpoints"][0]["diverged"]["ranks"] == ["1", "2"]


def test_events_are_told_as_they_come(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    follow = [COMMAND, "events", "--follow", "--json", "--coordinator", coordinator.url]
    with start(follow, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        with train(coordinator.url, tmp_path / "c", steps=2):
            told = ""
            while "checkpoint committed" not in told:
                line = following.stdout.readline()
                assert line, f"it ended after {told!r}"
                told += line
        following.send_signal(signal.SIGINT)
        assert following.wait(stretch(20)) == 130
    assert "w joined" in told
    once = run("events", "--coordinator", coordinator.url)
    assert "default  generation changed [finished]: 2: w finished\n" in once.stdout
    unknown = run("events", "--coordinator", coordinator.url, "--job", "other")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "'other'" in unknown.stderr
    lines = run("events", "--coordinator", coordinator.url, "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert events[0]["cause"] == "joined"
    assert abs(events[0]["time_s"] - time.time()) < 3_600


def test_status_stays_small_however_many_checkpoints_and_cursors_there_are(coordinator: CoordinatorProcess) -> None:
    runs = ",".join(["0", *["1"] * 100_001])
    params = '{"dataset_id":"d","total_samples":1000000,"shard_size":10,"shuffle":true,"seed":1,"data_order":"sticky"}'
    cursors = f'[{{"dataset":{params},"order":"sticky","epoch":0,"consumed":[{runs}]}}]'
    for step in range(60):
        rows = [pb.CommitRecord(step=step, epoch=0, manifest=f"default/checkpoints/step_{step}/m", cursors=cursors)]
        command = pb.Command(adopt_checkpoints=pb.AdoptCheckpoints(job_id="default", checkpoints=rows))
        with RawChannel(coordinator.channel_port) as raw:
            raw.send(pb.ClientFrame(id=1, command=command).SerializeToString())
            raw.receive()
    shown = run("status", "--coordinator", coordinator.url)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "checkpoint step 59, epoch 0: default/checkpoints/step_59/m" in shown.stdout
    (job,) = json.loads(run("job", "ls", "--coordinator", coordinator.url, "--json").stdout)
    assert (job["checkpoints"], job["last_step"]) == (60, 59)


def test_a_job_is_listed_and_removed_when_nobody_works_on_it(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    assert run("job", "ls", "--coordinator", coordinator.url).stdout == "no jobs yet\n"
    with train(coordinator.url, tmp_path / "c", steps=2):
        busy = run("job", "rm", "default", "--coordinator", coordinator.url)
        assert busy.returncode == 1
        assert "job 'default' has 1 workers (w); stop them first, then remove the job" in busy.stderr
    assert "job default: finished (w finished), generation " in run("status", "--coordinator", coordinator.url).stdout
    listed = run("job", "ls", "--coordinator", coordinator.url).stdout.splitlines()
    assert listed[1].split() == ["default", "finished", "0", "1", "2", "2", "2"]
    assert run("job", "forget", "default", "2", "--coordinator", coordinator.url).returncode == 0
    assert run("job", "rm", "default", "--coordinator", coordinator.url).stdout.startswith("job default is forgotten")
    assert run("job", "ls", "--coordinator", coordinator.url, "--json").stdout == "[]\n"
    assert run("job", "rm", "default", "--coordinator", coordinator.url).returncode == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--lease", "nan"), ("--lease", "-1"), ("--grace", "inf"), ("--log-level", "loud"), ("--max-unsent", "0")],
)
def test_an_option_of_the_coordinator_that_makes_no_sense_is_one_line(option: str, value: str) -> None:
    done = run("coordinator", option, value)
    assert done.returncode == 2
    assert done.stderr.startswith("strata: error:")
    assert done.stderr.count("\n") == 1


def test_what_others_wrote_is_escaped() -> None:
    assert escape("w\x1b[2J\n\u202e") == "w\\x1b[2J\\n\\u202e"


def test_a_coordinator_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run("status", "--coordinator", CoordinatorProcess(tmp_path).url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("strata: error: the coordinator at 127.0.0.1:")
    assert done.stderr.count("\n") == 1
