"""The address of a coordinator, as users and settings write it."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass

DEFAULT_PORT = 50_051
MAX_PORT = 65_535
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what a coordinator that listens everywhere says of itself
SECURE = {"http": "https", "grpc": "grpcs", "strata": "stratas", "ws": "wss"}
"""Each scheme, and its name over TLS."""
SCHEMES = ("http", "grpc", "strata")
MAX_ADDRESSES = 16
_NAME = re.compile(r"[^\s\[\]:/?#@,]+")
_IPV6 = re.compile(r"[^\s\[\]/?#@,]+")
_HOST_PORT = re.compile(rf"(?:\[(?P<ipv6>{_IPV6.pattern})\]|(?P<name>{_NAME.pattern}))(?::(?P<port>[0-9]{{1,5}}))?")
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
    addresses = tuple(dict.fromkeys(_parse_part(part, url) for part in parts))
    return Endpoints(addresses, is_secure)


def parse_address(url: str) -> str:
    """Return host:port of a coordinator's URL that names one address."""
    endpoints = parse_endpoints(url)
    if len(endpoints.addresses) > 1:
        raise ValueError(f"coordinator {url!r} has several addresses; give one")
    return endpoints.first


def _parse_part(part: str, url: str) -> str:
    try:
        return parse_host_port(part, default_port=DEFAULT_PORT)
    except ValueError as error:
        raise ValueError(f"coordinator {url!r}: {error}; {_USE}") from error


def parse_host_port(text: str, *, default_port: int) -> str:
    """Return where to connect to as ``host:port``, the host in lower case; raise ValueError with the problem alone."""
    host, port = _split(text, default_port)
    if port == 0:
        raise ValueError("nobody is reached at port 0")
    return join_address(host.lower(), default_port if port is None else port)


def parse_host(text: str) -> str:
    """Return a host to listen on, without the brackets of an IPv6 address; raise ValueError for one with a port."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not (_is_ipv6(bare) or (bare == text and _NAME.fullmatch(bare))):
        raise ValueError(f"host {text!r}; use a name or an address without a port, such as 0.0.0.0 or ::1")
    return bare


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, or raise ValueError. An IPv6 address needs brackets: ``[::1]:50051``.

    Without them its end could be a port. Port 0 is a free one, for who listens.
    """
    try:
        host, port = _split(address, DEFAULT_PORT)
        if port is None:
            raise ValueError("it has no port")  # noqa: TRY301 - reported below
    except ValueError as error:
        example = "use host:port, such as 127.0.0.1:50051 or [::1]:50051"
        raise ValueError(f"address {address!r}: {error}; {example}") from error
    return host, port


def _split(text: str, example_port: int) -> tuple[str, int | None]:
    """Return host and port of ``host``, ``host:port``, ``[IPv6]`` or ``[IPv6]:port``: the one place that knows."""
    found = _HOST_PORT.fullmatch(text)
    if found is None or (found["ipv6"] is not None and not _is_ipv6(found["ipv6"])):
        host, _, port = text.rpartition(":")
        if _is_ipv6(host) and port.isascii() and port.isdigit():
            raise ValueError(f"an IPv6 address needs brackets, such as [{host}]:{port}")
        if _is_ipv6(text):
            raise ValueError(f"an IPv6 address needs brackets, such as [{text}]:{example_port}")
        raise ValueError("it is no host with a port")
    port_number = None if found["port"] is None else int(found["port"])
    if port_number is not None and port_number > MAX_PORT:
        raise ValueError(f"port {port_number} is above {MAX_PORT}")
    return found["ipv6"] or found["name"], port_number


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


def _is_ipv6(host: str) -> bool:
    return ":" in host and _IPV6.fullmatch(host) is not None and _is_number(host)


def reachable(url: str, address: str) -> str:
    """Return a URL as it is reached from here: a host that means "this machine" is the coordinator's machine."""
    scheme, _, rest = url.partition("://")
    where, slash, path = rest.partition("/")
    host, port = split_address(where)
    known, _ = split_address(address)
    if host in _ANYWHERE or (is_loopback(host) and not is_loopback(known)):
        host = known
    return f"{scheme}://{join_address(host, port)}{slash}{path}"


def proxy_option() -> tuple[str, int]:
    """Return the gRPC option to connect directly, unless ``grpc_proxy`` names a proxy for gRPC.

    gRPC would hand every connection to http_proxy, those to this machine included. That variable is set for the way
    out of a cluster, and coordinators and etcd are within it.
    """
    return "grpc.enable_http_proxy", int(bool(os.environ.get("grpc_proxy")))  # noqa: SIM112 - as gRPC spells it
