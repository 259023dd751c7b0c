"""The launcher as a program, with real workers and real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.testbed.coordinator import CoordinatorProcess

LONG = "import time\nwhile True: time.sleep(0.05)\n"


def command(script: str, tmp_path: Path, *options: str) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(script)
    return [sys.executable, "-m", "strata", "run", *options, str(path)]


def launch(script: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(script, tmp_path, "--standalone", *options), capture_output=True, text=True, timeout=55, check=False
    )


@contextmanager
def launching(script: str, tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(script, tmp_path, "--standalone", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(what: str, process: subprocess.Popen[str], times: int = 1) -> list[str]:
    """Read until so many lines say it; return them."""
    assert process.stdout is not None
    found: list[str] = []
    for line in process.stdout:
        found += [line] if what in line else []
        if len(found) == times:
            return found
    raise AssertionError(f"it never said {what!r}")


def pids_in(lines: list[str]) -> list[int]:
    return [int(re.findall(r"\d+", line)[-1]) for line in lines]


def wait_gone(pids: list[int]) -> None:
    deadline_s = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline_s, f"{pids} live on"
        time.sleep(0.02)


def test_workers_know_who_they_are_and_their_lines_stay_whole(tmp_path: Path) -> None:
    script = """
import os, sys
names = ("WORKER_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "JOB_ID")
print(*(os.environ[name] for name in names), *sys.argv[1:])
print(os.environ["COORDINATOR_URL"].startswith("http://127.0.0.1:"))
for i in range(300):
    print("x" * 200)
sys.stdout.write("no end")
"""
    done = subprocess.run(
        [*command(script, tmp_path, "--standalone", "--nproc", "3", "--name", "box", "--job", "j"), "--lr", "1"],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for rank in "012":
        assert f"[{rank}] box-{rank} {rank} {rank} 3 j --lr 1" in lines
        assert f"[{rank}] True" in lines
        assert f"[{rank}] no end" in lines
    assert sum(line[4:] == "x" * 200 for line in lines) == 900


def test_a_dead_worker_is_restarted_until_it_ends_well(tmp_path: Path) -> None:
    script = f"""
import os, pathlib, signal
lives = pathlib.Path({str(tmp_path)!r}) / ("lives" + os.environ["RANK"])
count = int(lives.read_text()) if lives.exists() else 0
lives.write_text(str(count + 1))
if os.environ["RANK"] == "1" and count < 2:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = launch(script, tmp_path, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "lives1").read_text() == "3"
    assert "was ended by SIGKILL" in done.stderr


def test_giving_up_names_the_first_cause_and_returns_its_code(tmp_path: Path) -> None:
    script = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("first I said this", file=sys.stderr)
    raise SystemExit(7)
time.sleep(60)
"""
    done = launch(script, tmp_path, "--nproc", "2", "--max-restarts", "0", "--name", "box")
    assert done.returncode == 7
    assert re.search(r"first cause: box-1 \(rank 1\) exited with code 7", done.stderr)
    assert "    first I said this" in done.stderr


def test_with_a_minimum_the_job_goes_on_without_those_who_cannot_be_kept(tmp_path: Path) -> None:
    script = "import os, time\nif os.environ['RANK'] == '2': raise SystemExit(1)\ntime.sleep(2)\n"
    done = launch(script, tmp_path, "--nproc", "3", "--min", "2", "--max-restarts", "0")
    assert done.returncode == 0
    assert "goes on with 2 workers" in done.stderr


def test_ctrl_c_reaches_the_workers_who_may_end_in_their_own_way(tmp_path: Path) -> None:
    script = (
        "import os, time\ntry:\n    print('pid', os.getpid())\n    while True: time.sleep(0.05)\n"
        "except KeyboardInterrupt:\n    print('saved and left')\n"
    )
    with launching(script, tmp_path, "--nproc", "2") as process:
        pids = pids_in(wait_for("pid", process, 2))
        process.send_signal(signal.SIGINT)
        wait_for("saved and left", process, 2)
        assert process.wait(30) == 130
        wait_gone(pids)


def test_a_worker_that_will_not_end_is_ended_and_a_second_ctrl_c_is_quicker(tmp_path: Path) -> None:
    script = (
        "import os, signal\nfor s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, lambda *_: print('no'))\n"
        f"print('pid', os.getpid())\n{LONG}"
    )
    with launching(script, tmp_path, "--nproc", "2", "--grace", "1000") as process:
        pids = pids_in(wait_for("pid", process, 2))
        process.send_signal(signal.SIGINT)
        wait_for("no", process, 2)
        process.send_signal(signal.SIGINT)
        wait_for("no", process, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        wait_gone(pids)


def test_sigterm_ends_the_job_with_its_code(tmp_path: Path) -> None:
    with launching(f"import os\nprint('pid', os.getpid())\n{LONG}", tmp_path) as process:
        pids = pids_in(wait_for("pid", process))
        process.terminate()
        assert process.wait(30) == 143
        wait_gone(pids)


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with launching(f"import os\nprint('pid', os.getpid(), os.getppid())\n{LONG}", tmp_path, "--nproc", "2") as process:
        wait_for("pid", process, 2)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(children) == 3, "two workers and a coordinator"
        process.kill()
        process.wait()
        wait_gone(children)


def test_what_a_dead_worker_started_dies_with_it(tmp_path: Path) -> None:
    script = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("pid", child.pid)
raise SystemExit(3)
"""
    with launching(script, tmp_path, "--max-restarts", "0") as process:
        pids = pids_in(wait_for("pid", process))
        assert process.wait(30) == 3
        wait_gone(pids)


def test_a_standalone_coordinator_that_dies_comes_back_where_it_was(tmp_path: Path) -> None:
    script = """
import os, sys, time, pathlib
from strata.client.client import Client
with Client(os.environ["COORDINATOR_URL"], os.environ["WORKER_ID"]) as client:
    client.wait_registered()
    print("joined")
    while not (pathlib.Path(sys.argv[0]).parent / "go").exists():
        time.sleep(0.05)
    client.heartbeat(timeout_s=30)
    print("heard again")
"""
    with launching(script, tmp_path) as process:
        wait_for("joined", process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        coordinator = next(int(pid) for pid in children if b"coordinator" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(coordinator, signal.SIGKILL)
        (tmp_path / "go").touch()
        wait_for("heard again", process)
        assert process.wait(30) == 0


def test_launchers_of_two_machines_make_one_job(tmp_path: Path) -> None:
    script = """
import os
from strata.client.client import Client
with Client(os.environ["COORDINATOR_URL"], os.environ["WORKER_ID"], preferred_rank=int(os.environ["RANK"])) as client:
    client.wait_registered()
    while (heard := client.heartbeat()).waits_for:
        pass
    client.meet("all", expected=4)
    print("met", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        nodes = [
            subprocess.Popen(
                command(
                    script,
                    tmp_path,
                    *("--coordinator", coordinator.url, "--nproc", "2", "--nnodes", "2"),
                    *("--node-rank", str(node), "--name", f"node{node}"),
                ),
                stdout=subprocess.PIPE,
                text=True,
            )
            for node in range(2)
        ]
        outputs = [node.communicate(timeout=50)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    for rank in range(4):
        assert f"[{rank}] met {rank} of 4\n" in outputs[rank // 2]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--nproc", "2", "train.py"], "--standalone"),
        (["--standalone", "nowhere.py"], "there is no script"),
        (["--standalone", "no-such-program"], "there is no program"),
        (["--standalone", "--nproc", "4", "--max", "2", "true"], "more than max=2"),
        (["--standalone", "--min", "3", "--max", "2", "true"], "use 1 <= min <= max"),
        (["--standalone", "--coordinator", "h:1", "true"], "leave one of the two out"),
        (["--standalone", "--node-rank", "1", "true"], "below the number of nodes"),
    ],
)
def test_a_job_that_cannot_be_started_says_why(options: list[str], hint: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strata", "run", *options], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert hint in done.stderr
