"""The address of a coordinator, as users and settings write it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_PORT = 50_051
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what a coordinator that listens everywhere says of itself
SECURE = {"http": "https", "grpc": "grpcs", "strata": "stratas", "ws": "wss"}
"""Each scheme, and its name over TLS."""
SCHEMES = ("http", "grpc", "strata")
MAX_ADDRESSES = 16
_USE = "use http://host:50051 or host:50051, or with TLS https://host:50051"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where coordinators of one cluster are reached, in the order of the URL; all of them with TLS, or none."""

    addresses: tuple[str, ...]
    is_secure: bool

    @property
    def first(self) -> str:
        """The first address; the only one unless several coordinators serve the cluster."""
        return self.addresses[0]

    def __str__(self) -> str:
        return f"{'grpcs' if self.is_secure else 'grpc'}://{','.join(self.addresses)}"


def parse_endpoints(url: str) -> Endpoints:
    """Return the addresses of a coordinator's URL: scheme://host:port,host:port or host:port itself.

    The schemes are http, grpc and strata, and with TLS https, grpcs and stratas.
    """
    if "@" in url:
        # Not shown: what stands before it may be a secret.
        raise ValueError(f"coordinator ...@{url.rpartition('@')[2]}: no user or token goes into a URL; {_USE}")
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "grpc", url
    parts = rest.removesuffix("/").split(",")
    is_secure = scheme.lower() in {SECURE[each] for each in SCHEMES}
    if not (is_secure or scheme.lower() in SCHEMES) or len(parts) > MAX_ADDRESSES:
        raise ValueError(f"coordinator {url!r}; {_USE}")
    addresses = tuple(dict.fromkeys(_parse_host_port(part, url) for part in parts))
    return Endpoints(addresses, is_secure)


def parse_address(url: str) -> str:
    """Return host:port of a coordinator's URL that names one address."""
    endpoints = parse_endpoints(url)
    if len(endpoints.addresses) > 1:
        raise ValueError(f"coordinator {url!r} has several addresses; give one")
    return endpoints.first


def _parse_host_port(part: str, url: str) -> str:
    try:
        split = urlsplit(f"//{part}")
        host, port = split.hostname, split.port
    except ValueError as error:  # a port that is no number up to 65535, or a bracket that is not closed
        raise ValueError(f"coordinator {url!r}: {error}; {_USE}") from error
    if not host or port == 0 or split.path or split.query or split.fragment:
        raise ValueError(f"coordinator {url!r}; {_USE}")
    return join_address(host, DEFAULT_PORT if port is None else port)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, or raise ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"address {address!r}; use host:port, such as 127.0.0.1:50051")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, so that no network is between."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_on_certificate(host: str, name: str) -> str:
    """Return what must stand on the certificate of a host that a coordinator names, which proved itself as ``name``.

    A replica such as a pod is known by its number, which no certificate has: then it must have that name as well.
    """
    known = split_address(name)[0]
    return known if _is_number(host) and not _is_number(known) else host


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def reachable(url: str, address: str) -> str:
    """Return a URL as it is reached from here: a host that means "this machine" is the coordinator's machine."""
    scheme, _, rest = url.partition("://")
    where, slash, path = rest.partition("/")
    host, port = split_address(where)
    known, _ = split_address(address)
    if host in _ANYWHERE or (is_loopback(host) and not is_loopback(known)):
        host = known
    return f"{scheme}://{join_address(host, port)}{slash}{path}"
