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

from strata.client.unary import get_key
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import run_program, start

pytestmark = pytest.mark.full

LONG = "import time\nwhile True: time.sleep(0.05)\n"


def command(script: str, tmp_path: Path, *options: str) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(script)
    return [sys.executable, "-m", "strata", "run", *options, str(path)]


def launch(script: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        command(script, tmp_path, "--standalone", *options),
        capture_output=True,
        text=True,
        timeout=stretch(55),
        check=False,
    )


@contextmanager
def launching(script: str, tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with start(
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
    deadline_s = time.monotonic() + stretch(20)
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
    done = run_program(
        [*command(script, tmp_path, "--standalone", "--nproc", "3", "--name", "box", "--job", "j"), "--lr", "1"],
        capture_output=True,
        text=True,
        timeout=stretch(55),
        check=False,
    )
    assert done.returncode == 0
    # On a slow machine it says what it waits for.
    said = [line for line in done.stderr.splitlines() if "waiting for" not in line]
    assert [line.split(" ")[2] for line in said] == ["OMP_NUM_THREADS=1"]
    lines = done.stdout.splitlines()
    for rank in "012":
        assert f"[{rank}] box-{rank} {rank} {rank} 3 j --lr 1" in lines
        assert f"[{rank}] True" in lines
        assert f"[{rank}] no end" in lines
    assert sum(line[4:] == "x" * 200 for line in lines) == 900


@pytest.mark.quick
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


@pytest.mark.quick
def test_ctrl_c_is_one_calm_line_and_no_traceback(tmp_path: Path) -> None:
    with launching(f"import os\nprint('pid', os.getpid())\n{LONG}", tmp_path, "--nproc", "2") as process:
        pids = pids_in(wait_for("pid", process, 2))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=stretch(30))
        assert process.returncode == 130
        assert "Ctrl-C: the workers save and leave" in output
        assert "Traceback" not in output
        assert len([line for line in output.splitlines() if "OMP_NUM_THREADS" not in line]) == 2, output
        wait_gone(pids)


def test_a_worker_that_will_not_end_is_killed_and_a_second_ctrl_c_is_quicker(tmp_path: Path) -> None:
    script = (
        f"import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: print('no'))\nprint('pid', os.getpid())\n{LONG}"
    )
    with launching(script, tmp_path, "--nproc", "2", "--grace", "1000") as process:
        pids = pids_in(wait_for("pid", process, 2))
        process.send_signal(signal.SIGINT)
        wait_for("no", process, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(stretch(30)) == 130
        wait_gone(pids)


def test_sigterm_ends_the_job_with_its_code(tmp_path: Path) -> None:
    with launching(f"import os\nprint('pid', os.getpid())\n{LONG}", tmp_path) as process:
        pids = pids_in(wait_for("pid", process))
        process.terminate()
        assert process.wait(stretch(30)) == 143
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
        assert process.wait(stretch(30)) == 3
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
        assert process.wait(stretch(30)) == 0


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
            start(
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
        outputs = [node.communicate(timeout=stretch(50))[0] for node in nodes]
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
        (["--standalone", "--min", "5", "--nproc", "1", "true"], "--min 5 is more than the 1 workers of --nproc"),
        (["--standalone", "--nnodes", "2", "true"], "--standalone is for one machine, and --nnodes is 2"),
        (
            ["--coordinator", "h:1", "--nnodes", "4", "--nproc", "2", "--max", "4", "true"],
            "5 workers are more than max=4",
        ),
        (["--coordinator", "h:1", "--node-rank", "1", "true"], "below the number of nodes"),
        (["--standalone", "--coordinator", "h:1", "true"], "leave one of the two out"),
        (["--standalone", "--node-rank", "1", "true"], "below the number of nodes"),
        (["--standalone", "--name", "../a", "true"], "the workers cannot be named after '../a'"),
        (["--standalone", "--name", "a\x1b[31m", "true"], r"that contains '\x1b'"),
    ],
)
def test_a_job_that_cannot_be_started_says_why(options: list[str], hint: str, tmp_path: Path) -> None:
    done = run_program(
        [sys.executable, "-m", "strata", "run", *options], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert hint in done.stderr


def test_an_import_error_is_not_tried_again_and_names_the_line_of_the_user(tmp_path: Path) -> None:
    done = launch("def main():\n    import no_such_module\nmain()\n", tmp_path, "--nproc", "1", "--name", "box")
    assert done.returncode == 1
    assert "restart" not in done.stderr
    assert "first cause: box-0 (rank 0) exited with code 1 by ModuleNotFoundError" in done.stderr
    assert "train.py:2 in main: import no_such_module" in done.stderr


def test_a_syntax_error_is_not_tried_again(tmp_path: Path) -> None:
    done = launch("x = 1\ndef f(:\n", tmp_path, "--nproc", "2", "--name", "box")
    assert done.returncode == 1
    assert "restart" not in done.stderr
    assert "failed: SyntaxError does not go away by itself" in done.stderr
    assert "train.py:2" in done.stderr


def test_a_program_that_cannot_be_run_is_started_twice_at_most_and_says_why(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = run_program(
        [sys.executable, "-m", "strata", "run", "--standalone", "--nproc", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=stretch(55),
        check=False,
    )
    assert done.returncode == 127
    assert "Traceback" not in done.stderr
    assert f"cannot run {script}: No such file or directory; check its first line and permissions" in done.stderr
    assert done.stderr.count("restart 1 in") == 1
    assert "restart 2" not in done.stderr


def test_the_same_error_twice_before_any_step_ends_the_job(tmp_path: Path) -> None:
    done = launch("raise ValueError('lr is -1')\n", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("restart 1 in") == 1
    assert "restart 2" not in done.stderr
    assert "ValueError: lr is -1 (at train.py:1" in done.stderr
    told = done.stderr.partition("strata run: failed: ")[2]
    assert "Traceback (most recent call last):" in told, "the first traceback is shown with the reason"


def test_a_second_launcher_of_a_job_is_refused_and_may_take_it_over(tmp_path: Path) -> None:
    with launching(f"import os\nprint('pid', os.getpid())\n{LONG}", tmp_path, "--job", "j", "--name", "box") as first:
        wait_for("pid", first)
        (tmp_path / "second").mkdir()
        done = launch("print('never')", tmp_path / "second", "--job", "j")
        assert done.returncode == 1
        assert re.search(rf"launcher 'box' on \S+, process {first.pid}, since \d{{4}}-", done.stderr), done.stderr
        assert "--takeover" in done.stderr
        done = launch("print('mine')", tmp_path / "second", "--job", "j", "--takeover")
        assert (done.returncode, done.stdout) == (0, "[0] mine\n")
        assert first.wait(stretch(30)) == 143


def test_a_second_launcher_is_refused_at_a_shared_coordinator_too(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)
    options = ("--coordinator", coordinator.url, "--name", "box")
    with coordinator.serving():
        first = start(command(LONG, tmp_path, *options), stdout=subprocess.DEVNULL)
        try:
            deadline_s = time.monotonic() + stretch(30)
            while b"box" not in get_key(coordinator.url, "default", "launcher/box").value:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            (tmp_path / "second").mkdir()
            done = run_program(
                command("print(1)", tmp_path / "second", *options),
                capture_output=True,
                text=True,
                timeout=stretch(50),
                check=False,
            )
            assert done.returncode == 1
            assert f"process {first.pid}" in done.stderr
        finally:
            first.terminate()
            assert first.wait(stretch(30)) == 143


def test_machines_with_different_numbers_of_workers_make_one_job_in_any_order(tmp_path: Path) -> None:
    script = "import os\nprint('I am', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    coordinator = CoordinatorProcess(tmp_path)
    with coordinator.serving():
        nodes = [
            start(
                command(
                    script,
                    tmp_path,
                    *("--coordinator", coordinator.url, "--nproc", str(nproc), "--nnodes", "2"),
                    *("--node-rank", str(node), "--name", f"node{node}"),
                ),
                stdout=subprocess.PIPE,
                text=True,
            )
            for node, nproc in [(1, 1), (0, 3)]
        ]
        outputs = [node.communicate(timeout=stretch(50))[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert outputs[0] == "[3] I am 3 of 4\n"
    assert sorted(outputs[1].splitlines()) == [f"[{rank}] I am {rank} of 4" for rank in range(3)]


def test_all_output_of_a_rank_is_kept_in_the_folder_of_the_job(tmp_path: Path) -> None:
    done = launch("import sys\nprint('out')\nprint('err', file=sys.stderr)\n", tmp_path, "--job", "kept")
    assert done.returncode == 0
    text = (tmp_path / "strata-jobs" / "kept" / "latest" / "logs" / "rank-0.log").read_text()
    assert " out\n" in text
    assert " ! err\n" in text


def test_a_worker_that_dies_when_the_others_have_finished_gets_them_back(tmp_path: Path) -> None:
    script = f"""
import os, signal, time
from pathlib import Path
import strata
with strata.join(checkpoints={str(tmp_path / "c")!r}, save_every="5 steps") as run:
    for step in run.steps({{"x": 1}}, until=5):
        pass
    mark = Path({str(tmp_path / "mark")!r})
    if run.rank == 0 and not mark.exists():
        mark.touch()
        while run.is_current():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    print("exported by", run.rank, flush=True)
"""
    ended = launch(script, tmp_path, "--nproc", "2")
    assert ended.returncode == 0, ended.stderr
    assert "exported by 0" in ended.stdout
    assert "exited with code 0" in ended.stderr
    assert "the others cannot go on without it; restart" in ended.stderr


def test_a_worker_that_leaves_the_loop_alone_again_and_again_ends_the_job(tmp_path: Path) -> None:
    script = f"""
import strata
def train(run):
    for step in run.steps({{"x": 1}}, until=1000):
        with step:
            if run.rank == 0 and step.number == 3:
                return
            run.barrier(f"{{step.number}}")
with strata.join(checkpoints={str(tmp_path / "c")!r}, save_every="100 steps") as run:
    train(run)
"""
    ended = launch(script, tmp_path, "--nproc", "2", "--max-restarts", "1")
    assert ended.returncode == 1, ended.stderr
    assert re.search(r"first cause: \S+-0 \(rank 0\) exited with code 0", ended.stderr)
