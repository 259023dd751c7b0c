"""Metrics of a run in TensorBoard or Weights & Biases, by one option; both libraries are optional."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from strata.errors import ConfigError, ConfigProblem

EXPECTED = '"tensorboard:DIRECTORY", "wandb" or "wandb:PROJECT"'


class MetricsLog(Protocol):
    """Where rank 0 writes what was reported of its steps."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        ...

    def close(self) -> None:
        """Write what is left, and end."""
        ...


def open_metrics_log(target: str, *, job_id: str, step: int) -> MetricsLog:
    """Open the log that an option names; ``step`` is where the run goes on: what was logged after it is replaced."""
    kind, _, place = target.partition(":")
    if kind == "tensorboard" and place:
        return TensorBoardLog(Path(place), step=step)
    if kind == "wandb":
        return WandbLog(place or job_id, job_id=job_id)
    raise ConfigError([ConfigProblem("log", "option", target, EXPECTED)])


class TensorBoardLog:
    """Event files in a directory, by torch's writer or by tensorboardX."""

    def __init__(self, directory: Path, *, step: int) -> None:
        module = _load("tensorboard:DIRECTORY", "torch.utils.tensorboard", "tensorboardX", install="tensorboard torch")
        self._writer = module.SummaryWriter(str(directory), purge_step=step + 1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write each metric as a scalar."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WandbLog:
    """A run of Weights & Biases; offline, unless WANDB_MODE says otherwise."""

    def __init__(self, project: str, *, job_id: str) -> None:
        wandb = _load("wandb", "wandb", install="wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(project=project, id=job_id, resume="allow", mode=mode)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()


def _load(target: str, *modules: str, install: str) -> Any:
    for name in modules:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError([ConfigProblem("log", "option", target, f"its library to be installed: pip install {install}")])
