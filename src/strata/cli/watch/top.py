"""``strata top``: a job at a glance, in a terminal."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.output import AsJson, escape, print_json
from strata.cli.progress import can_redraw
from strata.cli.watch.interrupts import insistent_interrupts
from strata.cli.watch.status import DEFAULT_URL, Url
from strata.config import load_settings
from strata.errors import CoordinatorLostError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from strata.client.http_reader import HttpReader

EVERY_S = 1.0
# What fits into a terminal when nobody says how high it is.
LINES = 40
_STATES = {
    "running": "bold green", "waiting": "bold yellow", "recovering": "bold yellow", "stalled": "bold red",
    "finished": "bold green", "preempted": "bold yellow", "stopped": "bold",
    "training": "green", "checkpointing": "cyan", "failed": "red", "left": "dim",
}  # fmt: skip


def show_top(
    *,
    job: Annotated[str | None, typer.Argument(help="The job.", show_default="the busiest one")] = None,
    coordinator: Url = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print it once and exit; the default where the screen cannot be redrawn.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job at a glance: its state, goodput, steps at risk, slow ranks, and the workers that others wait for.

    It refreshes every second until Ctrl-C. If the coordinator goes down, it waits until it is back.
    """
    from strata.client.http_reader import HttpReader

    url = load_settings(coordinator_url=coordinator).coordinator_url or DEFAULT_URL
    reader = HttpReader.of_leader(url)
    answer = reader.get("/api/dashboard", job=job)
    from rich.console import Console

    if as_json:
        print_json(answer)
    elif once or not can_redraw(sys.stdout):
        # In a pipe nothing is folded: a row is a line, for grep and awk.
        width = None if sys.stdout.isatty() else 200
        Console(width=width, highlight=False).print(draw(answer, now_s=reader.time_s, lines=10_000))
    else:
        _follow(reader, answer, job)


def _follow(reader: HttpReader, answer: dict[str, Any], job: str | None) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    lost = ""
    live = Live(console=console, screen=True, auto_refresh=False)
    with live, suppress(KeyboardInterrupt), insistent_interrupts():
        while True:
            live.update(draw(answer, now_s=reader.time_s, lines=console.height, lost=lost), refresh=True)
            time.sleep(EVERY_S)
            try:
                answer, lost = reader.get("/api/dashboard", job=job), ""
            except CoordinatorLostError as error:
                lost = str(error)


def draw(answer: dict[str, Any], *, now_s: float, lines: int = LINES, lost: str = "") -> Group:
    """Return what is shown; of very many workers those that fit, the slowest first."""
    from rich.console import Group
    from rich.text import Text

    rows: list[Any] = []
    if lost:
        rows.append(Text(f"stale: {escape(lost)}", style="bold red"))
    job = answer["job"]
    status = answer["coordinator"]
    if job is None:
        rows.append(Text("no jobs yet"))
        return Group(*rows, _foot(status))
    rows += [_head(job, now_s), _numbers(answer), _time(answer["goodput"])]
    for barrier in (answer["barriers"] or {"open": []})["open"][:3]:
        missing = ", ".join(
            f"{each['worker_id']} (rank {each['rank']}, {each['state']})" for each in barrier["missing"][:3]
        )
        more = f" and {barrier['missing_total'] - 3} more" if barrier["missing_total"] > 3 else ""
        came = f"{barrier['arrived']} of {barrier['expected']} since {now_s - barrier['began_s']:.0f} s"
        text = f"barrier {barrier['name']}: {came}, missing {missing}{more}"
        rows.append(Text(escape(text), style="yellow"))
    for straggler in answer["goodput"]["stragglers"][:3]:
        who = f"rank {straggler['rank']} ({straggler['worker_id']})"
        text = f"{who} takes {straggler['ratio']:.1f} times as long as the others, in {straggler['cause']}"
        rows.append(Text(escape(text), style="yellow"))
    room = max(5, lines - len(rows) - 5)
    rows.append(_workers(answer["workers"], now_s, room))
    return Group(*rows, _foot(status))


