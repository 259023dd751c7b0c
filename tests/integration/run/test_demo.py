"""The demonstration, as the README's first command shows it, and its proofs under other plays than the one it shows."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.cli.app import main
from strata.client.http_reader import HttpReader
from strata.demo import director
from strata.demo.director import JOB_ID, Act, Director, Scene, WorkerView
from strata.demo.model import BATCH_SIZE
from strata.demo.proofs import prove
from strata.demo.replicated import ReplicatedCoordinator
from strata.demo.samples import make_dataset
from strata.errors import CoordinatorLostError
from tests.testbed.pace import stretch
from tests.testbed.process import end, start
from tests.testbed.terminal import Terminal
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.xdist_group("whole runs")]
ROWS, EPOCHS = 1_500, 3
README = Path(__file__).parents[3] / "README.md"


def words_of(text: str) -> set[tuple[str, ...]]:
    """The lines without their numbers, bars and times: what is the same in every run."""
    lines = (re.findall(r"[a-z']{2,}", line.lower()) for line in text.splitlines())
    return {tuple(word for word in line if word != "min") for line in lines}


def test_the_demonstration_proves_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strata", "demo", "--pace", "0.01"],
        capture_output=True,
        text=True,
        timeout=stretch(220),
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.count("  ok ") == 7
    assert "not recovered" not in done.stdout
    # Where the time went adds up to the wall time, and each step is counted once.
    assert "100.0%" in done.stdout
    assert "steps: 316 kept" in done.stdout
    shown = README.read_text().partition("$ make demo\n")[2].partition("```")[0]
    # A rank that straggled is printed, too.
    assert words_of(shown) == {line for line in words_of(done.stdout) if line[:2] != ("slow", "rank")}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.part("etcd")
def test_the_demonstration_survives_the_death_of_both_leaders(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strata", "demo", "--ha", "--pace", "0.01"],
        capture_output=True,
        text=True,
        timeout=stretch(220),
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 of etcd's leader" in done.stdout
    assert "kill -9 of the leading coordinator" in done.stdout
    assert "not recovered" not in done.stdout
    assert done.stdout.count("  ok ") == 7
    assert list(tmp_path.iterdir()) == []


def test_without_etcd_the_demonstration_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strata", "demo", "--ha"],
        capture_output=True,
        text=True,
        timeout=stretch(60),
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path), "PATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "strata demo --ha needs the program etcd: apt-get install etcd-server" in done.stderr


def test_the_page_is_opened_stays_up_after_the_proofs_and_the_run_is_kept(tmp_path: Path) -> None:
    (tmp_path / "browser").write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    (tmp_path / "browser").chmod(0o755)
    (tmp_path / "kept").mkdir()
    environment = {
        "TMPDIR": str(tmp_path / "kept"), "DISPLAY": ":0", "BROWSER": f"{tmp_path}/browser %s",
        "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50",
    }  # fmt: skip
    # Half as long as the one of the README: what is shown and kept does not depend on that.
    script = "from strata.cli import app, demo; demo.EPOCHS = 2; app.main(['demo', '--dashboard', '--keep'])"
    with Terminal() as terminal:
        process = start([sys.executable, "-c", script], stdout=terminal.fd, env={**os.environ, **environment})
        try:
            stays = re.compile(r"The dashboard stays at (http://127\.0\.0\.1:\d+) until Ctrl-C")
            wait_until(
                lambda: stays.search(terminal.shown) is not None or process.poll() is not None,
                lambda: terminal.shown[-2_000:],
                timeout_s=180.0,
            )
            found = stays.search(terminal.shown)
            assert found is not None, terminal.shown[-2_000:]
            audit = HttpReader(found[1]).get("/api/datasets/demo", job=JOB_ID, epoch=1)["audit"]
            process.send_signal(signal.SIGINT)
            assert process.wait(stretch(30)) == 0
        finally:
            end(process)
    assert audit["exactly_once"]
    assert (tmp_path / "opened").read_text() == f"{found[1]}\n"
    (kept,) = (tmp_path / "kept").iterdir()
    assert f"The run is in {kept}" in terminal.shown
    assert {"checkpoints", "reference", "seen"} <= {path.name for path in kept.iterdir()}
    assert f"dashboard {found[1]}" in terminal.shown, "it is shown while the run is drawn"


def test_a_play_in_which_no_step_is_done_any_more_ends_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(director, "STALL_S", -1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["demo", "--dashboard"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert re.fullmatch(
        r"strata demo: no worker has done a step for \S+ s, at step 0 of \d+; this machine has too much else to do.*\n",
        shown.err,
    )
    assert shown.out.startswith("The dashboard is at http://127.0.0.1:")
    assert list(tmp_path.iterdir()) == []


def test_each_step_of_a_worker_gives_a_play_more_time(tmp_path: Path) -> None:
    scene, play = make_play(tmp_path)
    scene.workers["worker-0"] = WorkerView("worker-0")
    play._heard_s -= 2 * director.STALL_S
    with pytest.raises(RuntimeError, match="no worker has done a step"):
        play._check_progress()
    step = {"step": 1, "rank": 0, "loss": 0.5, "generation": 1, "world_size": 4}
    play._hear("worker-0", "stdout", json.dumps(step).encode())
    play._check_progress()


def test_a_play_whose_coordinator_is_out_of_reach_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(url: str, *_: object, **__: object) -> None:
        raise CoordinatorLostError(url, waited_s=8.0)

    monkeypatch.setattr(director, "configure_job", lose)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(CoordinatorLostError):
            main(["demo"])
    finally:
        signal.signal(signal.SIGTERM, before)


def make_play(
    folder: Path, *acts: Act, epochs: int = EPOCHS, coordinator: ReplicatedCoordinator | None = None
) -> tuple[Scene, Director]:
    scene = Scene(epochs, ROWS, total_steps=epochs * -(-ROWS // BATCH_SIZE), acts=list(acts))
    return scene, Director(folder, scene, pace_s=0.03, on_change=lambda: None, coordinator=coordinator)


async def test_a_play_ends_with_the_words_of_a_worker_that_failed_unasked(tmp_path: Path) -> None:
    _, director = make_play(tmp_path)  # there is no dataset in the folder
    with pytest.raises(RuntimeError, match=rf"(?s)worker-\d.*{tmp_path}/data: there is no such file or directory"):
        await director.play()


async def test_a_reference_that_fails_says_why(tmp_path: Path) -> None:
    _, director = make_play(tmp_path)
    with pytest.raises(RuntimeError, match=r"(?s)^the undisturbed run failed: .*there is no such file or directory"):
        await director.play_reference()


async def test_a_worker_that_is_paused_goes_on_and_nobody_is_lost(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", ROWS)
    act = Act("pause", 5, 4, ("worker-1",), "a pause")
    scene, director = make_play(tmp_path, act, epochs=1)
    # It ends when all four have ended, the paused one too.
    await director.play()
    assert act.recovered_s is not None
    assert scene.audits == [(0, 0)]


@pytest.mark.part("etcd")
async def test_training_goes_on_when_the_leader_of_etcd_is_killed(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", ROWS)
    (tmp_path / "replicas").mkdir()
    act = Act("kill etcd", 5, 4, (), "kill -9 of etcd's leader")
    async with ReplicatedCoordinator(tmp_path / "replicas") as coordinator:
        killed_pid = coordinator.etcd_pid
        scene, director = make_play(tmp_path, act, epochs=1, coordinator=coordinator)
        await director.play()
        assert act.recovered_s is not None
        assert scene.audits == [(0, 0)]
        await asyncio.to_thread(wait_until, lambda: coordinator.etcd_pid != killed_pid, "another leader of etcd")


@st.composite
def plays(draw: st.DrawFn) -> list[Act]:
    """Acts that make sense one after the other: who leaves is there, who joins is not."""
    present = {f"worker-{number}" for number in range(4)}
    acts, step = [], 0
    for _ in range(draw(st.integers(1, 4))):
        step += draw(st.integers(3, 15))
        kind = draw(st.sampled_from(["kill", "interrupt", "pause", "kill coordinator", "leave", "join"]))
        if kind == "leave" and len(present) == 1:
            kind = "kill"
        name = draw(st.sampled_from(sorted(present)))
        if kind == "join":
            name = next(f"worker-{number}" for number in range(9) if f"worker-{number}" not in present)
            present.add(name)
        elif kind == "leave":
            present.discard(name)
        workers = () if kind == "kill coordinator" else (name,)
        acts.append(Act(kind, step, len(present), workers, kind))
    return acts


@pytest.mark.slow
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(acts=plays())
def test_the_proofs_hold_whatever_is_done_to_the_run(tmp_path_factory: pytest.TempPathFactory, acts: list[Act]) -> None:
    folder = tmp_path_factory.mktemp("play")
    make_dataset(folder / "data", ROWS)
    scene, director = make_play(folder, *acts)

    async def play() -> None:
        await director.play()
        await director.play_reference()

    asyncio.run(play())
    assert acts[0].begun_s is not None
    assert sum(part["seconds"] for part in scene.goodput["parts"]) == pytest.approx(scene.goodput["wall_s"], rel=0.01)
    proofs = prove(folder, job_id=JOB_ID, epochs=EPOCHS, num_rows=ROWS, audits=scene.audits)
    assert all(proof.holds for proof in proofs), proofs
