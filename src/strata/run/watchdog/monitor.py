"""The thread of a run that looks after things: waits to be named, a stalled step, a stop that others asked for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from strata.errors import StrataError

log = logging.getLogger(__name__)

TICK_S = 0.5


class Monitor:
    """Calls each of its tasks with the time about twice a second, until it is closed."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._tasks: list[Callable[[float], None]] = []
        self._thread = threading.Thread(target=self._run, name="strata-monitor", daemon=True)
        self._thread.start()

    def add(self, *tasks: Callable[[float], None]) -> None:
        """Call these too from now on."""
        self._tasks = [*self._tasks, *tasks]

    def close(self) -> None:
        """Call nothing more."""
        self._ended.set()
        self._tasks = []

    def _run(self) -> None:
        while not self._ended.wait(TICK_S):
            self._call(self._tasks)

    def _call(self, tasks: Sequence[Callable[[float], None]]) -> None:
        for task in tasks:
            try:
                task(time.monotonic())
            except StrataError as error:
                # The coordinator is away, or the run ends: the next tick tries again.
                log.debug("%s", error)
            except RuntimeError as error:
                if not self._ended.is_set():
                    log.debug("the run is ending: %s", error)
