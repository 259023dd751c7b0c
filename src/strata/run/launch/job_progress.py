"""The progress of a job in one line: where it is, how fast, how long it still takes, and what a failure would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.cluster.lifecycle.stalls import is_stalled
from strata.wire._generated import coordinator_pb2 as pb

_SEPARATOR = " · "


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known of a job at one moment; None where its workers do not say."""

    step: int
    epoch: int
    workers: int
    step_s: float | None = None
    total_steps: int | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    loss: float | None = None
    data_wait: float | None = None
    """Which share of a step the slowest worker waits for data."""
    saved_step: int | None = None
    stalled: tuple[str, ...] = ()
    restarts: int = 0

    @property
    def eta_s(self) -> float | None:
        """How long it still takes at the present speed."""
        if self.total_steps is None or not self.step_s:
            return None
        return max(0, self.total_steps - self.step) * self.step_s

    def __str__(self) -> str:
        return _SEPARATOR.join(text for _, text in self._parts())

    def fit(self, width: int) -> str:
        """Return the line in at most ``width`` characters: what matters least on call is left out first."""
        parts = self._parts()
        while len(parts) > 1 and len(_SEPARATOR.join(text for _, text in parts)) > width:
            parts.remove(min(parts, key=lambda part: part[0]))
        return _SEPARATOR.join(text for _, text in parts)[:width]

    def _parts(self) -> list[tuple[int, str]]:
        """Return the parts of the line, each with how much it matters."""
        of = f"/{self.total_steps}" if self.total_steps is not None else ""
        parts = [(9, f"step {self.step}{of}"), (2, f"epoch {self.epoch}"), (4, _count(self.workers, "worker"))]
        if self.eta_s is not None:
            parts.append((5, f"{format_duration(self.eta_s)} left"))
        if self.samples_per_s:
            parts.append((1, f"{self.samples_per_s:,.0f} samples/s"))
        if self.tokens_per_s:
            parts.append((3, f"{self.tokens_per_s:,.0f} tokens/s"))
        if self.loss is not None:
            parts.append((6, f"loss {self.loss:.4g}"))
        if self.data_wait is not None:
            parts.append((0, f"data wait {self.data_wait:.0%}"))
        if self.saved_step is None:
            parts.append((7, "nothing saved yet"))
        else:
            parts.append((7, f"saved step {self.saved_step} ({max(0, self.step - self.saved_step)} at risk)"))
        if self.restarts:
            parts.append((4, _count(self.restarts, "restart")))
        if self.stalled:
            parts.append((8, f"stalled: {', '.join(self.stalled)}"))
        return parts


def read_progress(status: pb.Status, job_id: str, *, restarts: int) -> Progress | None:
    """Return the progress of a job from what the coordinator knows; None before its first step."""
    job = next((job for job in status.jobs if job.job_id == job_id), None)
    workers = [] if job is None else [each for each in job.workers if each.state not in ("failed", "left")]
    if job is None or not any(worker.resources.get("step_s") for worker in workers):
        return None
    first = min(workers, key=lambda worker: worker.rank)
    said = first.resources
    total = said.get("total_steps")
    waits = [
        worker.resources["data_wait_s"] / worker.resources["step_s"]
        for worker in workers
        if worker.resources.get("step_s") and "data_wait_s" in worker.resources
    ]
    return Progress(
        step=first.step,
        epoch=first.epoch,
        workers=len(workers),
        step_s=said.get("step_s"),
        total_steps=None if not total else int(total),
        samples_per_s=_sum(workers, "samples_per_s"),
        tokens_per_s=_sum(workers, "tokens_per_s"),
        loss=said.get("loss"),
        data_wait=min(1.0, max(waits)) if waits else None,
        saved_step=job.checkpoints[-1].step if job.checkpoints else None,
        stalled=tuple(f"rank {w.rank} for {w.resources['stalled_s']:.0f} s" for w in workers if _is_stalled(w))[:3],
        restarts=restarts,
    )


def format_duration(seconds: float) -> str:
    """Return a duration as people say it: 45 s, 12 min, 3 h 5 min, 2 d 4 h."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _sum(workers: Sequence[pb.WorkerStatus], name: str) -> float | None:
    values = [worker.resources[name] for worker in workers if name in worker.resources]
    return sum(values) if values else None


def _is_stalled(worker: pb.WorkerStatus) -> bool:
    said = worker.resources
    return is_stalled(said) and not (said.get("waiting", 0.0) or said.get("paused", 0.0))
