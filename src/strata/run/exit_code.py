"""The exit code of a stopped worker: 143, also where its script hides ``Stopped`` and returns as if it had finished."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from typing import NoReturn

from strata.run.exits import PREEMPTED, Stopped
from strata.run.job_folder import JobFolder


class ExitCode:
    """What one worker's process ends with; make it before anything registers an atexit function that it must not skip.

    It changes nothing until the worker is stopped. From then on the code is 143, unless the script marks the stop as
    handled or ends with an exception of its own. Only the process that joined has it: a forked child has not.
    """

    def __init__(self, folder: JobFolder, *, worker_id: str) -> None:
        self._folder = folder
        self._worker_id = worker_id
        self._pid = os.getpid()
        self._stopped: Stopped | None = None
        self._error_before: object = None
        atexit.register(self._settle)

    def note_stop(self, stopped: Stopped) -> None:
        """Let the process exit with 143; the launcher sees it even if no atexit function is called."""
        self._stopped, self._error_before = stopped, _last_error()
        self._folder.note_stop(worker_id=self._worker_id)

    def note_over(self, *, is_finished: bool) -> None:
        """Let the launcher know that the training is over, so that what follows may take its time."""
        self._folder.note_over(worker_id=self._worker_id, is_finished=is_finished)

    def discard_over(self) -> None:
        """Let the launcher know that this process trains again."""
        self._folder.discard_over(worker_id=self._worker_id)

    def _settle(self) -> None:
        if self._stopped is None or self._pid != os.getpid():
            return
        if self._stopped.is_handled:
            self._folder.discard_stop(worker_id=self._worker_id)
        elif _last_error() is self._error_before:
            _exit_with(PREEMPTED)


def _last_error() -> object:
    """Return the exception that ended the script; Python sets it before atexit functions run, not for SystemExit."""
    return getattr(sys, "last_value", None)


def _exit_with(code: int) -> None:
    """Let this process end with a code, after everything else that happens at its end."""
    if not _is_glibc():
        _exit_now(code)
    libc = ctypes.CDLL(None)
    register = getattr(libc, "__cxa_atexit")
    # Files are flushed when the interpreter is finalized, and libraries clean up in exit(), both after this. In glibc a
    # second exit() calls the functions that the first has not called yet, and ends with its own code.
    if register(ctypes.cast(libc.exit, ctypes.c_void_p), ctypes.c_void_p(code), None) != 0:
        _exit_now(code)


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False


def _exit_now(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
