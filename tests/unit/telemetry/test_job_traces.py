"""What the coordinator adds to the traces of a job: what a command came to, in the trace that it is about."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from strata.clock import SystemClock
from strata.cluster import Limits
from strata.cluster import commands as c
from strata.cluster.events import Cause, Effect
from strata.cluster.values import PartReport
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.journal import MemoryJournal
from strata.coordinator.logs import TextFormatter
from strata.coordinator.telemetry.job_traces import MAX_NAMED, JobsTraces, describe
from strata.tracing.open_telemetry import OpenTelemetryTracing
from strata.tracing.trace_names import (
    TRACES_KEY,
    Span,
    TraceName,
    barrier_trace,
    checkpoint_trace,
    derive_ids,
    recovery_trace,
)
from tests.testbed.pace import stretch
from tests.unit.cluster.conftest import Bench


def trace(bench: Bench, command: c.JobCommand, *, durable_after_s: float = 0.0) -> list[tuple[TraceName, Span]]:
    """Apply a command, and return what it adds to traces."""
    _, effects = bench.apply(command)
    return describe_effects(bench, command, effects, durable_after_s=durable_after_s)


def describe_effects(
    bench: Bench, command: c.JobCommand, effects: list[Effect], *, durable_after_s: float = 0.0
) -> list[tuple[TraceName, Span]]:
    at_s = bench.now_s
    return list(describe(bench.job, command, effects, at_s=at_s, now_s=at_s + durable_after_s))


def part(bench: Bench, worker: str, *, size_bytes: int) -> c.ReportPart:
    report = PartReport(f"step_10/{worker}", size_bytes, worker)
    return c.ReportPart(worker_id=worker, incarnation="1", generation=bench.generation, step=10, epoch=0, report=report)


def arrival(bench: Bench, worker: str, **fields: float) -> c.ArriveAtBarrier:
    return c.ArriveAtBarrier(worker_id=worker, incarnation="1", generation=bench.generation, name="meet", **fields)


@pytest.fixture
def bench() -> Bench:
    """A job of three workers."""
    bench = Bench()
    bench.join("a", "b", "c")
    return bench


def test_collecting_parts_lasts_from_the_first_report_to_the_last(bench: Bench) -> None:
    assert trace(bench, part(bench, "a", size_bytes=10)) == []
    bench.now_s += 2
    assert trace(bench, part(bench, "b", size_bytes=20)) == []
    bench.now_s += 3
    attributes = {"strata.parts": 3, "strata.bytes": 60, "strata.writer": "a"}
    assert trace(bench, part(bench, "c", size_bytes=30)) == [
        (checkpoint_trace(3, 10), Span("collect", 100.0, 105.0, attributes))
    ]


def test_a_commit_shows_how_long_the_journal_took(bench: Bench) -> None:
    for worker in ("a", "b", "c"):
        bench.apply(part(bench, worker, size_bytes=1))
    confirmed = c.ConfirmCommit(
        worker_id="b", incarnation="1", step=10, epoch=0, generation=3, manifest="m", cursors="[]"
    )
    assert trace(bench, confirmed, durable_after_s=0.5) == [
        (checkpoint_trace(3, 10), Span("journal", 100.0, 100.5, {"strata.writer": "b"}))
    ]


def test_a_meeting_names_who_came_first_and_last_and_is_recorded_once(bench: Bench) -> None:
    for worker in ("b", "a"):
        assert trace(bench, arrival(bench, worker)) == []
        bench.now_s += 2
    attributes = {"strata.workers": 3, "strata.first": "b", "strata.last": "c"}
    assert trace(bench, arrival(bench, "c")) == [
        (barrier_trace(3, "meet", 1), Span("meeting", 100.0, 104.0, attributes))
    ]
    bench.now_s += 1
    _, effects = bench.apply(arrival(bench, "b"))
    assert [effect.to for effect in effects] == [("b",)]  # its release was lost, and is told again
    assert describe_effects(bench, arrival(bench, "b"), effects) == []


@pytest.mark.parametrize(
    ("ended_by", "problem"),
    [
        (c.ExpireBarrier(name="meet"), "barrier 'meet' timed out with 2 of 3: missing c (rank 2"),
        (c.CancelBarrier(name="meet", reason="enough"), "barrier 'meet' was cancelled: enough"),
    ],
)
def test_a_meeting_that_failed_says_why(bench: Bench, ended_by: c.JobCommand, problem: str) -> None:
    for worker in ("a", "b"):
        bench.apply(arrival(bench, worker, timeout_s=5.0))
    bench.now_s += 6
    ((about, span),) = trace(bench, ended_by)
    assert about == barrier_trace(3, "meet", 1)
    assert (span.name, span.began_s, span.ended_s) == ("meeting", 106.0, 106.0)
    assert span.attributes == {"strata.workers": 2}
    assert problem in (span.error or "")


def test_finding_out_that_workers_died_lasts_from_their_last_sign_of_life(bench: Bench) -> None:
    bench.now_s += 1
    bench.beat("b")
    bench.now_s += 9
    lost = c.FailWorkers(workers=(("c", "1"), ("b", "1")), reason="2 are silent", cause=Cause.HUNG)
    ((about, span),) = trace(bench, lost, durable_after_s=0.25)
    assert about == recovery_trace(4)
    assert (span.name, span.began_s, span.ended_s) == ("detect", 100.0, 110.25)
    reason = "c, b failed: 2 are silent"
    assert span.attributes == {"strata.cause": "hung", "strata.reason": reason, "strata.workers": "b, c"}


def test_of_very_many_workers_that_died_some_are_named() -> None:
    bench = Bench()
    names = [f"w{number:02}" for number in range(MAX_NAMED + 5)]
    bench.join(*names)
    lost = c.FailWorkers(workers=tuple((name, "1") for name in names[1:]), reason="a rack", cause=Cause.CHANNEL_LOST)
    ((_, span),) = trace(bench, lost)
    assert span.attributes["strata.workers"] == ", ".join(names[1 : MAX_NAMED + 1])


def test_a_worker_that_joins_begins_a_recovery_and_one_that_has_finished_does_not(bench: Bench) -> None:
    joined = trace(bench, c.RegisterWorker(worker_id="d", incarnation="1"))
    ((about, span),) = joined
    assert about == recovery_trace(4)
    assert (span.name, span.began_s, span.ended_s, span.attributes["strata.cause"]) == (
        "detect",
        100.0,
        100.0,
        "joined",
    )
    finished = c.Goodbye(worker_id="d", incarnation="1", reason="done", cause=Cause.FINISHED)
    assert trace(bench, finished) == []


class Logged(logging.Handler):
    """The lines of the log as they are written, while the trace of each is known."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def logged() -> Iterator[list[str]]:
    handler, logger = Logged(), logging.getLogger("strata.events")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.setLevel(level)
    logger.removeHandler(handler)


