"""Errors of a job as its training loop sees it."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

from strata.errors.base import Recovery, with_fields
from strata.errors.cluster import ClusterError


@with_fields
class WorldSizeError(ClusterError):
    """A worker was started with another number of workers than its job needs."""

    job_id: str
    _: KW_ONLY
    given: int
    needed: int

    template = (
        "this worker was started with WORLD_SIZE={given}, but job {job_id!r} needs {needed} workers to run; start "
        "all workers with the same WORLD_SIZE, or lower the job's minimum"
    )


@with_fields
class DatasetChangedError(ClusterError):
    """A dataset is not the one that the job began with."""

    dataset_id: str
    _: KW_ONLY
    url: str

    template = (
        "the files of dataset {dataset_id!r} ({url}) have changed since this job began, so its data position "
        "is not valid for them; restore the old files, or use another job id or dataset name"
    )


@with_fields
class DatasetOptionsError(ClusterError):
    """Two workers of a job have opened a dataset with different options, so samples would be lost and repeated.

    With ``is_earlier_run`` the first one is gone: it opened the dataset in an earlier run of the job.
    """

    dataset_id: str
    option: str
    _: KW_ONLY
    job_id: str
    worker_id: str
    given: Any
    first: str
    registered: Any
    is_earlier_run: bool = False
    opened: str = ""

    def message(self) -> str:
        """Return which option differs, who opened the dataset with which value, and how to go on."""
        here = f"dataset {self.dataset_id!r}: worker {self.worker_id!r} has {self.option}={self.given!r}"
        if self.is_earlier_run:
            when = self.opened and f", {self.opened}"
            return (
                f"{here}, but an earlier run of job {self.job_id!r} (worker {self.first!r}{when}) opened it with "
                f"{self.option}={self.registered!r}; use the same options to continue that run, choose another job id "
                "(JOB_ID, strata run --job) or dataset name, or make the coordinator forget that run with "
                f"'strata job rm {self.job_id}'"
            )
        return (
            f"{here} and worker {self.first!r}, which opened it first in job {self.job_id!r}, has "
            f"{self.option}={self.registered!r}; open it with the same options on all workers, or under another name "
            "or job id to use other options"
        )


@with_fields
class Reconfigure(ClusterError):  # noqa: N818 - it is news, and no failure
    """The membership of the job changed: what was done since the last checkpoint is discarded; restore and go on."""

    generation: int
    reason: str

    recovery = Recovery.REJOIN

    def message(self) -> str:
        """Return which generation is over, and why if that is known."""
        return (
            f"generation {self.generation} is over: {self.reason or 'the membership changed'}; call run.restore(state) "
            "and continue, or use the loop of run.steps(state), which does both"
        )


@with_fields
class GroupRestart(Reconfigure, SystemExit):
    """The membership changed in a loop with ``recover=False``: the process ends, and all workers start again.

    As a SystemExit it ends the process with code 86 and without a traceback, if the script does not catch it.
    """

    code = 86

    def message(self) -> str:
        """Return which generation is over, and what happens next."""
        return (
            f"generation {self.generation} is over: {self.reason or 'the membership changed'}; this process ends as "
            f"intended (recover=False, exit code {self.code}), and its launcher starts all workers again from the last "
            "checkpoint"
        )
