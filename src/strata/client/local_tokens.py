"""Tokens of coordinators that this user's own programs started on this machine, found by their port.

``strata run --standalone`` makes a token for its coordinator. Its workers, and whatever tool the same user points at
that port, find it here without anything being set; other users of the machine cannot read it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from strata.address import is_loopback, split_address

FOLDER = Path("~/.local/state/strata/tokens")


def find_local_token(address: str) -> str | None:
    """Return the token for a port of this machine, if one of this user's programs serves there."""
    host, port = split_address(address)
    if not is_loopback(host):
        return None
    try:
        token, pid = _path(port).read_text().split()
        # A file that was left behind is of a coordinator that is gone; another one may have its port.
        os.kill(int(pid), 0)
    except (OSError, ValueError, RuntimeError):  # the last of a user without a home
        return None
    return token


@contextmanager
def keeping_local_token(token: str, ports: Sequence[int], *, pid: int) -> Iterator[None]:
    """Let programs of this user find the token of some ports, as long as the block lasts and the process lives."""
    folder = FOLDER.expanduser()
    for each in (*reversed(folder.parents), folder):
        each.mkdir(mode=0o700, exist_ok=True)
    try:
        for port in ports:
            fresh = folder / f".{port}.{os.getpid()}"
            fresh.unlink(missing_ok=True)
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "w") as writing:
                writing.write(f"{token}\n{pid}\n")
            fresh.replace(_path(port))
        yield
    finally:
        for port in ports:
            _path(port).unlink(missing_ok=True)


def _path(port: int) -> Path:
    return FOLDER.expanduser() / str(port)
