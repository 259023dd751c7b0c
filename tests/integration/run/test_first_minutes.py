"""What a new user and the person on call meet first: paths that cannot be used, audits of what is over, a check-up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from strata.demo.samples import make_dataset
from tests.testbed import mounts
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.parts import require_root
from tests.testbed.process import run_program, start

pytestmark = [pytest.mark.full, pytest.mark.timeout(200)]

TRAIN = """
import sys, strata
import numpy as np
with strata.join(checkpoints=sys.argv[1], save_every="5 steps") as run:
    data = run.dataset("data", name="d", order="global", global_batch_size=60)
    for step in run.steps({"x": np.zeros(1)}, data):
        with step:
            if step.number == 3 and len(sys.argv) > 2:
                raise RuntimeError("no luck")
"""


def strata(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "strata", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=stretch(150),
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "data", 600)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_standalone_job_that_is_over_can_be_audited(folder: Path) -> None:
    done = strata(folder, "run", "--standalone", "--job", "j", "--nproc", "2", "train.py", "checkpoints")
    assert done.returncode == 0, done.stderr
    audit = strata(folder, "data", "audit", "j", "d")
    assert (audit.returncode, audit.stdout) == (
        0,
        "epoch 0 of dataset d: each of its 600 samples was seen exactly once\n",
    )


def test_a_module_is_run_as_python_runs_it(folder: Path) -> None:
    done = strata(folder, "run", "--standalone", "--module", "train", "checkpoints")
    assert done.returncode == 0, done.stderr
    assert (folder / "checkpoints" / "default").is_dir()


def test_a_checkpoint_path_that_cannot_be_used_is_named_and_not_tried_again(folder: Path) -> None:
    (folder / "file").touch()
    done = strata(folder, "run", "--standalone", "train.py", "file/checkpoints")
    assert done.returncode == 1
    assert "restart" not in done.stderr
    assert f"{folder}/file is a file" in done.stderr
    before = strata(folder, "run", "--standalone", "train.py", "x", LOCAL_STORAGE_PATH=str(folder / "file"))
    assert before.returncode == 1
    assert "[0]" not in before.stderr, "it is said before any worker starts"
    unkept = strata(folder, "run", "--standalone", "train.py", "x", JOBS_PATH=str(folder / "file"))
    assert unkept.returncode == 1
    assert f"JOBS_PATH='{folder}/file/default' (environment): expected a directory" in unkept.stderr, unkept.stderr


def test_a_crash_is_recorded_as_a_crash_with_its_reason(folder: Path) -> None:
    coordinator = CoordinatorProcess(folder)
    with coordinator.serving():
        address = ("--coordinator", coordinator.url)
        done = strata(folder, "run", *address, "--max-restarts", "0", "train.py", "checkpoints", "crash")
        events = strata(folder, "events", *address).stdout
    assert done.returncode == 1
    assert "RuntimeError: no luck (at train.py:9" in done.stderr
    assert "crashed: RuntimeError: no luck" in events
    assert " finished" not in events


def test_metrics_need_a_library_that_is_named_when_it_is_missing(folder: Path) -> None:
    # As if it were not installed, also where it is.
    (folder / "hidden").mkdir()
    (folder / "hidden" / "wandb.py").write_text("raise ImportError('hidden')\n")
    path = os.pathsep.join([str(folder / "hidden"), os.environ.get("PYTHONPATH", "")])
    done = strata(
        folder, "run", "--standalone", "--log", "wandb", "train.py", "checkpoints", PYTHONPATH=path.rstrip(os.pathsep)
    )
    assert done.returncode == 1
    assert "pip install wandb" in done.stderr
    assert "restart" not in done.stderr
    wrong = strata(folder, "run", "--standalone", "--log", "paper", "train.py", "checkpoints")
    assert "expected tensorboard:DIRECTORY" in wrong.stderr


def test_the_doctor_says_what_to_mend(folder: Path) -> None:
    done = strata(folder, "doctor", "--json", "--coordinator", "127.0.0.1:1")
    findings = {each["name"]: each for each in json.loads(done.stdout)}
    assert done.returncode == 1
    assert findings["storage local"]["level"] == "ok"
    assert findings["disk"]["found"].startswith(str(folder))
    assert "strata coordinator" in findings["coordinator"]["mend"]


def test_the_doctor_is_content_with_a_machine_that_needs_no_coordinator(folder: Path) -> None:
    done = strata(folder, "doctor")
    assert done.returncode == 0, done.stdout
    assert "keeps put-if-absent" in done.stdout


def test_the_doctor_says_that_a_folder_may_not_be_written(folder: Path) -> None:
    require_root()
    with mounts.tmpfs(folder / "small", size_bytes=1 << 20) as small:
        mounts.remount_read_only(small)
        done = strata(folder, "doctor", "--json", "--path", str(small / "checkpoints"))
    findings = {each["name"]: each for each in json.loads(done.stdout)}
    assert done.returncode == 1
    assert (findings["disk"]["level"], findings["disk"]["found"]) == ("problem", f"{small} may not be written")
    assert findings["disk"]["mend"] == "choose another LOCAL_STORAGE_PATH"
    assert "O_DIRECT" not in findings, "there is nothing to measure"


SLOW = """
import sys, time, strata
import numpy as np
state = {"x": np.zeros(1)}
with strata.join(checkpoints="checkpoints", save_every="1000 steps") as run:
    for step in run.steps(state, until=100_000):
        with step:
            state["x"] += 1
            time.sleep(0.02)
            if step.number == 20:
                print("ready", flush=True)
print("exported")
"""


def test_a_file_system_that_is_read_only_is_said_to_be(folder: Path) -> None:
    require_root()
    with mounts.tmpfs(folder / "small", size_bytes=1 << 20) as small:
        mounts.remount_read_only(small)
        done = strata(folder, "run", "--standalone", "train.py", JOBS_PATH=str(small))
    assert done.returncode == 1
    assert "is on a file system that is read-only" in done.stderr


def test_a_disk_that_is_full_at_the_first_save_ends_the_job_with_that_cause(folder: Path) -> None:
    require_root()
    with mounts.ext4(folder / "small", size_bytes=8 << 20) as small:
        (small / "filler").write_bytes(bytes(4 << 20))
        script = TRAIN.replace("np.zeros(1)", "np.zeros(1 << 20)")
        assert script != TRAIN
        (folder / "large.py").write_text(script)
        done = strata(folder, "run", "--standalone", "--nproc", "2", "large.py", "small/checkpoints")
    assert done.returncode == 1
    assert re.search(r"failed: the same error came twice.*\n  first cause: .*No space left on device", done.stderr)


def test_a_job_that_is_preempted_saves_its_last_step_and_does_not_look_finished(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "strata", "run", "--standalone", "--nproc", "2", "slow.py"]
    with start(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        process.terminate()
        output, errors = process.communicate(timeout=stretch(100))
    assert process.returncode == 143, errors
    assert "exported" not in output
    saved = int(re.findall(r"the job is saved up to step (\d+)", errors)[0])
    assert saved >= 20
    assert sorted(re.findall(r"\[(\d)\] .* stopped by SIGTERM after step (\d+), which is saved", errors)) == [
        ("0", str(saved)),
        ("1", str(saved)),
    ], errors
