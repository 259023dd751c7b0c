"""Launchers of several machines start an unmodified script of torch together, and again together when a rank dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("torch"), pytest.mark.timeout(300), pytest.mark.xdist_group("whole runs")]

# Trains with DDP, saves after each step, and goes on from there. After its second step a rank waits to be killed.
DDP = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), Path(sys.argv[1])
names = ("GROUP_RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
print("start", rank, *(os.environ[name] for name in names), "pid", os.getpid(), flush=True)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = 0
if (folder / "saved.pt").exists():
    saved = torch.load(folder / "saved.pt")
    model.module.load_state_dict(saved["model"])
    first = saved["step"]
dist.barrier()
for step in range(first, 4):
    loss = model(torch.full((2, 3), float(rank + step))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step + 1}, folder / "new.pt")
        (folder / "new.pt").replace(folder / "saved.pt")
    dist.barrier()
    if step == 1:
        print("at step 2", rank, flush=True)
        while not (folder / "go").exists():
            time.sleep(0.02)
print("result", repr(float(sum(p.detach().sum() for p in model.parameters()))), flush=True)
dist.destroy_process_group()
"""


class Machine:
    """A launcher with a node rank and a name of its own, and what it has said so far."""

    def __init__(self, url: str, folder: Path, node_rank: int, *options: str, script: str = DDP) -> None:
        (folder / "train.py").write_text(script)
        command = [sys.executable, "-m", "strata", "run", "--coordinator", url, "--node-rank", str(node_rank)]
        command += ["--name", f"machine{node_rank}", *options, str(folder / "train.py"), str(folder)]
        environment = {**os.environ, "JOBS_PATH": str(folder / f"jobs{node_rank}")}
        self.process = start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self.lines: list[str] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def said(self, words: str) -> list[str]:
        return [line for line in list(self.lines) if words in line]

    def wait_for(self, words: str, times: int = 1) -> list[str]:
        wait_until(lambda: len(self.said(words)) >= times, lambda: f"{times} x {words!r} in\n{self.output}")
        return self.said(words)

    def wait(self) -> int:
        code: int = self.process.wait(stretch(120))
        self._listening.join(stretch(10))
        return code

    def close(self) -> None:
        self.process.kill()
        self.wait()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.lines.extend(line.rstrip("\n") for line in lines)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        yield coordinator.url


@contextmanager
def machines(
    url: str, folder: Path, *nprocs: int, options: tuple[str, ...] = (), script: str = DDP
) -> Iterator[list[Machine]]:
    nnodes = ("--nnodes", str(len(nprocs)))
    with ExitStack() as stack:
        made = []
        for node_rank, nproc in enumerate(nprocs):
            machine = Machine(url, folder, node_rank, *nnodes, "--nproc", str(nproc), *options, script=script)
            made.append(stack.enter_context(closing(machine)))
        yield made


def pid_of(line: str) -> int:
    return int(line.rpartition(" ")[2])


def results(*launched: Machine) -> list[str]:
    return [line.split()[-1] for machine in launched for line in machine.said("result")]


def test_a_rank_that_is_killed_on_one_machine_restarts_all_of_them_and_counts_once(url: str, tmp_path: Path) -> None:
    with machines(url, tmp_path, 2, 1, options=("--max-restarts", "1")) as (first, second):
        first.wait_for("at step 2", 2)
        (line,) = second.wait_for("start")
        second.wait_for("at step 2")
        os.kill(pid_of(line), signal.SIGKILL)
        wait_until(lambda: len(first.said(" pid ")) == 4, lambda: first.output + second.output)
        (tmp_path / "go").touch()
        assert [first.wait(), second.wait()] == [0, 0], first.output + second.output
    starts = [line.split()[2:] for machine in (first, second) for line in machine.said("start ") if "pid" in line]
    for restart in ("0", "1"):
        group = sorted(each for each in starts if each[6] == restart)
        assert [each[:4] for each in group] == [["0", "0", "0", "3"], ["1", "0", "1", "3"], ["2", "1", "0", "3"]]
        assert len({(each[4], each[5]) for each in group}) == 1, "all of a start meet at one place"
    assert len({each[5] for each in starts}) == 2, "each start has a port of its own"
    assert len(set(results(first, second))) == 1
    assert len(results(first, second)) == 3
    (said,) = first.said("start again together")
    assert re.search(r"node rank 1: machine1-0 \(rank 2\) was ended by SIGKILL", said)
    assert len(second.said("restart 1 in")) == 1


def test_a_machine_that_dies_is_waited_for_and_replaced_also_by_one_with_more_workers(url: str, tmp_path: Path) -> None:
    with machines(url, tmp_path, 1, 1, options=("--max-restarts", "1")) as (first, second):
        for machine in (first, second):
            machine.wait_for("at step 2")
        second.process.kill()
        # gloo notices that its peer is gone: that is the one restart, wherever it is seen first.
        first.wait_for("waiting for the launchers of 1 of 2 machines (node rank 1)")
        options = ("--nnodes", "2", "--nproc", "2", "--max-restarts", "1")
        with closing(Machine(url, tmp_path, 1, *options)) as replacement:
            (tmp_path / "go").touch()
            assert [first.wait(), replacement.wait()] == [0, 0], first.output + replacement.output
    assert len(set(results(first, replacement))) == 1
    assert len(results(first, replacement)) == 3


def test_a_rank_that_dies_while_the_coordinator_is_away_restarts_all_when_it_is_back(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    with ExitStack() as stack:
        with coordinator.serving():
            first, second = stack.enter_context(machines(coordinator.url, tmp_path, 1, 1))
            (line,) = second.wait_for("start")
            for machine in (first, second):
                machine.wait_for("at step 2")
        os.kill(pid_of(line), signal.SIGKILL)
        second.wait_for("waiting for the coordinator, to agree on what follows")
        (tmp_path / "go").touch()
        with coordinator.serving():
            assert [first.wait(), second.wait()] == [0, 0], first.output + second.output
    assert len(set(results(first, second))) == 1
