"""The demonstration, as the README's first command shows it, and its proofs under other plays than the one it shows."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.demo.director import JOB_ID, Act, Director, Scene
from strata.demo.model import BATCH_SIZE
from strata.demo.proofs import prove
from strata.demo.samples import make_dataset
from tests.testbed.pace import stretch

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


def make_play(folder: Path, *acts: Act, epochs: int = EPOCHS) -> tuple[Scene, Director]:
    scene = Scene(epochs, ROWS, total_steps=epochs * -(-ROWS // BATCH_SIZE), acts=list(acts))
    return scene, Director(folder, scene, pace_s=0.03, on_change=lambda: None)


async def test_a_play_ends_with_the_words_of_a_worker_that_failed_unasked(tmp_path: Path) -> None:
    _, director = make_play(tmp_path)  # there is no dataset in the folder
    with pytest.raises(RuntimeError, match=rf"(?s)worker-\d.*{tmp_path}/data: there is no such file or directory"):
        await director.play()


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
