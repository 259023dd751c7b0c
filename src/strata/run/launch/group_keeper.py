"""Becomes the program of a worker, after it has left a process behind that kills the worker's group with the launcher.

A death signal ends the worker when its launcher dies, but not what the worker has started. So one small process of the
same group waits for the end of the launcher, and then kills the group, itself included. As it is in the group, no other
group can have its number meanwhile. A child that makes a group or session of its own is left alone.

The launcher runs this file as a script: ``python group_keeper.py LAUNCHER_PID PROGRAM ARGUMENT...``. It imports nothing
of Strata, because every start of a worker waits for it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the program, unless the launcher is gone already."""
    launcher, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    start_keeper(launcher)
    # A launcher that died before the death signal was set is noticed by its number.
    if os.getppid() == launcher:
        try:
            os.execvp(command[0], command)  # noqa: S606 - to run what the user names is its purpose
        except OSError as error:
            # As shells do: 127 for what is not there, such as the interpreter of a script, else 126.
            sys.stderr.write(f"cannot run {command[0]}: {error.strerror}; check its first line and permissions\n")
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def start_keeper(launcher: int) -> None:
    """Start the process that waits for the end of the launcher; without it where the kernel cannot tell of that."""
    try:
        launcher_fd = os.pidfd_open(launcher)
    except (AttributeError, OSError):
        return
    # Still the parent, so the number was its own when it was opened. And only a group of its own is killed.
    if os.getppid() == launcher and os.getpgrp() == os.getpid():
        child = os.fork()
        if not child:
            # Forked twice, it is no child of the worker: a script that waits for all its children would wait for it.
            if not os.fork():
                kill_group_after(launcher_fd)
            os._exit(0)
        os.waitpid(child, 0)
    os.close(launcher_fd)


def kill_group_after(process_fd: int) -> NoReturn:
    """Wait for the end of a process, then kill the group that this one is in. No signal to the group ends it before."""
    for number in signal.valid_signals():
        with suppress(OSError, ValueError):  # SIGKILL and SIGSTOP, and those that the C library keeps
            signal.signal(number, signal.SIG_IGN)
    # It must not hold the output of the worker open, nor a file system that is to be unmounted.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.chdir("/")
    ended = select.poll()
    ended.register(process_fd, select.POLLIN)
    ended.poll()
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
