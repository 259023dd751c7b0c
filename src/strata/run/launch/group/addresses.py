"""Where the workers of a group meet: an address that the other machines reach, and a free port."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

LOOPBACK = "127.0.0.1"


def find_own_address(target: str) -> str:
    """Return the address of this machine on the way to ``target``; that of this machine alone if there is no way."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the kernel only chooses the interface. Any port does.
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    return LOOPBACK


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def find_free_port(used: set[int]) -> int:
    """Return a port that is free now, and not one of ``used``; the worker that serves there binds it a moment later."""
    while True:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        if port not in used:
            return port
