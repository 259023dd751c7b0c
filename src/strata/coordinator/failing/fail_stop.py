"""Fail-stop: an error that nothing handles ends the coordinator, with one critical line and an exit code of its own.

A durable journal makes a restart cheap. A process that lives on without one of its tasks, or with a journal that it
cannot trust, answers some and leaves others waiting for ever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from strata.errors import StrataError

log = logging.getLogger(__name__)

T = TypeVar("T")
EXIT_CODE = 70
# So many places are named, the innermost first: as much of a traceback as belongs into one line.
MAX_PLACES = 4
_PACKAGE = Path(__file__).parents[2]


class FailStop:
    """Owns the tasks and threads of one coordinator; the first error that one of them does not handle is the last.

    ``end`` is called once, by whichever thread failed, when the line is logged. Without it the owner of the coordinator
    finds the error in :attr:`failure`.
    """

    def __init__(self, end: Callable[[], object] = lambda: None) -> None:
        self._end = end
        self._lock = threading.Lock()
        self.failure: BaseException | None = None
        """What ended the coordinator; None while it is well."""

    def own(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run a task of the running loop whose error ends the coordinator."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._note_end)
        return task

    def guard(self, work: Callable[[], None], *, name: str) -> Callable[[], None]:
        """Return what a thread is to run, so that its error ends the coordinator."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is ends the coordinator
                self.fail(error, where=f"the thread {name!r}")

        return run

    def fail(self, error: BaseException, *, where: str) -> None:
        """End the coordinator, from any thread."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
        log.critical("%s", describe_failure(error, where=where))
        log.debug("the traceback of that:", exc_info=error)
        self._end()

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error, where=f"the task {task.get_name()!r}")

    def watch_process(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let what reaches no task's owner end the coordinator too: callbacks of the loop, and any thread."""
        loop.set_exception_handler(self._note_loop)
        threading.excepthook = self._note_thread

    def _note_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # What breaks with one connection ends that connection, and its other side decides when. A lack of files or
        # memory while one is accepted costs that one.
        is_connection = any(each in context for each in ("transport", "protocol", "socket"))
        if error is None or is_connection:
            log.warning("%s%s", context.get("message"), "" if error is None else f": {type(error).__name__}: {error}")
        else:
            self.fail(error, where=f"a callback ({context.get('message')})")

    def _note_thread(self, arguments: threading.ExceptHookArgs) -> None:
        error, thread = arguments.exc_value, arguments.thread
        if error is not None and not isinstance(error, SystemExit):
            self.fail(error, where=f"the thread {'?' if thread is None else thread.name!r}")


def exit_process() -> None:
    """End this process as a kill would: nothing that has failed is waited for, and the journal needs no goodbye."""
    logging.shutdown()
    os._exit(EXIT_CODE)


def describe_failure(error: BaseException, *, where: str) -> str:
    """Return one line: what happened, to what, and what to do."""
    if isinstance(error, StrataError):
        return f"the coordinator ends, because {where} failed: {error}"
    places = [
        f"{_short(frame.filename)}:{frame.lineno} in {frame.name}"
        for frame in reversed(traceback.extract_tb(error.__traceback__))
    ]
    at = f", at {' < '.join(places[:MAX_PLACES])}" if places else ""
    return (
        f"the coordinator ends, because {where} failed with an unexpected {type(error).__name__}: {error}{at}. "
        "Start it again: all that was acknowledged is in the journal. Please report this line"
    )


def _short(name: str) -> str:
    path = Path(name)
    return str(path.relative_to(_PACKAGE.parent)) if path.is_relative_to(_PACKAGE) else path.name
