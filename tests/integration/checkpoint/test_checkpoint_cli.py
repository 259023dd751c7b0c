"""``strata ckpt`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, SavePolicy
from strata.cli.app import main
from strata.cli.checkpoints.arguments import show_size
from strata.storage import open_storage
from tests.testbed.process import run_program
from tests.testbed.terminal import Terminal

if TYPE_CHECKING:
    from tests.testbed.servers import S3Server

COMMAND = Path(sys.executable).with_name("strata")


def ckpt(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_program([COMMAND, "ckpt", *map(str, arguments)], capture_output=True, text=True)


def fill(url: str) -> None:
    with CheckpointManager(storage=open_storage(url), saving=SavePolicy(delta=True)) as manager:
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
    (good,) = json.loads(ckpt("verify", where, 1, "--json").stdout)
    assert good == {"step": 1, "good": True, "error": None, "diverged": None}


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


def test_a_pin_of_a_step_that_does_not_exist_is_neither_set_nor_removed(where: Path, tmp_path: Path) -> None:
    for place in (where, tmp_path / "nowhere"):
        for options in ([], ["--remove"]):
            done = ckpt("pin", place, 9, *options)
            assert (done.returncode, done.stdout) == (1, "")
            assert "there is no checkpoint of step 9" in done.stderr
    assert not (tmp_path / "nowhere").exists()
    ckpt("pin", where, 3)
    (where / "default/checkpoints/step_3/metadata.json").write_bytes(b"damaged")
    assert ckpt("pin", where, 3, "--remove").stdout == "step 3 is left to retention\n"
    assert ckpt("delete", where, 3, "--yes").returncode == 0


def test_errors_are_one_line(where: Path) -> None:
    done = ckpt("show", where, 9)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "strata: error: default/checkpoints: there is no checkpoint of step 9; there are 3, 2, 1\n"


def test_a_terminal_sees_progress_and_a_pipe_does_not(where: Path) -> None:
    with Terminal() as terminal:
        done = run_program([COMMAND, "ckpt", "verify", where], stdout=subprocess.PIPE, stderr=terminal.fd, text=True)
    assert done.stdout == "step 1: good\nstep 2: good\nstep 3: good\n"
    assert "step 1" in terminal.shown
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


@pytest.mark.parametrize("command", [("ls",), ("verify",), ("verify", "--deep"), ("prune",), ("prune", "--dry-run")])
def test_a_path_or_job_that_does_not_exist_is_an_error_with_words(
    where: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    name, *options = command
    for as_json in ([], ["--json"]):
        done = ckpt(name, tmp_path / "nowhere", *options, *as_json)
        assert (done.returncode, done.stdout) == (1, "")
        assert "there is nothing at this path" in done.stderr
        done = ckpt(name, where, "--job", "other", *options, *as_json)
        assert (done.returncode, done.stdout) == (1, "")
        assert "there is no job 'other'; choose with --job: default" in done.stderr
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").write_bytes(b"")
    assert (
        "it is a file, or below one, and a storage needs a directory" in ckpt(name, tmp_path / "file", *options).stderr
    )


def test_export_into_a_missing_folder_and_delete_of_a_pinned_step_say_what_to_do(where: Path, tmp_path: Path) -> None:
    done = ckpt("export", where, 3, tmp_path / "no" / "x.safetensors")
    assert done.returncode == 2
    assert f"the folder {tmp_path / 'no'} does not exist; make it first" in done.stderr
    ckpt("pin", where, 3)
    done = ckpt("delete", where, 3, "--yes")
    assert done.returncode == 1
    assert "internal error" not in done.stderr
    assert "step 3 is pinned; unpin it first" in done.stderr


def test_verify_deep_counts_what_is_not_finite(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.array([1.0, np.nan, np.inf]), "n": np.arange(3), "c": np.ones(2, np.complex64)}, 1)
    (found,) = json.loads(ckpt("verify", tmp_path, "--deep", "--json").stdout)
    good = {"step": 1, "good": True, "error": None, "diverged": None}
    assert found == {**good, "tensors": 3, "nonfinite": {"w": 2}, "unread": []}
    assert "w has 2 elements that are NaN or infinite" in ckpt("verify", tmp_path, 1, "--deep").stdout


def test_verify_deep_looks_into_narrow_types_too(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.array([1.0, np.nan], ml_dtypes.float8_e4m3fn), "f": np.ones(2, ml_dtypes.bfloat16)}, 1)
    assert "w has 1 elements that are NaN or infinite" in ckpt("verify", tmp_path, 1, "--deep").stdout


@pytest.mark.full
def test_verify_deep_names_what_it_cannot_read_without_a_library(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save({"w": np.ones(2, ml_dtypes.float8_e4m3fn), "x": np.ones(2)}, 1)
    # As if it were not installed, also where it is.
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "ml_dtypes.py").write_text("raise ImportError('hidden')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "hidden")}
    command = [COMMAND, "ckpt", "verify", tmp_path / "run", "--deep"]
    done = run_program(command, env=environment, capture_output=True, text=True)
    assert done.stdout == (
        "step 1: good, 2 tensors, all finite, but for w: install ml_dtypes to look for NaN in them\n"
    )
    assert done.returncode == 0, "what is not looked into is not damaged"


def test_ls_says_which_checkpoints_a_rewind_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save({"w": np.full(2, step)}, step)
        manager.rewind(1)
    with pytest.raises(SystemExit):
        main(["ckpt", "ls", str(tmp_path)])
    kept, aside = (line.rstrip() for line in capsys.readouterr().out.splitlines()[1:])
    assert (kept.split()[0], aside.split()[0]) == ("1", "2")
    assert kept.endswith(" full")
    assert aside.endswith(" full, set aside by rewind 1")


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 40, "1.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes_are_shown_in_the_largest_unit_that_fits(size_bytes: int, shown: str) -> None:
    assert show_size(size_bytes) == shown


def test_diff_says_what_became_nan(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.ones(4), "c": np.ones(2, np.complex64)}, 1)
        manager.save({"w": np.array([1.0, np.nan, np.inf, 1.5]), "c": np.array([1, complex(0, np.nan)], "c8")}, 2)
    found = {each["name"]: each for each in json.loads(ckpt("diff", tmp_path, 1, 2, "--json").stdout)}
    assert found["w"]["detail"] == "3 of 4 elements, 2 of them NaN or infinite"
    assert found["w"]["max_abs"] == 0.5
    assert found["c"]["detail"] == "1 of 2 elements, 1 of them NaN or infinite"


def test_diff_says_by_how_much(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.array([1.0, 2.0, 3.0]), "same": np.ones(3), "lr": 0.1, "old": 1}, 1)
        manager.save({"w": np.array([1.0, 2.0, -3.5]), "same": np.ones(3), "lr": 0.2, "new": 1}, 2)
    found = {each["name"]: each for each in json.loads(ckpt("diff", tmp_path, 1, 2, "--json").stdout)}
    assert sorted(found) == ["lr", "new", "old", "w"]
    assert (found["w"]["max_abs"], found["w"]["changed"], found["w"]["elements"]) == (6.5, 1, 3)
    cosine = (1 + 4 - 10.5) / (14**0.5 * (5 + 3.5**2) ** 0.5)
    assert found["w"]["cosine"] == pytest.approx(cosine)
    assert found["lr"]["detail"] == "0.1 -> 0.2"
    shown = ckpt("diff", tmp_path, 1, 2).stdout
    assert "max abs" in shown
    assert "6.5" in shown


@pytest.mark.parametrize(
    ("left", "right"), [([1], (1,)), ({}, None), ({1: 2}, {"1": 2}), ({"a": {}}, {}), ([], ()), (bytearray(b"x"), b"x")]
)
def test_diff_says_that_kinds_differ_although_all_values_are_the_same(tmp_path: Path, left: Any, right: Any) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.ones(2), "x": left}, 1)
    # Another manager, which does not warn that no tensor changed since the last save.
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.ones(2), "x": right}, 3)
    done = ckpt("diff", tmp_path, 1, 3)
    assert done.returncode == 0
    assert "hold the same state" not in done.stdout
    assert "same state" in ckpt("diff", tmp_path, 1, 1).stdout


def test_ls_goes_on_beside_a_manifest_that_cannot_be_read(where: Path) -> None:
    (where / "default/checkpoints/step_2/metadata.json").write_bytes(b"[" * 100_000)
    done = ckpt("ls", where)
    assert done.returncode == 0
    assert "step 2 is damaged" in " ".join(done.stdout.split())
    assert json.loads(ckpt("ls", where, "--json").stdout)["unreadable"][0]["step"] == 2
    assert ckpt("delete", where, 2, "--yes").returncode == 0


def test_metadata_with_nan_is_shown_as_json_that_every_reader_takes(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.ones(2)}, 1, metadata={"loss": float("nan"), "norms": [float("inf"), 1.0]})
    for arguments in (["ls", str(tmp_path)], ["show", str(tmp_path), "1"]):
        found = json.loads(ckpt(*arguments, "--json").stdout, parse_constant=pytest.fail)
        shown = found["checkpoints"][0] if "checkpoints" in found else found
        assert shown["metadata"] == {"loss": "nan", "norms": ["inf", 1.0]}
