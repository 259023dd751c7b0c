"""What ``strata top`` draws of an answer of the HTTP API."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from strata.cli.watch.top import draw


def worker(worker_id: str, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "worker_id": worker_id, "rank": 0, "state": "training", "is_present": True, "step": 1, "lag": 0,
        "step_s": None, "own_step_s": None, "metrics": {}, "last_seen_s": None, "host": "", "gpu_count": 0,
        "straggles": None, "stall": None,
    }  # fmt: skip
    return known | fields


def answer(
    *workers: dict[str, Any],
    barriers: tuple[dict[str, Any], ...] = (),
    stragglers: tuple[dict[str, Any], ...] = (),
    refuses: str = "",
) -> dict[str, Any]:
    metrics = dict.fromkeys(
        ("goodput", "recent_goodput", "steps_per_s", "samples_per_s", "checkpoint_bytes_per_s", "barrier_p99_s")
    )
    job = {
        "job_id": "j", "state": "running", "reason": "", "step": 1, "total_steps": None, "last_step_s": None,
        "epoch": 0, "generation": 1, "workers": 1, "steps_at_risk": None, "committed_step": None,
    }  # fmt: skip
    status = {
        "version": "1", "jobs": 1, "workers": 1, "requests_per_s": None,
        "accepts_writes": not refuses, "reason": refuses,
    }  # fmt: skip
    return {
        "job": job, "coordinator": status, "metrics": {**metrics, "failures": 0}, "workers": list(workers),
        "barriers": {"open": list(barriers)}, "goodput": {"parts": [], "stragglers": list(stragglers)},
    }  # fmt: skip


def show(drawn: dict[str, Any], **options: Any) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(drawn, now_s=1.0, **options))
    return captured.get()


def test_text_of_others_cannot_write_on_the_terminal() -> None:
    missing = {"worker_id": "m", "rank": 1, "state": "training"}
    barrier = {
        "name": "b\x1b]0;x\x07", "arrived": 1, "expected": 2, "began_s": 0.0, "missing": [missing], "missing_total": 1
    }  # fmt: skip
    odd = worker("w\x1b[2J", host="[red]h[/red]\u202e")
    text = show(answer(odd, barriers=(barrier,), refuses="full\x1b[m"), lost="gone\x1b[2J")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]h[/red]" in text
    assert "missing m" in text


def test_what_is_shown_of_a_coordinator_that_went_down_is_called_stale() -> None:
    assert show(answer(), lost="the coordinator is away").splitlines()[0].strip() == "stale: the coordinator is away"
    assert "stale" not in show(answer())


def test_ranks_that_are_slow_are_named_with_the_cause() -> None:
    slow = {"rank": 3, "worker_id": "w3", "ratio": 2.51, "cause": "data"}
    text = show(answer(stragglers=(slow,)))
    assert "rank 3 (w3) takes 2.5 times as long as the others, in data" in text


def test_of_many_workers_those_that_fit_are_shown_the_slowest_first() -> None:
    workers = [worker(f"worker-{rank}", rank=rank, lag=rank) for rank in range(9)]
    text = show(answer(*workers), lines=13)
    shown = [line.split()[0] for line in text.splitlines() if line.startswith("worker-")]
    assert shown == ["worker-8", "worker-7", "worker-6", "worker-5", "worker-4"]
    assert "and 4 more" in text
    assert "more" not in show(answer(*workers), lines=40)


def test_times_are_shown_in_the_unit_that_people_use() -> None:
    text = show(answer(worker("w", step_s=0.0123, own_step_s=2.5)))
    (line,) = [line for line in text.splitlines() if line.startswith("w ")]
    assert "12.3 ms" in line
    assert "2.5 s" in line
