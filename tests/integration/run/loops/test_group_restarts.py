"""With ``recover=False`` the loss of a worker ends the others as intended: one line each, and all start again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.testbed.pace import stretch
from tests.testbed.process import run_program

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("whole runs")]

SCRIPT = """
import os, signal, sys
from pathlib import Path
import strata
folder = Path(sys.argv[0]).parent
with strata.join(checkpoints=folder / "c", save_every="2 steps") as run:
    for step in run.steps({"x": 1}, until=8, recover=False):
        with step:
            run.barrier(f"{step.number}")
            if step.number == 5 and run.rank == 1 and not (folder / "died").exists():
                (folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
    print("done", run.step_number)
"""

# The survivor is in a collective call when its peer dies: gloo fails before the coordinator knows of it.
DDP = """
import os, signal, sys
from pathlib import Path
import numpy as np, torch
import torch.distributed as dist
import strata
from strata.integrations.torch_process_group import init_process_group
folder = Path(sys.argv[0]).parent
with strata.join(checkpoints=folder / "c", save_every="2 steps") as run:
    init_process_group(run, "gloo")
    for step in run.steps({"x": np.zeros(1)}, until=8, recover=False):
        with step:
            if step.number == 5 and run.rank == 1 and not (folder / "died").exists():
                (folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1))
    print("done", run.step_number)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("script", [SCRIPT, pytest.param(DDP, marks=pytest.mark.part("torch"))], ids=["barrier", "ddp"])
def test_the_survivors_end_with_one_line_and_no_traceback(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    done = run_program(
        [sys.executable, "-m", "strata", "run", "--standalone", "--nproc", "2", str(tmp_path / "train.py")],
        capture_output=True,
        text=True,
        timeout=stretch(200),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] done 8", "[1] done 8"]
    assert "Traceback" not in done.stderr, done.stderr
    assert "run.restore" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "recover=False" in line and line.startswith("[0]")]
    assert "its connection closed without goodbye" in said
    assert "this process ends as intended (recover=False, exit code 86), and its launcher starts all workers" in said
    (said,) = [line for line in done.stderr.splitlines() if "restart 1" in line]
    assert "was ended by SIGKILL" in said
    assert "of the whole group: its process group cannot change its members" in said
