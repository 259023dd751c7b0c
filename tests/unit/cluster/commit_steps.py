"""The steps of a commit, as workers take them."""

from __future__ import annotations

from typing import Any

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.values import PartReport
from tests.unit.cluster.conftest import Bench


def report(bench: Bench, worker: str, step: int = 10, path: str | None = None, **fields: Any) -> list[e.Effect]:
    sent = PartReport(path or f"step_{step}/{worker}", 5, worker)
    effects: list[e.Effect] = bench.say(c.ReportPart, worker, step=step, epoch=0, report=sent, **fields)[1]
    return effects


def confirm(bench: Bench, worker: str, step: int = 10, **fields: Any) -> list[e.Effect]:
    fields = {"generation": bench.generation, "manifest": f"step_{step}/metadata.json", "cursors": "[]", **fields}
    effects: list[e.Effect] = bench.say(c.ConfirmCommit, worker, step=step, epoch=0, **fields)[1]
    return effects


def commit(bench: Bench, step: int) -> None:
    for worker in bench.job.membership.ids():
        report(bench, worker, step)
    confirm(bench, bench.job.membership.ids()[0], step)
