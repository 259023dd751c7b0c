"""Traces by OpenTelemetry's SDK. Only this module imports it, and only a process that is asked for traces imports this.

Spans are recorded when what they tell of is over, from times that others measured. A thread of the SDK sends them; a
queue that is full drops them. So a collector that is slow or away costs a run nothing but its spans.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.metadata import entry_points

from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from strata.tracing.trace_names import Attribute, Span, TraceIds, TraceName, derive_ids

log = logging.getLogger(__name__)

# So long may a process that ends wait for its last spans.
CLOSE_S = 5.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class UnknownExporterError(Exception):
    """No installed package has the exporter that was asked for."""


def open_telemetry(exporters: Sequence[str], attributes: Mapping[str, str], *, where: str) -> OpenTelemetryTracing:
    """Return what sends spans by these exporters; ``where`` is what a complaint of them names."""
    # An exporter logs every attempt that fails, for as long as the collector is away; QuietExporter says it once.
    logger = logging.getLogger("opentelemetry.exporter")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
    made = [QuietExporter(_find_exporter(name), where) for name in exporters]
    return OpenTelemetryTracing(made, attributes)


class OpenTelemetryTracing:
    """A Tracing: the spans of this process, in the SDK's queue and on their way."""

    is_on = True

    def __init__(self, exporters: Sequence[SpanExporter], attributes: Mapping[str, str]) -> None:
        self._ids = _GivenIds()
        # Not the global provider: that one belongs to the program. It is closed by whoever opened it, while sending
        # still works; at exit it is too late for gRPC.
        self._provider = TracerProvider(
            resource=Resource.create(dict(attributes)), id_generator=self._ids, shutdown_on_exit=False
        )
        for exporter in exporters:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("strata")

    def of(self, seed: str) -> OpenTelemetryTraces:
        """Return the traces of the job with this seed."""
        return OpenTelemetryTraces(self, seed)

    def write(self, ids: TraceIds, trace: TraceName, span: Span, *, leads: bool) -> None:
        """Queue a span, and what is below it; the sampler decides for the whole trace, the same in every process."""
        about = dict(trace.about)
        sampler = self._provider.sampler
        if sampler.should_sample(Context(), ids.trace_id, trace.kind, attributes=about).decision is Decision.DROP:
            return
        # Those who record a span agree on how long ago it was, and the wall clock says when that was.
        since_ns = time.time_ns() - time.monotonic_ns()
        if leads:
            with self._ids.given(ids):
                self._write(replace(span, name=trace.kind, children=()), about, since_ns, Context())
        root = SpanContext(ids.trace_id, ids.root_id, is_remote=True, trace_flags=_SAMPLED)
        self._write(span, about, since_ns, set_span_in_context(NonRecordingSpan(root), Context()))

    def _write(self, span: Span, about: Mapping[str, Attribute], since_ns: int, parent: Context) -> None:
        began_ns = int(span.began_s * 1e9) + since_ns
        written = self._tracer.start_span(
            span.name, parent, attributes={**about, **span.attributes}, start_time=began_ns
        )
        for child in span.children:
            self._write(child, about, since_ns, set_span_in_context(written, Context()))
        if span.error is not None:
            written.set_status(Status(StatusCode.ERROR, span.error))
        written.end(max(began_ns, int(span.ended_s * 1e9) + since_ns))

    def close(self) -> None:
        """Send what is left, for a bounded time: a collector that is away must not hold up the end of a run."""
        closing = threading.Thread(target=self._provider.shutdown, name="strata-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


class OpenTelemetryTraces:
    """The Traces of one job."""

    is_on = True

    def __init__(self, tracing: OpenTelemetryTracing, seed: str) -> None:
        self._tracing = tracing
        self._seed = seed

    @contextmanager
    def within(self, trace: TraceName) -> Iterator[None]:
        """Let what is logged in the block, by any library, carry the id of the trace."""
        ids = derive_ids(self._seed, trace)
        root = SpanContext(ids.trace_id, ids.root_id, is_remote=True, trace_flags=_SAMPLED)
        token = attach(set_span_in_context(NonRecordingSpan(root)))
        try:
            yield
        finally:
            detach(token)

    def record(self, trace: TraceName, span: Span, *, leads: bool = False) -> None:
        """Queue a span and what is below it."""
        self._tracing.write(derive_ids(self._seed, trace), trace, span, leads=leads)

    def timed(
        self, trace: TraceName, name: str, *, leads: bool = False, **attributes: Attribute
    ) -> AbstractContextManager[object]:
        """Record the block as a span, with the error that it raises."""
        return self._timed(trace, name, leads=leads, attributes=attributes)

    @contextmanager
    def _timed(self, trace: TraceName, name: str, *, leads: bool, attributes: dict[str, Attribute]) -> Iterator[None]:
        began_s = time.monotonic()
        problem: str | None = None
        try:
            with self.within(trace):
                yield
        except BaseException as error:
            problem = str(error) or type(error).__name__
            raise
        finally:
            named = {f"strata.{key}": value for key, value in attributes.items()}
            self.record(trace, Span(name, began_s, time.monotonic(), named, problem), leads=leads)


class _GivenIds(IdGenerator):
    """Random ids, but for a root: its ids follow from what the trace is about."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
        self._given = threading.local()

    @contextmanager
    def given(self, ids: TraceIds) -> Iterator[None]:
        """Give these ids to the span that this thread begins in the block."""
        self._given.ids = ids
        try:
            yield
        finally:
            self._given.ids = None

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        ids: TraceIds | None = getattr(self._given, "ids", None)
        return self._random.getrandbits(128) or 1 if ids is None else ids.trace_id

    def generate_span_id(self) -> int:
        """Return the id of a new span."""
        ids: TraceIds | None = getattr(self._given, "ids", None)
        return self._random.getrandbits(64) or 1 if ids is None else ids.root_id


class QuietExporter(SpanExporter):
    """An exporter whose failures are logged once, and then again only after it has worked in between."""

    def __init__(self, exporter: SpanExporter, where: str) -> None:
        self._exporter = exporter
        self._where = where
        self._has_failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, in a thread of the SDK."""
        problem = ""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - it may come from any package, and nobody else would say so
            result, problem = SpanExportResult.FAILURE, f": {type(error).__name__}: {error}"
        if result is SpanExportResult.SUCCESS:
            if self._has_failed:
                log.warning("traces are sent again (%s)", self._where)
            self._has_failed = False
        elif not self._has_failed:
            self._has_failed = True
            log.warning(
                "traces cannot be sent (%s)%s; training goes on, and spans are dropped until it works again",
                self._where,
                problem,
            )
        return result

    def shutdown(self) -> None:
        """Send nothing more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Have what was taken sent."""
        return self._exporter.force_flush(timeout_millis)


def _find_exporter(name: str) -> SpanExporter:
    found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=name)), None)
    if found is None:
        package = f"; pip install opentelemetry-exporter-{name.replace('_', '-')}" if "_proto_" in name else ""
        raise UnknownExporterError(f"no installed package has an exporter {name!r}{package}")
    exporter: SpanExporter = found.load()()
    return exporter
