"""The answers of the HTTP API about time: where it went, series for charts, and the page that has everything."""

from __future__ import annotations

from pydantic import Field

from strata.coordinator.http.answers import (
    Answer,
    Barriers,
    Checkpoint,
    CoordinatorStatus,
    Dataset,
    JobSummary,
    Straggling,
    TimeParts,
    Worker,
)


class LostTime(Answer):
    """One part of the wall time."""

    part: str = Field(description="compute, data, save, restore, wait, repeated, other, or down: no worker at all.")
    seconds: float
    share: float


class CauseCount(Answer):
    """How often something happened."""

    cause: str
    count: int


class SlowestRank(Answer):
    """Who was the slowest for a while: between two reports, which is a few seconds, or one long step."""

    at_s: float
    step: int
    rank: int
    worker_id: str
    step_s: float
    median_s: float


class Goodput(Answer):
    """Where the wall time of a job went. The seconds of ``parts`` add up to ``wall_s``."""

    job_id: str
    began_s: float | None
    until_s: float | None = Field(description="Until when reports are in; a few seconds ago for a job that runs.")
    wall_s: float
    goodput: float | None = Field(description="Share of the wall time that became kept steps.")
    recent_goodput: float | None = Field(description="The same of the last ten minutes.")
    parts: list[LostTime]
    steps: int = Field(description="Steps kept so far.")
    repeated_steps: int = Field(description="Steps that were done again.")
    steps_at_risk: int | None
    failures: int
    mtbf_s: float | None = Field(description="Mean time between failures: wall time by failures; None without any.")
    restarts: list[CauseCount] = Field(description="Why generations ended, by cause.")
    stragglers: list[Straggling]
    slowest: list[SlowestRank] = Field(description="The newest last; at most 50.")


class Mark(Answer):
    """Something to mark on the time axis."""

    at_s: float
    kind: str = Field(
        description="failure, joined, left, rollback, rewind, committed, aborted, rejected, diverged or coordinator."
    )
    label: str
    step: int | None


class PartSeries(Answer):
    """Shares of wall time by part, one number for each time; null where nothing was reported."""

    compute: list[float | None]
    data: list[float | None]
    save: list[float | None]
    restore: list[float | None]
    wait: list[float | None]
    repeated: list[float | None]
    other: list[float | None]


class Series(Answer):
    """Time series of a job; all lists are as long as ``at_s``, and null says that nothing is known."""

    job_id: str
    resolution_s: float
    at_s: list[float] = Field(description="The middle of each interval, ascending.")
    step: list[int | None]
    steps_per_s: list[float | None]
    samples_per_s: list[float | None]
    step_s: list[float | None]
    workers: list[float | None]
    parts: PartSeries
    barrier_p50_s: list[float | None]
    barrier_p99_s: list[float | None]
    checkpoint_bytes_per_s: list[float | None]
    requests_per_s: list[float | None] = Field(description="Of the whole coordinator; null for one of several tenants.")
    metrics: dict[str, list[float | None]] = Field(description="Loss and other numbers of the training loop, by name.")
    marks: list[Mark]


class StepTimes(Answer):
    """Own step times by rank, for a heat map: without waiting for others, so that the slow one stands out."""

    job_id: str
    resolution_s: float
    at_s: list[float]
    ranks: list[int]
    worker_ids: list[str]
    total_ranks: int
    rows: list[list[float | None]] = Field(description="For each of ``ranks``, seconds a step at each of ``at_s``.")
    median_s: list[float | None]
    slowest: list[int | None] = Field(description="The slowest rank of all at each time.")


class JobMetrics(Answer):
    """The numbers on top of the page."""

    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    requests_per_s: float | None
    checkpoint_bytes_per_s: float | None = Field(description="Of the last committed checkpoint.")
    barrier_p50_s: float | None
    barrier_p99_s: float | None
    goodput: float | None
    recent_goodput: float | None
    steps_at_risk: int | None
    mtbf_s: float | None
    failures: int


class Dashboard(Answer):
    """Everything about one job, and the coordinator; without ``job`` the busiest one."""

    coordinator: CoordinatorStatus
    jobs: list[JobSummary]
    job: JobSummary | None
    workers: list[Worker]
    datasets: list[Dataset]
    checkpoints: list[Checkpoint] = Field(description="The newest 50, newest first.")
    barriers: Barriers | None
    metrics: JobMetrics | None
    goodput: Goodput | None


__all__ = ["Dashboard", "Goodput", "JobMetrics", "Series", "StepTimes", "TimeParts"]
