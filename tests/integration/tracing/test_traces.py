"""Traces of real runs, at a real OTLP receiver: whole across workers and coordinator, and never in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import strata
from strata.errors import StorageError
from strata.run.logs import TracedFormatter
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.job import Job
from tests.testbed.network.otlp import Receiver, SentSpan, receiving, receiving_http
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.xdist_group("whole runs")]

QUICK = ("--lease", "4", "--grace", "1")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A collector that all processes of the test send their spans to."""
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield receiver


def test_a_run_that_loses_a_worker_has_one_whole_trace_of_each_checkpoint_barrier_and_recovery(
    receiver: Receiver, tmp_path: Path
) -> None:
    coordinator = CoordinatorProcess(tmp_path, *QUICK)
    with coordinator.serving(), Job(tmp_path, coordinator.url) as job:
        job.start("a", "b", "c", WORLD_SIZE="3")
        job.wait_for_step(12)
        job.kill("b")
        job.wait_until(lambda: job.world_size() == 2, "the others go on alone")
        job.start("b")
        job.check_finished()
    check_checkpoints(receiver, coordinator)
    check_barriers(receiver)
    check_recoveries(receiver)
    assert {span.service for span in receiver.spans()} == {"strata-worker", "strata-coordinator"}
    workers = {span.resource.get("strata.worker_id") for span in receiver.spans() if span.service == "strata-worker"}
    assert workers == {"a", "b", "c"}
    assert {span.resource["strata.job"] for span in receiver.spans() if span.service == "strata-worker"} == {"default"}


def check_checkpoints(receiver: Receiver, coordinator: CoordinatorProcess) -> None:
    events = [json.loads(line) for line in coordinator.log().splitlines() if line.startswith(b"{")]
    committed = {
        event["message"].rpartition(" ")[2]: event["trace_id"]
        for event in events
        if event.get("event") == "checkpoint committed"
    }
    assert len(committed) > 3
    checked = Counter[int]()
    cut_off = []
    for step, trace_id in committed.items():
        # The log of the coordinator names the trace of each checkpoint.
        spans = [span for span in receiver.spans() if span.trace_id == trace_id]
        (workers,) = (span.attributes["strata.parts"] for span in spans if span.name == "collect")
        # A manifest is asked for again when the membership changes while it is written.
        once_sent = [span for span in spans if span.name != "manifest"]
        sent = Counter((span.resource.get("strata.worker_id"), span.name) for span in once_sent)
        assert set(sent.values()) == {1}, sent
        names = Counter(span.name for span in once_sent)
        once = dict.fromkeys(("checkpoint", "collect", "journal"), 1)
        each = dict.fromkeys(("save", "staging", "part", "report", "commit"), workers)
        if names != {**once, **each} or len(once_sent) == len(spans):
            # A span is sent when it ends, in batches: the worker that was killed sent any part of its last ones.
            cut_off.append(step)
            assert all(sent[worker, name] == 1 for worker in ("a", "c") for name in each), sent
            continue
        checked[workers] += 1
        assert {span.attributes["strata.step"] for span in spans} == {int(step)}
        saves = [span for span in spans if span.name == "save"]
        assert len({span.resource["strata.worker_id"] for span in saves}) == workers
        assert sorted(span.attributes["strata.rank"] for span in saves) == list(range(workers))
        check_tree(spans)
    # They are neighbours: the last ones before the kill.
    places = [list(committed).index(step) for step in cut_off]
    assert all(after == before + 1 for before, after in pairwise(places)), cut_off
    assert checked[2] + checked[3] > 2
    assert checked[3] > 0


def check_barriers(receiver: Receiver) -> None:
    traces = receiver.traces("barrier")
    assert traces
    for spans in traces.values():
        names = Counter(span.name for span in spans)
        failed = any(span.error for span in spans)
        assert names["barrier"] == 1
        assert failed or names["meeting"] == 1
        for meeting in (span for span in spans if span.name == "meeting" and span.error is None):
            # Those of the worker that was killed may never have been sent.
            assert 0 <= meeting.attributes["strata.workers"] - names["wait"] <= 1
            assert {meeting.attributes["strata.first"], meeting.attributes["strata.last"]} <= {"a", "b", "c"}
        check_tree(spans)


