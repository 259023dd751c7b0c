"""What the coordinator logs: every event that is durable, and its own troubles; text for people, JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable

from strata.cluster.events import Event
from strata.tracing.traces import find_trace_id

log = logging.getLogger("strata.events")

LEVELS = ("debug", "info", "warning", "error")


def set_up_logging(*, level: str, as_json: bool) -> None:
    """Log to stderr: lines of text, or one JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # It tells of every connection that comes and goes.
    logging.getLogger("picows").setLevel(logging.WARNING)


def log_events(events: Iterable[Event]) -> None:
    """Log what happened, in its order."""
    for event in events:
        log_event(event)


def log_event(event: Event) -> None:
    """Log what happened in a job; the loss of a worker as a warning."""
    fields = {"job": event.job_id, "worker": event.worker_id, "event": event.kind, "cause": event.cause}
    fields |= {"by": event.by or None, "address": event.address or None}
    level = logging.WARNING if event.cause is not None and event.cause.is_failure else logging.INFO
    if log.isEnabledFor(level):
        who = f" {event.worker_id}" if event.worker_id else ""
        log.log(
            level,
            "%s%s: %s: %s",
            event.job_id,
            who,
            event.kind,
            event.reason,
            extra={"fields": {name: value for name, value in fields.items() if value is not None}},
        )


class TextFormatter(logging.Formatter):
    """One line for each record; what came from elsewhere cannot write on the terminal as it likes."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        """Return the line, with anything that is not printable escaped, and the id of the trace that it belongs to."""
        line = "".join(
            character if character.isprintable() else ascii(character)[1:-1]
            for character in super().formatMessage(record)
        )
        trace_id = find_trace_id()
        return f"{line} trace_id={trace_id}" if trace_id else line


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, with the fields of an event beside its message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if trace_id := find_trace_id():
            entry["trace_id"] = trace_id
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)