def _head(job: dict[str, Any], now_s: float) -> Any:
    from rich.text import Text

    total = f" of {job['total_steps']}" if job["total_steps"] else ""
    age = "" if job["last_step_s"] is None else f", last one {max(0.0, now_s - job['last_step_s']):.0f} s ago"
    reason = f" ({job['reason']})" if job["reason"] else ""
    return Text.assemble(
        ("job ", "dim"), (escape(job["job_id"]), "bold"), "  ",
        (job["state"], _STATES.get(job["state"], "bold")), escape(reason),
        f"  step {job['step']}{total}{age}  epoch {job['epoch']}  generation {job['generation']}",
        f"  {_count(job['workers'], 'worker')}",
    )  # fmt: skip


def _numbers(answer: dict[str, Any]) -> Any:
    from rich.text import Text

    job, metrics = answer["job"], answer["metrics"]
    parts = [
        ("goodput", _percent(metrics["goodput"])),
        ("lately", _percent(metrics["recent_goodput"])),
        ("steps/s", _number(metrics["steps_per_s"])),
        ("samples/s", _number(metrics["samples_per_s"])),
        ("at risk", "-" if job["steps_at_risk"] is None else f"{job['steps_at_risk']} steps"),
        ("saved", "-" if job["committed_step"] is None else f"step {job['committed_step']}"),
        ("checkpoint", _bytes(metrics["checkpoint_bytes_per_s"])),
        ("barrier p99", _seconds(metrics["barrier_p99_s"])),
        ("failures", str(metrics["failures"])),
    ]
    return Text("  ").join([Text.assemble((f"{name} ", "dim"), value) for name, value in parts])


def _time(goodput: dict[str, Any]) -> Any:
    from rich.text import Text

    from strata.run.launch.goodput_report import WORDS

    lost = sorted((each for each in goodput["parts"] if each["part"] != "compute"), key=lambda each: -each["seconds"])
    shown = [f"{WORDS[each['part']]} {each['share']:.0%}" for each in lost if each["share"] >= 0.005]
    return Text.assemble(("lost to  ", "dim"), ", ".join(shown) or "nothing")


def _workers(workers: list[dict[str, Any]], now_s: float, room: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (
        "worker",
        "rank",
        "state",
        "step",
        "lag",
        "s/step",
        "own s/step",
        "data wait",
        "heartbeat",
        "host",
        "gpus",
    ):
        table.add_column(column, no_wrap=True)
    # Who needs a look comes first: slow ones, late ones, then by rank.
    ordered = sorted(
        workers,
        key=lambda each: (
            not each["is_present"], each["straggles"] is None and each["stall"] is None, -(each["lag"] or 0),
            each["rank"] or 0,
        ),
    )  # fmt: skip
    for worker in ordered[:room]:
        seen_s = worker["last_seen_s"]
        cells = (
            worker["worker_id"],
            "" if worker["rank"] is None else str(worker["rank"]),
            worker["state"],
            str(worker["step"]),
            "" if worker["lag"] is None else str(worker["lag"]),
            _seconds(worker["step_s"]),
            _seconds(worker["own_step_s"]),
            _seconds(worker["metrics"].get("data_wait_s")),
            "" if seen_s is None else f"{max(0.0, now_s - seen_s):.1f} s ago",
            worker["host"],
            str(worker["gpu_count"] or ""),
        )
        style = "bold yellow" if worker["straggles"] or worker["stall"] else _STATES.get(worker["state"], "")
        table.add_row(*(Text(escape(cell)) for cell in cells), style=style)
    if len(ordered) > room:
        table.add_row(Text(f"and {len(ordered) - room} more", style="dim"))
    return table


def _foot(status: dict[str, Any]) -> Any:
    from rich.text import Text

    rate = "" if status["requests_per_s"] is None else f", {status['requests_per_s']:,.0f} requests/s"
    jobs, workers = _count(status["jobs"], "job"), _count(status["workers"], "worker")
    text = f"coordinator {status['version']}: {jobs}, {workers}{rate}"
    refuses = "" if status["accepts_writes"] else f"; it refuses durable commands: {status['reason']}"
    return Text(escape(text + refuses), style="dim" if not refuses else "bold red")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _bytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:,.1f} MB/s"
