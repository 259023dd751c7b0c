"""The demonstration, as the README's first command shows it, and its proofs under other plays than the one it shows."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.run.demo.dataset import make_dataset
from strata.run.demo.director import JOB_ID, Act, Director, Scene
from strata.run.demo.model import BATCH_SIZE
from strata.run.demo.proofs import prove

pytestmark = pytest.mark.timeout(300)
ROWS, EPOCHS = 1_500, 3


def test_the_demonstration_proves_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strata", "demo", "--pace", "0.01"],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.count("  ok ") == 7
    assert "not recovered" not in done.stdout
    assert list(tmp_path.iterdir()) == []


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


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(acts=plays())
def test_the_proofs_hold_whatever_is_done_to_the_run(tmp_path_factory: pytest.TempPathFactory, acts: list[Act]) -> None:
    folder = tmp_path_factory.mktemp("play")
    make_dataset(folder / "data", ROWS)
    scene = Scene(EPOCHS, ROWS, total_steps=EPOCHS * -(-ROWS // BATCH_SIZE), acts=acts)
    director = Director(folder, scene, pace_s=0.03, on_change=lambda: None)

    async def play() -> None:
        await director.play()
        await director.play_reference()

    asyncio.run(play())
    assert acts[0].begun_s is not None
    proofs = prove(folder, job_id=JOB_ID, epochs=EPOCHS, num_rows=ROWS, audits=scene.audits)
    assert all(proof.holds for proof in proofs), proofs
