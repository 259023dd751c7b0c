"""The records of a name: several coordinators may stand behind one, as behind a headless service of Kubernetes."""

from __future__ import annotations

import ipaddress
import socket

from strata.address import join_address, split_address


def find_records(address: str) -> tuple[str, ...]:
    """Return the addresses of a name with several records of one family; none if there is nothing to choose from.

    One IPv4 and one IPv6 record are the same machine, and left to whoever connects. A name that is not known now is
    left to it too: it says best why it cannot connect.
    """
    host, port = split_address(address)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return ()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    for family in (socket.AF_INET, socket.AF_INET6):
        hosts = dict.fromkeys(str(place[0]) for kind, _, _, _, place in found if kind == family)
        if len(hosts) > 1:
            return tuple(join_address(host, port) for host in hosts)
    return ()
