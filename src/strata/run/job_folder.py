"""The folder of a job on this machine: logs, stacks, and the journal of a standalone coordinator.

{jobs_path}/{job}/launcher.lock                 held by the launcher of a standalone job
{jobs_path}/{job}/latest -> runs/...            the newest run
{jobs_path}/{job}/runs/{time}-{pid}/logs/       one file a rank, rotated
{jobs_path}/{job}/runs/{time}-{pid}/stacks/     what workers did that stood still
{jobs_path}/{job}/runs/{time}-{pid}/journal.db  of a standalone job; ``strata data audit`` reads it
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from strata.cluster.events import Cause
from strata.config import Settings

KEPT_RUNS = 10


# What a worker that was told to stop writes into the note of its life.
STOPPED = "stopped"
# What one writes whose loop over its steps is over, and one that has left its loop.
FINISHED, LEFT = "finished", "left"


class RestartUnit(StrEnum):
    """What is started again when a worker dies."""

    WORKER = "worker"
    """That worker alone: the others recover within their processes, in the loop of ``run.steps``."""
    GROUP = "group"
    """All workers: none of them can go on without the others, as with a process group of torch."""


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of one run of a job."""

    path: Path

    @property
    def logs(self) -> Path:
        """Where the output of the workers is."""
        return self.path / "logs"

    @property
    def stacks(self) -> Path:
        """Where the stacks of workers are that stood still."""
        return self.path / "stacks"

    @property
    def lives(self) -> Path:
        """Where workers note what the launcher asks about their present life."""
        return self.path / "lives"

    def note_first_step(self, *, worker_id: str) -> None:
        """Let the launcher know that this process has done a step: what fails later is no bad beginning."""
        if self.lives.is_dir():
            (self.lives / worker_id).touch()

    def note_stop(self, *, worker_id: str) -> None:
        """Let the launcher know that the training was stopped before its end, whatever code the script ends with."""
        if self.lives.is_dir():
            (self.lives / worker_id).write_text(STOPPED)

    def discard_stop(self, *, worker_id: str) -> None:
        """Let the launcher take the exit code of the script as it is."""
        if self.lives.is_dir():
            (self.lives / worker_id).write_text("")

    def note_restart_unit(self, unit: RestartUnit, *, worker_id: str) -> None:
        """Let the launcher know what it must start again when a worker of this script dies."""
        if self.lives.is_dir():
            self._restart_unit_file(worker_id).write_text(unit)

    def read_restart_unit(self, *, worker_id: str) -> RestartUnit | None:
        """Return what the process that runs as this worker noted; None if it is not a script of Strata, or not yet."""
        try:
            return RestartUnit(self._restart_unit_file(worker_id).read_text())
        except (OSError, ValueError):
            return None

    def discard_restart_unit(self, *, worker_id: str) -> None:
        """Forget what an earlier process of this worker noted."""
        self._restart_unit_file(worker_id).unlink(missing_ok=True)

    def _restart_unit_file(self, worker_id: str) -> Path:
        return self.lives / f"{worker_id}.restart-unit"

    def note_membership(self, incarnation: str, *, worker_id: str) -> None:
        """Let the launcher know as whom this process is in the job, to say goodbye for it if it is killed."""
        if self.lives.is_dir():
            self._membership_file(worker_id).write_text(incarnation)

    def read_membership(self, *, worker_id: str) -> str | None:
        """Return the incarnation of a process that is in the job; None if it has left, or never was."""
        try:
            return self._membership_file(worker_id).read_text() or None
        except OSError:
            return None

    def discard_membership(self, *, worker_id: str) -> None:
        """Forget it: the process has said goodbye itself, or another one starts in its place."""
        self._membership_file(worker_id).unlink(missing_ok=True)

    def _membership_file(self, worker_id: str) -> Path:
        return self.lives / f"{worker_id}.incarnation"

    @property
    def finished(self) -> Path:
        """Where workers note that their training loop is over in their present life."""
        return self.path / "finished"

    def note_over(self, *, worker_id: str, is_finished: bool) -> None:
        """Let the launcher know that the training is over, whatever this process still does.

        Without ``is_finished`` the script has left its loop, which counts unless the launcher told it to stop before.
        """
        if self.finished.is_dir():
            (self.finished / worker_id).write_text(FINISHED if is_finished else LEFT)

    def discard_over(self, *, worker_id: str) -> None:
        """Let the launcher know that the training goes on in another loop."""
        (self.finished / worker_id).unlink(missing_ok=True)

    def note_why_ended(self, cause: Cause, reason: str) -> None:
        """Let workers know why their launcher is about to end them, so that they say so when they leave the job."""
        if self.lives.is_dir():
            fresh = self._why_ended_file.with_suffix(".new")
            fresh.write_text(f"{cause}\n{reason}")
            fresh.replace(self._why_ended_file)

    def read_why_ended(self) -> tuple[Cause, str] | None:
        """Return what the launcher noted; None if it has passed a signal on whose sender alone knows why."""
        try:
            cause, _, reason = self._why_ended_file.read_text().partition("\n")
            return Cause(cause), reason
        except (OSError, ValueError):
            return None

    @property
    def _why_ended_file(self) -> Path:
        return self.path / "why-ended"

    @property
    def journal(self) -> Path:
        """The journal of a standalone coordinator."""
        return self.path / "journal.db"


def home_of(settings: Settings) -> Path:
    """Return where all runs of the job are on this machine."""
    return settings.jobs_path.expanduser() / settings.job_id


def find_folder(settings: Settings) -> JobFolder:
    """Return the folder that the launcher made, or without one that of the job; it may not exist yet."""
    return JobFolder(home_of(settings) if settings.job_folder is None else settings.job_folder)


def find_latest(settings: Settings) -> JobFolder | None:
    """Return the folder of the newest run that a launcher began on this machine, if there is one."""
    latest = home_of(settings) / "latest"
    return JobFolder(latest.resolve()) if latest.is_dir() else None


def make_folder(home: Path) -> JobFolder:
    """Make the folder of a new run in the home of its job, and delete those of old ones."""
    path = home / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    # For their owner alone: it holds the journal, and the token of a standalone coordinator.
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in ("logs", "stacks", "lives", "finished"):
        (path / each).mkdir(parents=True, exist_ok=True)
    fresh = home / f"latest-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(path.relative_to(home))
    fresh.replace(home / "latest")
    for old in sorted((home / "runs").iterdir(), key=lambda each: each.name)[:-KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    return JobFolder(path)