async def test_only_a_job_whose_workers_trace_has_traces_and_its_log_names_them(logged: list[str]) -> None:
    exporter = InMemorySpanExporter()
    tracing = OpenTelemetryTracing([exporter], {})
    dispatcher = Dispatcher(
        MemoryJournal(),
        limits=Limits(),
        clock=SystemClock(),
        deliver=lambda _: None,
        traces=JobsTraces(tracing),
    )
    await dispatcher.ask(c.SetKey(job_id="traced", key=TRACES_KEY, value=b"seed", token=0, writer="w"))
    for job_id in ("plain", "traced"):
        await dispatcher.ask(c.RegisterWorker(job_id=job_id, worker_id="a", incarnation="1"))
    await dispatcher.ask(
        c.ReportPart(
            job_id="traced",
            worker_id="a",
            incarnation="1",
            generation=1,
            step=7,
            epoch=0,
            report=PartReport("p", 5, "d"),
        )
    )
    await dispatcher.ask(c.Goodbye(job_id="traced", worker_id="a", incarnation="1", cause=Cause.FINISHED))
    await dispatcher.ask(c.RemoveJob(job_id="traced"))
    tracing.close()
    recovery, checkpoint = (derive_ids("seed", each).trace_id for each in (recovery_trace(1), checkpoint_trace(1, 7)))
    spans = exporter.get_finished_spans()
    assert [(span.name, span.context.trace_id) for span in spans] == [("detect", recovery), ("collect", checkpoint)]
    assert all(abs(span.start_time / 1e9 - time.time()) < stretch(60) for span in spans)  # as the wall clock shows it
    named = {
        line.partition("strata.events: ")[2].split(" trace_id=")[0]: line.partition(" trace_id=")[2] for line in logged
    }
    assert named == {
        "plain: generation changed: 1: a joined": "",
        "traced: generation changed: 1: a joined": f"{recovery:032x}",
        "traced a: checkpoint begun: step 7": f"{checkpoint:032x}",
        "traced: generation changed: 2: a finished": "",
        "traced: job removed: removed by an operator": "",
    }
