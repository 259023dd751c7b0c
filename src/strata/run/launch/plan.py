"""What one launcher is to start, and the machines that it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strata import ids
from strata.errors import ClusterError
from strata.run.launch.restart_policy import RestartPolicy


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """What one launcher starts. Ranks are those that the workers ask for; the coordinator's word counts."""

    command: tuple[str, ...]
    nproc: int
    name: str
    """What the names of the workers begin with; it must be another one on each machine."""
    job_id: str = "default"
    coordinator_url: str | None = None
    """None: the launcher brings a coordinator of its own."""
    nnodes: int = 1
    node_rank: int = 0
    min_workers: int | None = None
    max_workers: int | None = None
    grace_s: float = 30.0
    """How long the workers have after Ctrl-C or SIGTERM before they are killed."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    home: Path = Path("strata-jobs")
    """Where the runs of the job keep their folders on this machine."""
    takeover: bool = False
    """Take the job from a launcher that runs it already."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the workers get beside what the launcher says."""

    def __post_init__(self) -> None:
        problem = ids.find_problem(f"{self.name}-{self.nproc - 1}")
        if problem is not None:
            raise ValueError(
                f"the workers cannot be named after {self.name!r}: that {problem}; use A-Z a-z 0-9 . _ -, and "
                "no dot at the beginning"
            )
        if self.nproc < 1 or self.nnodes < 1 or not 0 <= self.node_rank < self.nnodes:
            raise ValueError(
                f"nproc={self.nproc}, nnodes={self.nnodes}, node_rank={self.node_rank}; "
                "use 1 or more processes and nodes, and a node rank below the number of nodes"
            )
        if self.coordinator_url is None and self.nnodes > 1:
            raise ValueError(
                f"--standalone is for one machine, and --nnodes is {self.nnodes}; start 'strata coordinator', and use "
                "--coordinator on each machine"
            )
        if self.min_workers is not None and not 1 <= self.min_workers <= (self.max_workers or self.min_workers):
            raise ValueError(f"min={self.min_workers}, max={self.max_workers}; use 1 <= min <= max")
        if self.coordinator_url is None and (self.min_workers or 0) > self.nproc:
            raise ValueError(
                f"--min {self.min_workers} is more than the {self.nproc} workers of --nproc, and no others can join a "
                "standalone job; start more, lower --min, or use --coordinator"
            )
        # Each of the other machines starts one worker or more; how many is known when their launchers are there.
        if (problem := self.find_excess(self.nproc + self.nnodes - 1)) is not None:
            raise ValueError(problem)

    @property
    def world_size(self) -> int:
        """How many workers all launchers start together, if each starts as many as this one."""
        return self.nproc * self.nnodes

    def find_excess(self, world_size: int) -> str | None:
        """Return why the job may not have as many workers; None if it may."""
        if self.max_workers is None or world_size <= self.max_workers:
            return None
        return f"{world_size} workers are more than max={self.max_workers}; start fewer, or raise it"

    def check_world(self, world_size: int) -> None:
        """Raise WorkerLimitsError if the workers that all machines start are too many, or too few to run."""
        problem = self.find_excess(world_size)
        if problem is None and world_size < (self.min_workers or 0):
            problem = (
                f"{world_size} workers are less than --min {self.min_workers}, and no others are started; start more, "
                "or lower it"
            )
        if problem is not None:
            raise WorkerLimitsError(self.job_id, nnodes=self.nnodes, problem=problem)

    def least(self, world_size: int) -> int:
        """Return how many workers the job needs to run, where all launchers together start ``world_size``."""
        return world_size if self.min_workers is None else self.min_workers


class NodesMissingError(ClusterError):
    """Not all machines of a job started their launcher in time."""

    def __init__(self, job_id: str, *, nnodes: int, absent: Sequence[int], waited_s: float) -> None:
        self.job_id = job_id
        self.absent = absent
        missing = f"{name_ranks(absent)} did not come" if absent else "they did not agree on a start"
        super().__init__(
            f"job {job_id!r} waited {waited_s:g} s for the launchers of {nnodes} machines, and {missing}; start them, "
            "or lower --nnodes"
        )


class WorkerLimitsError(ClusterError):
    """The machines of a job start more workers than it may have, or less than it needs."""

    def __init__(self, job_id: str, *, nnodes: int, problem: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id!r} on {nnodes} machines: {problem}")


def name_ranks(node_ranks: Sequence[int]) -> str:
    """Return the machines of these node ranks as text; there is at least one."""
    return f"node rank{'s' if len(node_ranks) > 1 else ''} {', '.join(map(str, node_ranks))}"
