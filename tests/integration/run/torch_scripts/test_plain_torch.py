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


def test_an_unmodified_script_makes_its_process_group(tmp_path: Path) -> None:
    done = launch(GLOO, tmp_path, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] rank {rank} of 2 sum 3" for rank in range(2)]
    assert done.stderr.count("OMP_NUM_THREADS=1 for each worker") == 1


# Trains four steps; rank 1 dies once, after the second. Each start says where it meets, and how often it was restarted.
DIES_ONCE = """
import os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("start", os.environ["TORCHELASTIC_RESTART_COUNT"], "at port", os.environ["MASTER_PORT"], flush=True)
mark = Path(sys.argv[0]).parent / "died"
for step in range(4):
    if step == 2 and rank == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.ones(1)
    dist.all_reduce(total)
print("done", int(total), flush=True)
dist.destroy_process_group()
"""


def test_a_script_that_cannot_recover_is_restarted_as_a_whole_and_that_counts_once(tmp_path: Path) -> None:
    done = launch(DIES_ONCE, tmp_path, "--nproc", "2", "--max-restarts", "1")
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "done" in line) == ["[0] done 2", "[1] done 2"]
    starts = [line.split() for line in done.stdout.splitlines() if "start" in line]
    assert sorted(line[2] for line in starts) == ["0", "0", "1", "1"]
    ports = {line[2]: line[5] for line in starts}
    assert ports["0"] != ports["1"], "the port of a start is never that of the one before"
    (said,) = [line for line in done.stderr.splitlines() if "restart 1" in line]
    assert "of the whole group: the script has not joined the job with strata.join" in said
    assert "restart 2" not in done.stderr


# Rank 0 never returns from its collective call: its peer has died, and it does not listen to SIGTERM.
HANGS = """
import os, signal, sys, time
from pathlib import Path
mark = Path(sys.argv[0]).parent / "died"
if os.environ["RANK"] == "1" and not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    signal.signal(signal.SIGTERM, lambda *_: None)
    while True:
        time.sleep(0.05)
print("done", flush=True)
"""


def test_a_rank_that_hangs_because_its_peer_died_is_ended_with_its_group(tmp_path: Path) -> None:
    done = launch(HANGS, tmp_path, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] done", "[1] done"]


# Rank 0 is done as soon as the group has met; rank 1 dies once afterwards, and cannot meet anybody alone.
DIES_LAST = """
import os, signal, sys
from pathlib import Path
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("met in start", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
mark = Path(sys.argv[0]).parent / "died"
if dist.get_rank() == 1 and not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""


def test_a_rank_that_has_finished_starts_again_with_its_group(tmp_path: Path) -> None:
    done = launch(DIES_LAST, tmp_path, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("met in start 1") == 2
