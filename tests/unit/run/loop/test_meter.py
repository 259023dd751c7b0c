"""The numbers of a worker's steps, and where rank 0 writes them."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata.cluster.values import RankInfo
from strata.errors import ConfigError
from strata.reported_numbers import MAX_NUMBERS
from strata.run.loop.account import TimeAccount
from strata.run.loop.meter import Meter
from strata.run.metrics_log import open_metrics_log


class Writer:
    """A SummaryWriter that keeps what is written."""

    made: list[Writer]

    def __init__(self, directory: str, *, purge_step: int) -> None:
        self.directory = directory
        self.purge_step = purge_step
        self.rows: list[tuple[str, float, int]] = []
        self.is_closed = False
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.rows.append((name, value, step))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(params=["torch.utils.tensorboard", "tensorboardX"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    """The writers that were made, where only this library is installed."""
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, request.param, SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setattr(Writer, "made", [], raising=False)
    return Writer.made


def make(log_to: str | None = None) -> Meter:
    return Meter(TimeAccount(0.0), log_to=log_to, job_id="j")


def test_tokens_are_counted_by_the_second_as_samples_are() -> None:
    meter = make()
    meter.add(1, step_s=0.5, samples=10, reported={"tokens": 1_000.0, "loss": 2.0})
    assert meter.metrics == {
        "step_s": 0.5, "samples_per_s": 20.0, "tokens": 1_000.0, "loss": 2.0, "tokens_per_s": 2_000.0
    }  # fmt: skip
    meter.add(2, step_s=0.5, samples=20, reported={"tokens": 3_000.0})
    assert meter.metrics["tokens_per_s"] == 4_000.0, "the mean of both"
    meter.add(3, step_s=0.5, samples=20, reported={})
    assert "tokens_per_s" not in meter.metrics


def test_rank_0_writes_each_metric_and_replaces_what_was_written_after_its_step(
    made: list[Writer], tmp_path: Path
) -> None:
    first, second = make(f"tensorboard:{tmp_path}"), make(f"tensorboard:{tmp_path}")
    first.begin(6, rank=0)
    second.begin(6, rank=1)
    (writer,) = made
    assert (writer.directory, writer.purge_step) == (str(tmp_path), 7)
    for meter in (first, second):
        meter.add(7, step_s=0.5, samples=10, reported={"loss": 2.0})
        meter.close()
    assert writer.rows == [("step_s", 0.5, 7), ("samples_per_s", 20.0, 7), ("loss", 2.0, 7)]
    assert writer.is_closed


@pytest.mark.parametrize("target", ["tensorboard", "tensorboard:", "csv:folder", ""])
def test_a_target_that_is_none_is_refused_with_those_there_are(target: str) -> None:
    with pytest.raises(ConfigError, match='"tensorboard:DIRECTORY", "wandb" or "wandb:PROJECT"'):
        open_metrics_log(target, job_id="j", step=0)


@pytest.mark.parametrize(("target", "install"), [("tensorboard:x", "tensorboard torch"), ("wandb", "wandb")])
def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, target: str, install: str) -> None:
    blocked: dict[str, Any] = dict.fromkeys(("torch.utils.tensorboard", "tensorboardX", "wandb"))
    for name, module in blocked.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ConfigError, match=f"pip install {install}"):
        open_metrics_log(target, job_id="j", step=0)


def test_a_token_count_that_is_nan_is_told_and_stays_out_of_the_average() -> None:
    meter = make()
    meter.add(1, step_s=1.0, samples=1, reported={"tokens": 8.0})
    meter.add(2, step_s=1.0, samples=1, reported={"tokens": float("nan")})
    assert math.isnan(meter.metrics["tokens"])
    assert meter.metrics["tokens_per_s"] == 8.0


def test_a_script_may_report_more_than_the_coordinator_is_told(made: list[Writer], tmp_path: Path) -> None:
    meter = make(f"tensorboard:{tmp_path}")
    meter.begin(0, rank=0)
    meter.add(1, step_s=1.0, samples=1, reported={f"m{number}": 1.0 for number in range(200)} | {"x" * 100: 1.0})
    assert len(meter.metrics) == len(made[0].rows) == 203
    rank_info = RankInfo(rank=0, world_size=1, generation=1)
    sent = meter.report(rank_info)["resources"]
    assert len(sent) <= MAX_NUMBERS
    assert {"step_s", "samples_per_s", "m0", "m47"} <= sent.keys()


def test_a_log_that_cannot_be_written_ends_itself_and_not_the_training(
    made: list[Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Writer, "add_scalar", fail)
    meter = make(f"tensorboard:{tmp_path}")
    meter.begin(0, rank=0)
    for step in (1, 2):
        meter.add(step, step_s=1.0, samples=1, reported={"loss": 1.0})
    meter.close()
    assert caplog.text.count("the metrics of step 1 could not be logged") == 1
    assert "step 2" not in caplog.text
