"""Ctrl-C that does not get lost while a command watches a coordinator."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN_S = 0.2


@contextmanager
def insistent_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt after Ctrl-C until this block is left.

    Python raises it once, wherever the main thread is. Where that is a destructor, such as that of a gRPC call, Python
    prints it and goes on, and the command would not end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    was_interrupted = False
    report = sys.unraisablehook

    def interrupt(*_: object) -> NoReturn:
        nonlocal was_interrupted
        was_interrupted = True
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        raise KeyboardInterrupt

    def report_others(unraisable: UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)

    handlers = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    sys.unraisablehook = report_others
    try:
        yield
    finally:
        if was_interrupted:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = report
