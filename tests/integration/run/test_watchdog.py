"""A rank that hangs is named, its stacks are kept, and it alone is ended; the others, who wait for it, are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import run_program

# A stall is a step that takes much longer than the others, so a machine that stops for seconds makes one.
pytestmark = [pytest.mark.full, pytest.mark.timing, pytest.mark.timeout(240)]

# Rank 1 hangs once, in step 6, in a way of its own; all ranks meet in every step.
HANG_ONCE = r"""
import sys, time, threading
from pathlib import Path
folder = Path(sys.argv[1])
def say(line):  # in one write: torchrun's ranks share one output, and do not buffer it
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
def hang_once(rank, step):
    mark = folder / "hung"
    if rank == 1 and step == 6 and not mark.exists():
        mark.touch()
        HANG
"""
EXCHANGING = """
import numpy as np, strata
state = {"x": np.zeros(1)}
with strata.join(checkpoints=folder / "c", save_every="2 steps") as run:
    say(f"life of rank {run.rank}")
    for step in run.steps(state, until=12):
        with step:
            hang_once(run.rank, step.number)
            run.exchange(f"x/{step.number}", b"1")
            state["x"] += 1
    say(f"done {int(state['x'][0])}")
"""
DDP = """
import torch, torch.distributed as dist, strata
from torch.nn.parallel import DistributedDataParallel
from strata.integrations.torch_process_group import init_process_group
run = strata.join(checkpoints=folder / "c", save_every="2 steps")
say(f"life of rank {run.rank}")
init_process_group(run, "gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in run.steps({"model": model, "optimizer": optimizer}, until=12, recover=False):
    with step:
        hang_once(run.rank, step.number)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
say(f"done {run.step_number}")
dist.destroy_process_group()
run.close()
"""
SLEEP = "time.sleep(1000)"
HOLD_THE_LOCK = "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "STRATA_WATCHDOG_S": "6"}


def write(folder: Path, body: str, hang: str) -> Path:
    script = folder / "train.py"
    script.write_text(HANG_ONCE.replace("HANG", hang) + body)
    return script


def run(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "strata", "run", "--standalone", "--nproc", "2", *options, script, script.parent],
        capture_output=True,
        text=True,
        timeout=stretch(200),
        check=False,
        env={**os.environ, **ENVIRONMENT},
    )


def stacks(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("strata-jobs/default/**/stacks/*.txt"))


def test_a_rank_that_hangs_is_named_and_ended_and_the_one_that_waits_for_it_is_not(tmp_path: Path) -> None:
    done = run(write(tmp_path, EXCHANGING, SLEEP))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done 12") == 2
    assert re.findall(r"life of rank (\d)", done.stdout).count("0") == 1, "the healthy one lives on"
    assert "rank 1" in done.stderr
    assert "stands still" in done.stderr
    assert "(rank 1) hung, and was ended by its watchdog" in done.stderr
    assert "(rank 0)" not in done.stderr.replace("rank 0) stands", "")
    assert "hang_once" in stacks(tmp_path)


def test_of_ranks_that_wait_at_different_meetings_one_is_ended_and_all_go_on(tmp_path: Path) -> None:
    done = run(write(tmp_path, EXCHANGING, "run.barrier('nobody else comes')"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done 12") == 2
    assert "all workers wait, at different meetings" in done.stderr
    assert len(re.findall("life of rank", done.stdout)) == 3, "one is ended, and the other lives on"


@pytest.mark.slow
def test_a_rank_that_hangs_with_the_interpreters_lock_is_ended_too(tmp_path: Path) -> None:
    done = run(write(tmp_path, EXCHANGING, HOLD_THE_LOCK))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done 12") == 2
    assert re.findall(r"life of rank (\d)", done.stdout).count("0") == 1, "the healthy one lives on"
    assert "hang_once" in stacks(tmp_path)


@pytest.mark.part("torch")
def test_with_ddp_the_hung_rank_is_found_and_the_run_goes_on(tmp_path: Path) -> None:
    done = run(write(tmp_path, DDP, SLEEP))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done 12") == 2
    assert re.search(r"rank 0 \S+ stands still .*because it waits for rank 1", done.stderr), done.stderr
    assert "(rank 1) hung, and was ended by its watchdog" in done.stderr
    assert "(rank 0) hung" not in done.stderr


@pytest.mark.slow
@pytest.mark.part("torch")
def test_under_torchrun_the_hung_rank_is_found_too(tmp_path: Path) -> None:
    script = write(tmp_path, DDP, SLEEP)
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"]
        torchrun += ["--rdzv-backend=strata", f"--rdzv-endpoint={coordinator.url}", "--max-restarts=2"]
        torchrun += ["--local-addr=127.0.0.1", str(script), str(tmp_path)]
        done = run_program(
            torchrun,
            capture_output=True,
            text=True,
            timeout=stretch(200),
            check=False,
            env={**os.environ, **ENVIRONMENT, "COORDINATOR_URL": coordinator.url},
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done 12") == 2
    assert "exits with code 87" in done.stderr
    assert "hang_once" in stacks(tmp_path)


def test_a_phase_that_is_long_on_purpose_is_no_stall(tmp_path: Path) -> None:
    body = EXCHANGING.replace(
        "            hang_once(run.rank, step.number)\n",
        "            if step.number == 6:\n"
        "                with run.pause_watchdog('eval'):\n"
        "                    time.sleep(5 if run.rank else 0)\n",
    )
    done = run(write(tmp_path, body, SLEEP), "--watchdog", "3")
    assert done.returncode == 0, done.stderr
    assert len(re.findall("life of rank", done.stdout)) == 2
    assert "waiting for" in done.stderr, "the other one says for whom it waits"
