"""Traces: where the facts about one job go, once they are known. By default nowhere, at no cost."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from strata.tracing.trace_names import Attribute, Span, TraceName


class Traces(Protocol):
    """The traces of one job; usable from any thread, and nothing in it blocks or raises."""

    @property
    def is_on(self) -> bool:
        """Whether anyone wants spans; who has to work for them asks first."""
        ...

    def within(self, trace: TraceName) -> AbstractContextManager[object]:
        """Let what is logged in the block carry the id of the trace."""
        ...

    def record(self, trace: TraceName, span: Span, *, leads: bool = False) -> None:
        """Add a span and what is below it. Whoever ``leads`` (rank 0) adds the root too, with the same times."""
        ...

    def timed(
        self, trace: TraceName, name: str, *, leads: bool = False, **attributes: Attribute
    ) -> AbstractContextManager[object]:
        """Record the block as a span, with the error that it raises."""
        ...


class Tracing(Protocol):
    """What sends the spans of this process."""

    @property
    def is_on(self) -> bool:
        """Whether spans are sent."""
        ...

    def of(self, seed: str) -> Traces:
        """Return the traces of the job with this seed."""
        ...

    def close(self) -> None:
        """Send what is left, within a bounded time."""
        ...


class NoTraces:
    """Neither records nor costs anything: both a Tracing and the Traces of any job."""

    is_on = False
    _nothing = nullcontext()

    def of(self, seed: str) -> Traces:
        """Return this."""
        return self

    def within(self, trace: TraceName) -> AbstractContextManager[object]:
        """Return a block that does nothing."""
        return self._nothing

    def record(self, trace: TraceName, span: Span, *, leads: bool = False) -> None:
        """Do nothing."""

    def timed(
        self, trace: TraceName, name: str, *, leads: bool = False, **attributes: Attribute
    ) -> AbstractContextManager[object]:
        """Return a block that does nothing."""
        return self._nothing

    def close(self) -> None:
        """Do nothing."""


NO_TRACES = NoTraces()


def find_trace_id() -> str:
    """Return the id of the trace that the caller is within, also of one that the user's own program began; else ""."""
    # Whoever is within a trace has imported this. Whoever is not must not pay for the import.
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ""
    context = api.get_current_span().get_span_context()
    return api.format_trace_id(context.trace_id) if context.is_valid else ""
