"""The examples run as their page says."""

from __future__ import annotations

import difflib
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from strata import CheckpointManager
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch

pytestmark = [pytest.mark.full, pytest.mark.timeout(240), pytest.mark.xdist_group("whole runs")]

EXAMPLES = Path(__file__).parents[3] / "examples"
THREADS = {"OMP_NUM_THREADS": "1"}
# Of the test machine: its own name may lead nowhere.
LOCAL_ADDRESS = "--local-addr=127.0.0.1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, EXAMPLES / "make_data.py", tmp_path], check=True)
    return tmp_path


def run(name: str, folder: Path, *, nproc: int) -> str:
    command = [sys.executable, "-m", "strata", "run", "--standalone", "--nproc", str(nproc), "--max-restarts", "0"]
    done = subprocess.run(
        [*command, str(EXAMPLES / name), str(folder)],
        capture_output=True,
        text=True,
        timeout=stretch(200),
        check=False,
        env={**os.environ, **THREADS},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def torchrun(name: str, folder: Path, *options: str, **environment: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", LOCAL_ADDRESS, *options]
    done = subprocess.run(
        [*command, str(EXAMPLES / name), str(folder)],
        capture_output=True,
        text=True,
        timeout=stretch(200),
        check=False,
        env={**os.environ, **THREADS, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def console_lines(page: str) -> list[str]:
    """Return the commands of a page, in order."""
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [line.strip() for block in blocks for line in block.replace("\\\n", " ").split("$ ") if line.strip()]


@pytest.mark.slow
@pytest.mark.part("torch")
@pytest.mark.part("jax")
@pytest.mark.timeout(600)
def test_the_page_can_be_followed_from_top_to_bottom_and_once_more(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    commands = console_lines((EXAMPLES / "README.md").read_text())
    assert sum("examples/" in command for command in commands) == 10
    programs = {"python": [], "strata": ["-m", "strata"], "torchrun": ["-m", "torch.distributed.run", LOCAL_ADDRESS]}
    environment = {**os.environ, **THREADS}
    with coordinator.serving():
        for command in commands * 2:
            words = shlex.split(command.replace("/tmp/example", str(tmp_path / "example")))
            words = [word.replace("localhost:50051", coordinator.url.removeprefix("http://")) for word in words]
            if words[0] == "export":
                environment |= [words[1].split("=", 1)]
            if not command.endswith("/tmp/example"):
                continue
            settings = list(itertools.takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
            program, *arguments = words[len(settings) :]
            done = subprocess.run(
                [sys.executable, *programs[program], *arguments],
                capture_output=True,
                text=True,
                timeout=stretch(200),
                check=False,
                cwd=EXAMPLES.parent,
                env=environment | dict(word.split("=", 1) for word in settings),
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_first_api(folder: Path) -> None:
    output = run("first_api.py", folder, nproc=3)
    shards = [int(each) for each in re.findall(r"(\d+) shards", output)]
    assert (len(shards), sum(shards)) == (3, 20)
    assert output.count("checkpoints of steps [10, 20, 30, 40]") == 3


@pytest.mark.slow
@pytest.mark.part("jax")
def test_jax(folder: Path) -> None:
    for _ in range(2):
        assert run("jax_train.py", folder, nproc=2).count("of 2: step 100") == 2, "also when it is over already"


@pytest.mark.slow
@pytest.mark.part("torch")
def test_dropout_is_the_same_for_any_number_of_workers(folder: Path, tmp_path: Path) -> None:
    losses = []
    for nproc in (1, 3):
        (tmp_path / str(nproc)).mkdir()
        (tmp_path / str(nproc) / "data").symlink_to(folder / "data")
        losses.append(re.findall(r"step (\d+): loss ([\d.]+)", run("dropout.py", tmp_path / str(nproc), nproc=nproc)))
    assert [int(step) for step, _ in losses[0]] == [*range(1, 31)]
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.part("torch")
def test_lora_writes_little_more_than_its_adapters(folder: Path) -> None:
    sizes = re.findall(r"step (\d+): ([\d.]+) MB", run("lora.py", folder, nproc=2))
    assert [int(step) for step, _ in sizes] == [0, 5, 10, 15, 20]
    assert float(sizes[-1][1]) < float(sizes[1][1]) / 5


@pytest.mark.slow
@pytest.mark.part("torch")
def test_ddp_before_and_after_differ_by_a_few_lines_and_both_run(folder: Path) -> None:
    before, after = ((EXAMPLES / f"ddp_{each}.py").read_text().splitlines() for each in ("before", "after"))
    changes = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert len(changes) <= 12
    # On a busy machine torch itself was seen to abort a process that ends; torchrun then starts the script again.
    assert torchrun("ddp_before.py", folder, "--standalone", "--max-restarts=2").count("loss") >= 2
    coordinator = CoordinatorProcess(folder)
    with coordinator.serving():
        options = ("--nnodes=1", "--rdzv-backend=strata", f"--rdzv-endpoint={coordinator.url}")
        assert torchrun("ddp_after.py", folder, *options, COORDINATOR_URL=coordinator.url).count("loss") == 2
    with CheckpointManager(folder / "ddp") as manager:
        assert manager.list_checkpoints()[-1] == 4 * (2_000 // 32)


@pytest.mark.slow
@pytest.mark.part("torch")
def test_ddp_runs_under_strata_run_and_a_second_start_ends_at_once(folder: Path) -> None:
    for _ in range(2):
        assert run("ddp_after.py", folder, nproc=2).count("step 248") == 2


@pytest.mark.part("torch")
def test_ddp_with_strata_survives_a_killed_worker_and_goes_on_from_its_checkpoint(folder: Path) -> None:
    script = folder / "killed.py"
    # The same script, in which rank 1 kills itself once, in the middle.
    text = (EXAMPLES / "ddp_after.py").read_text()
    killer = (
        "            import os, signal\n"
        "            with open(folder / f'seen-{run.rank}', 'a') as seen:\n"
        "                seen.write(f'{step.number}\\n')\n"
        "            if run.rank == 1 and step.number == 37 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "                os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    script.write_text(
        text.replace("            optimizer.zero_grad()\n", killer + "            optimizer.zero_grad()\n")
    )
    coordinator = CoordinatorProcess(folder)
    with coordinator.serving():
        options = ("--nnodes=1", "--rdzv-backend=strata", f"--rdzv-endpoint={coordinator.url}", "--max-restarts=2")
        torchrun(str(script), folder, *options, COORDINATOR_URL=coordinator.url)
    steps = [int(line) for line in (folder / "seen-1").read_text().split()]
    again = steps[steps.index(37) + 1]
    assert again > 1, "it went on from a checkpoint"
    assert steps == [*range(1, 38), *range(again, 249)]
