"""A save as a span: its phases, from the moments that its handle knows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from strata.tracing.trace_names import Attribute, Span

if TYPE_CHECKING:
    from strata.checkpoint.save.draft import Draft
    from strata.checkpoint.save.handle import SaveHandle

# Each phase from one moment to another; the second is missing where the save ended within the phase. Of the last two,
# the first is of a process alone, and the second of one that waits for the other workers.
_PHASES = (
    ("part", "writing", "written"),
    ("report", "written", "reported"),
    ("manifest", "committing", "committed"),
    ("commit", "acknowledging", ""),
)


def describe_save(handle: SaveHandle, draft: Draft) -> Span:
    """Return what became of a save that is over, and how long each phase of it took."""
    moments, error = handle.moments, handle.error()
    problem = None if error is None else str(error) or type(error).__name__
    ended_s = time.monotonic() if handle.took_s is None else handle.began_s + handle.took_s
    staged_s = ended_s if handle.staged_s is None else handle.began_s + handle.staged_s
    phases = [Span("staging", handle.began_s, staged_s, {"strata.blocked_s": handle.blocked_s})]
    is_alone = "reported" not in moments and "acknowledging" not in moments
    for name, start, end in _PHASES:
        if start not in moments or (name == "report" and is_alone):
            continue
        is_over = end in moments or (not end and problem is None)
        phases.append(Span(name, moments[start], moments.get(end, ended_s), {}, error=None if is_over else problem))
    attributes: dict[str, Attribute] = {
        "strata.rank": draft.part,
        "strata.parts": draft.parts,
        "strata.bytes": handle.bytes_total,
    }
    return Span("save", handle.began_s, ended_s, attributes, problem, tuple(phases))
