"""What Strata logs in a worker: to stderr, unless the program has set up logging itself.

``strata run`` keeps all output of a worker in a file of its own; see :mod:`strata.run.launch.log_files`.
"""

from __future__ import annotations

import logging
import sys

from strata.config import Settings
from strata.tracing.traces import find_trace_id

# What they say of every save is of use only to those who ask for it.
QUIET = ("strata.checkpoint", "strata.storage")


def configure_logging(settings: Settings) -> None:
    """Send Strata's own log to stderr, at the level of STRATA_LOG_LEVEL; a program that logs itself is left alone."""
    logger = logging.getLogger("strata")
    level = settings.strata_log_level or ("info" if settings.job_folder is not None else "warning")
    if logging.getLogger().hasHandlers() or logger.hasHandlers():
        if settings.strata_log_level is not None:
            logger.setLevel(level.upper())
        return
    handler = logging.StreamHandler(sys.stderr)
    # Under the launcher each line gets the rank as its prefix; without one, it has to be in the line.
    rank = "" if settings.job_folder is not None or settings.rank is None else f"[{settings.rank}] "
    handler.setFormatter(TracedFormatter(f"{rank}%(asctime)s strata %(levelname)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    if settings.strata_log_level is None:
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)


class TracedFormatter(logging.Formatter):
    """Lines that end with the id of the trace that they belong to, where there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        """Return the line."""
        line = super().formatMessage(record)
        trace_id = getattr(record, "strata_trace_id", "") or find_trace_id()
        return f"{line} trace_id={trace_id}" if trace_id else line
