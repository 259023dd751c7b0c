"""Whether work lets other threads run, without depending on how fast the machine is or how loaded."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOWEST = 19


@contextmanager
def no_forced_switches() -> Iterator[None]:
    """Let threads run until they give up the interpreter by themselves."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1_000.0)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def runs_beside(work: Callable[[], object], *, attempts: int) -> bool:
    """Whether another thread ever runs while one thread repeats this work, up to so many times.

    One call may be over before the machine wakes the other thread, so the work is repeated until it was seen to, at the
    lowest priority: the thread that is woken goes first, whatever else the machine does. Work that keeps the
    interpreter is never seen to, however often it is repeated and however loaded the machine is.
    """
    seen: list[bool] = []
    done: list[bool] = []

    def repeat() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
        for _ in range(attempts):
            work()
            if seen:
                break
        done.append(True)

    with no_forced_switches():
        thread = threading.Thread(target=repeat)
        thread.start()
        is_beside = not done
        seen.append(True)
        thread.join()
    return is_beside
