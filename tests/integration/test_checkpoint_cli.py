"""``strata ckpt`` as a user meets it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.storage import open_storage

if TYPE_CHECKING:
    from tests.testbed.servers import S3Server

COMMAND = Path(sys.executable).with_name("strata")


def ckpt(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, "ckpt", *map(str, arguments)], capture_output=True, text=True)


def fill(url: str) -> None:
    with CheckpointManager(storage=open_storage(url), delta=True) as manager:
        weights = np.zeros(3_000_000)
        for step in (1, 2, 3):
            weights[0] = step
            manager.save({"model": {"w": weights}, "lr": 0.1}, step, metadata={"loss": 1 / step})


@pytest.fixture
def where(tmp_path: Path) -> Path:
    fill(str(tmp_path / "run"))
    return tmp_path / "run"


def test_ls_and_show_say_what_there_is(where: Path) -> None:
    lines = ckpt("ls", where).stdout.splitlines()
    assert lines[0].split() == ["step", "epoch", "created", "size", "parts", "kind"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3"]
    assert lines[2].endswith("delta of 1")
    listed = json.loads(ckpt("ls", where, "--json").stdout)
    assert [each["metadata"]["loss"] for each in listed["checkpoints"]] == [1, 0.5, 1 / 3]
    shown = ckpt("show", where, 2).stdout
    assert "model.w" in shown
    assert "float64" in shown
    assert json.loads(ckpt("show", where, 2, "--json").stdout)["tensors"]["model.w"]["shape"] == [3_000_000]
    assert len(ckpt("ls", where, "--job", "other").stdout.splitlines()) == 1


def test_verify_finds_damage_and_says_where(where: Path) -> None:
    assert ckpt("verify", where).stdout == "step 1: good\nstep 2: good\nstep 3: good\n"
    part = where / "default/checkpoints/step_2/model-00001-of-00001.delta"
    data = bytearray(part.read_bytes())
    data[5000] ^= 1
    part.write_bytes(data)
    done = ckpt("verify", where)
    assert done.returncode == 1
    assert "step 1: good" in done.stdout
    assert "step 2 is damaged: step_2/model-00001-of-00001.delta, bytes 0 to 4194304, tensor model.w" in done.stdout
    assert json.loads(ckpt("verify", where, 1, "--json").stdout) == [{"step": 1, "good": True, "error": None}]


def test_export_writes_one_file_and_never_over_another_unasked(where: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    done = ckpt("export", where, 3, target)
    assert done.stdout.startswith(f"wrote step 3 to {target} (1 tensors, 22.9 MiB)")
    again = ckpt("export", where, 3, target)
    assert again.returncode == 2
    assert "use --force" in again.stderr
    assert ckpt("export", where, 3, target, "--force").returncode == 0
    data = target.read_bytes()
    assert np.frombuffer(data[-24_000_000:])[0] == 3


def test_pin_prune_and_diff(where: Path) -> None:
    assert ckpt("pin", where, 1, "--reason", "paper").stdout == "step 1 is pinned\n"
    assert "would delete step 2" in ckpt("prune", where, "--keep-count", 1, "--dry-run").stdout
    assert [each["step"] for each in json.loads(ckpt("prune", where, "--keep-count", 1, "--json").stdout)] == [2]
    assert ckpt("prune", where, "--keep-count", 1).stdout == "nothing to delete\n"
    assert "1 of 3000000 elements" in ckpt("diff", where, 1, 3).stdout
    assert json.loads(ckpt("diff", where, 1, 1, "--json").stdout) == []
    assert ckpt("pin", where, 1, "--remove").stdout == "step 1 is left to retention\n"


def test_a_step_is_deleted_when_its_owner_means_it(where: Path) -> None:
    assert ckpt("delete", where, 2).returncode == 1, "nobody said yes"
    assert ckpt("ls", where).stdout.count("\n") == 4
    assert ckpt("delete", where, 2, "--yes").stdout == "deleted step 2\n"
    assert "there is no checkpoint of step 2" in ckpt("delete", where, 2, "--yes").stderr
    ckpt("pin", where, 3)
    assert "step 3 is pinned; unpin it first" in ckpt("delete", where, 3, "--yes").stderr


def test_errors_are_one_line(where: Path) -> None:
    done = ckpt("show", where, 9)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "strata: error: default/checkpoints: there is no checkpoint of step 9; there are 3, 2, 1\n"


def test_a_terminal_sees_progress_and_a_pipe_does_not(where: Path) -> None:
    master, slave = pty.openpty()
    done = subprocess.run([COMMAND, "ckpt", "verify", where], stdout=subprocess.PIPE, stderr=slave, text=True)
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert done.stdout == "step 1: good\nstep 2: good\nstep 3: good\n"
    assert "step 1" in shown
    assert ckpt("verify", where).stderr == ""


@pytest.mark.part("s3")
def test_urls_work_too(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    url = f"s3://{s3_server.bucket}/{tmp_path.name}"
    fill(url)
    assert ckpt("verify", url).stdout == "step 1: good\nstep 2: good\nstep 3: good\n"
    assert ckpt("export", url, 2, tmp_path / "x").returncode == 0
