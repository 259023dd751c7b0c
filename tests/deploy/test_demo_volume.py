"""What the containers of the demonstration run: it proves what was trained on their volume, and says what was not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.demo import volume
from strata.errors import ConfigError, CoordinatorLostError
from strata.wire._generated import coordinator_pb2 as pb
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import run_program

pytestmark = pytest.mark.full

ROWS, STEPS = 320, 5


@pytest.fixture
def _served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    coordinator = CoordinatorProcess(tmp_path)
    monkeypatch.setenv("COORDINATOR_URL", coordinator.url)
    monkeypatch.setenv("JOB_ID", "shared")
    monkeypatch.setattr(volume, "ROWS", ROWS)
    with coordinator.serving():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder on the volume, which is there when the first container starts."""
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["volume", *map(str, arguments)])
    return volume.main()


@pytest.mark.usefixtures("_served")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_worker_trained_is_proved_and_a_sample_that_nobody_saw_fails_the_proof(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], elsewhere: bool
) -> None:
    where = [folder / "elsewhere"] if elsewhere else []
    assert call(monkeypatch, "train", folder, 1, 0, *where) == 0
    assert (folder / "elsewhere" / "shared").is_dir() is elsewhere
    assert (folder / "checkpoints").is_dir() is not elsewhere
    capsys.readouterr()

    assert call(monkeypatch, "prove", folder, 2, *where) == volume.TRAINS_STILL
    unfinished = f"job shared is saved up to step {STEPS} of {2 * STEPS}: prove it when it is finished\n"
    assert capsys.readouterr() == ("", unfinished)

    assert call(monkeypatch, "prove", folder, 1, *where) == 0
    proofs = capsys.readouterr().out.splitlines()
    assert proofs[0] == "ok     epoch 0: every sample was seen exactly once (320 samples, 0 missing, 0 repeated)"
    assert [line.split()[0] for line in proofs] == ["ok"] * 4

    for seen in (folder / "seen").iterdir():
        seen.write_bytes(b"")
    assert call(monkeypatch, "prove", folder, 1, *where) == volume.FAILED
    proofs = capsys.readouterr().out.splitlines()
    assert proofs[0] == "FAILED epoch 0: every sample was seen exactly once (320 samples, 320 missing, 0 repeated)"
    assert [line.split()[0] for line in proofs[1:]] == ["ok"] * 3


def test_an_audit_is_asked_for_again_while_the_coordinator_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[pb.DataAudit | Exception] = [CoordinatorLostError("c:50051", waited_s=0.0), pb.DataAudit()]

    def ask(*_: object, **__: object) -> pb.DataAudit:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(volume, "ask_audit", ask)
    monkeypatch.setattr(volume, "PAUSES_S", (0.0, 0.0))
    assert volume._audit("c:50051", "shared", 0) == pb.DataAudit()
    answers[:] = [CoordinatorLostError("c:50051", waited_s=float(attempt)) for attempt in range(3)]
    with pytest.raises(CoordinatorLostError, match="has not answered for 2 s"):
        volume._audit("c:50051", "shared", 0)


def test_a_job_without_a_checkpoint_is_not_proved(folder: Path) -> None:
    command = [sys.executable, "-m", "strata.demo.volume", "prove", folder, "1"]
    environment = {**os.environ, "COORDINATOR_URL": "127.0.0.1:1", "JOB_ID": "shared"}
    done = run_program(command, env=environment, capture_output=True, text=True, timeout=stretch(60))
    assert (done.returncode, done.stdout) == (volume.TRAINS_STILL, "")
    assert done.stderr == "job shared has no checkpoint yet: prove it when it is finished\n"


def test_nothing_is_proved_without_the_address_of_a_coordinator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"COORDINATOR_URL.*expected the address of the coordinator"):
        call(monkeypatch, "prove", folder, 1)


def test_an_unknown_action_shows_what_there_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"python -m strata\.demo\.volume train FOLDER EPOCHS PACE_S"):
        call(monkeypatch, "improve", folder, 1)
