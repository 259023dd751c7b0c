"""Where the workers of a group meet: an address that the other machines reach, and a free port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LOOPBACK = "127.0.0.1"
# An address that no machine has: the way to it is the one to all other networks.
OUTSIDE = "192.0.2.1"


def find_own_address(target: str) -> str:
    """Return the address of this machine on the way to ``target``; that of this machine alone if there is no way."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the kernel only chooses the interface. Any port does.
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    return LOOPBACK


def find_free_port(used: set[int]) -> int:
    """Return a port that is free now, and not one of ``used``; the worker that serves there binds it a moment later."""
    while True:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        if port not in used:
            return port


@contextmanager
def reserve_port(used: set[int]) -> Iterator[int]:
    """Keep a port, which is not one of ``used``, from other programs until the block ends."""
    with socket.socket() as holder:
        while True:
            port = find_free_port(used)
            with suppress(OSError):  # another program was faster
                holder.bind(("", port))
                break
        used.add(port)
        yield port
