"""Scripts that know nothing of Strata run under ``strata run`` as they do under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.pace import stretch
from tests.testbed.process import run_program

pytestmark = [pytest.mark.part("torch"), pytest.mark.timeout(240), pytest.mark.xdist_group("whole runs")]

GLOO = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", int(total), flush=True)
dist.destroy_process_group()
"""


def launch(script: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return run_program(
        [sys.executable, "-m", "strata", "run", "--standalone", *options, str(folder / "train.py")],
        capture_output=True,
        text=True,
        timeout=stretch(200),
        check=False,
    )


@pytest.mark.quick
def test_an_unmodified_script_makes_its_process_group(tmp_path: Path) -> None:
    done = launch(GLOO, tmp_path, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] rank {rank} of 2 sum 3" for rank in range(2)]
    assert done.stderr.count("OMP_NUM_THREADS=1 for each worker") == 1