def check_recoveries(receiver: Receiver) -> None:
    lost = [
        spans
        for spans in receiver.traces("recovery").values()
        if any(span.attributes.get("strata.cause") == "channel_lost" for span in spans)
    ]
    (spans,) = lost
    assert Counter(span.name for span in spans) == {
        "recovery": 1,
        "detect": 1,
        **dict.fromkeys(("recover", "gather", "restore", "data"), 2),
    }
    (detect,) = (span for span in spans if span.name == "detect")
    assert detect.attributes["strata.workers"] == "b"
    assert detect.ended_s - detect.began_s >= 1.0, "the grace of a closed connection is a part of it"
    (step,) = {span.attributes["strata.restored_step"] for span in spans if span.name == "recover"}
    assert step % 5 == 0
    check_tree(spans)


def check_tree(spans: list[SentSpan]) -> None:
    """There is one root, every parent was sent, and no child is longer than its own worker's parent."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    assert len([span for span in spans if not span.parent_id]) == 1
    for span in spans:
        parent = by_id[span.parent_id] if span.parent_id else span
        assert span.began_s <= span.ended_s
        if parent.resource == span.resource and parent.parent_id:
            assert parent.began_s - 1e-5 <= span.began_s
            assert span.ended_s <= parent.ended_s + 1e-5


def test_a_sampler_takes_a_trace_as_a_whole_or_not_at_all(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    coordinator = CoordinatorProcess(tmp_path, *QUICK)
    with coordinator.serving(), Job(tmp_path, coordinator.url, save_every="2 steps", pace_s=0.0) as job:
        job.start("a", "b", WORLD_SIZE="2")
        job.check_finished()
    steps = {said["step"] for said in job.workers["a"].said if "step" in said}
    traces = receiver.traces("checkpoint")
    assert 0 < len(traces) < len(steps) // 2, "some, and not all"
    assert all(Counter(span.name for span in spans)["save"] == 2 for spans in traces.values())
    assert {span.trace_id for span in receiver.spans("save")} == set(traces)


def train_alone(folder: Path, *, steps: int = 4) -> None:
    with strata.join(checkpoints=folder, local=True, save_every="2 steps") as run:
        for step in run.steps({"weight": 1}, until=steps):
            with step:
                pass


def test_a_run_of_one_has_the_same_traces_by_http_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving_http() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "llm")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        train_alone(tmp_path)
    traces = receiver.traces("checkpoint")
    assert sorted(spans[0].attributes["strata.step"] for spans in traces.values()) == [2, 4]
    for spans in traces.values():
        assert {span.name for span in spans} == {"checkpoint", "save", "staging", "part", "manifest"}
        check_tree(spans)
    assert len(receiver.traces("recovery")) == 1
    assert {(s.service, s.resource["deployment.environment"]) for s in receiver.spans()} == {("llm", "test")}


def test_the_log_of_a_save_that_fails_names_the_trace_that_says_why(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(TracedFormatter("%(message)s"))
    (tmp_path / "default").write_text("no directory")
    with pytest.raises(StorageError):
        train_alone(tmp_path, steps=2)
    (failed,) = receiver.spans("save")
    assert failed.error
    assert f"{failed.error} trace_id={failed.trace_id}" in caplog.text
    assert sorted(span.name for span in receiver.spans() if span.error) == ["checkpoint", "part", "save"]


def test_a_collector_that_is_away_costs_a_run_nothing_and_is_complained_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with strata.join(checkpoints=tmp_path, local=True, save_every="2 steps") as run:

        def train(until: int) -> None:
            for step in run.steps({"weight": 1}, until=until):
                with step:
                    pass

        train(4)
        wait_until(lambda: "traces cannot be sent" in caplog.text, "the complaint", timeout_s=stretch(30))
        with receiving(port) as receiver:

            def is_sent_again() -> bool:
                train(run.step_number + 2)
                return "traces are sent again" in caplog.text

            wait_until(is_sent_again, "spans, once it is back", timeout_s=60)
            assert receiver.spans("save")
            assert caplog.text.count("traces cannot be sent") == 1
    assert "opentelemetry" not in {record.name.partition(".")[0] for record in caplog.records}


def test_nobody_who_is_not_asked_for_traces_imports_opentelemetry(tmp_path: Path) -> None:
    source = (
        "import sys, strata, strata.coordinator.server, strata.cli.coordinator, strata.run.team.coordinated_team\n"
        f"with strata.join(checkpoints={str(tmp_path)!r}, local=True) as run:\n"
        "    for step in run.steps({'weight': 1}, until=2):\n"
        "        with step: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    told = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True, env=environment
    ).stdout
    assert told.strip() == "[]"
