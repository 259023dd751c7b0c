"""An exporter that fails says so once, however often it does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from strata.tracing.open_telemetry import QuietExporter


class Scripted(SpanExporter):
    """Does what it is told, one line of the script for each batch."""

    def __init__(self, *script: SpanExportResult | Exception) -> None:
        self._script = list(script)
        self.flush_timeouts_ms: list[int] = []

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        self.flush_timeouts_ms.append(timeout_millis)
        return timeout_millis >= 1_000

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        following = self._script.pop(0)
        if isinstance(following, Exception):
            raise following
        return following


def test_failures_are_told_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    exporter = QuietExporter(Scripted(good, bad, bad, OSError("refused"), good, good, bad, bad), where="OTEL_X='y'")
    results = [exporter.export([]) for _ in range(8)]
    assert results == [good, bad, bad, bad, good, good, bad, bad]
    told = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert told == ["traces cannot be sent", "traces are sent again", "traces cannot be sent"]
    assert "OTEL_X='y'" in caplog.text


def test_an_exporter_that_raises_is_told_of_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    QuietExporter(Scripted(OSError("no route")), where="x").export([])
    assert "OSError: no route" in caplog.text


def test_a_flush_is_that_of_the_exporter_with_its_time_limit_and_its_outcome() -> None:
    scripted = Scripted()
    exporter = QuietExporter(scripted, where="x")
    assert exporter.force_flush(1_000)
    assert not exporter.force_flush(999)
    assert scripted.flush_timeouts_ms == [1_000, 999]
