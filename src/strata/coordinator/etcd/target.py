"""Where etcd is and how to log in: a URL without secrets, and the rest from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from strata.address import parse_host_port
from strata.client.credentials import Credentials

DEFAULT_PORT = 2379
EXPECTED = "use etcd://host:2379,host:2379/prefix, or etcds:// with TLS"
_PEM = ("STRATA_ETCD_CA", "STRATA_ETCD_CERT", "STRATA_ETCD_KEY")
_FILES = ("STRATA_ETCD_PASSWORD_FILE", *_PEM)


@dataclass(frozen=True, kw_only=True)
class EtcdTarget:
    """The endpoints of one etcd cluster, a prefix for all keys, and how to be let in."""

    endpoints: tuple[str, ...]
    prefix: str
    is_secure: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        scheme = "etcds" if self.is_secure else "etcd"
        return f"{scheme}://{','.join(self.endpoints)}/{self.prefix}"


def is_etcd(url: str) -> bool:
    """Whether a URL of a journal names etcd."""
    return url.startswith(("etcd://", "etcds://"))


def parse_target(url: str, environment: Mapping[str, str]) -> EtcdTarget:
    """Return the target of a URL, or raise ValueError that says what is wrong with it."""
    endpoints, prefix = _split(url)
    files = {name: _read(name, environment[name]) for name in _FILES if environment.get(name)}
    try:
        password = files.get("STRATA_ETCD_PASSWORD_FILE", b"").decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("STRATA_ETCD_PASSWORD_FILE holds no text in UTF-8") from None
    user = environment.get("STRATA_ETCD_USER", "")
    if bool(user) != bool(password):
        raise ValueError("set both STRATA_ETCD_USER and STRATA_ETCD_PASSWORD_FILE, or neither")
    if ("STRATA_ETCD_CERT" in files) != ("STRATA_ETCD_KEY" in files):
        raise ValueError("set both STRATA_ETCD_CERT and STRATA_ETCD_KEY, or neither")
    # Of files that cannot be used gRPC says nothing but that nobody answers.
    ca, cert, key = (Path(environment[name]).expanduser() if name in files else None for name in _PEM)
    Credentials(ca=ca, cert=cert, key=key).ssl_context()
    return EtcdTarget(
        endpoints=endpoints,
        prefix=prefix,
        is_secure=url.startswith("etcds://"),
        user=user,
        password=password,
        ca=files.get("STRATA_ETCD_CA"),
        certificate=files.get("STRATA_ETCD_CERT"),
        key=files.get("STRATA_ETCD_KEY"),
    )


def check_url(url: str) -> None:
    """Raise ValueError if a URL names no place in etcd; files and secrets are not looked at."""
    _split(url)


def _split(url: str) -> tuple[tuple[str, ...], str]:
    if "@" in url:  # before any error that shows the URL
        raise ValueError("a password does not belong into a URL; set STRATA_ETCD_USER and STRATA_ETCD_PASSWORD_FILE")
    # Not with urlsplit: with the fix of CVE-2025-0938 it refuses brackets behind the first of several hosts.
    scheme, _, rest = url.partition("://")
    hosts, _, path = rest.partition("/")
    prefix = path.strip("/")
    if scheme not in ("etcd", "etcds") or not prefix or not rest.isprintable() or "?" in rest or "#" in rest:
        raise ValueError(f"state {url!r}; {EXPECTED}")
    return tuple(_endpoint(url, each) for each in hosts.split(",")), prefix


def _endpoint(url: str, text: str) -> str:
    if not text:
        raise ValueError(f"state {url!r} names no host; {EXPECTED}")
    try:
        return parse_host_port(text, default_port=DEFAULT_PORT)
    except ValueError as error:
        raise ValueError(f"state {url!r}: {error}; {EXPECTED}") from error


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"{name}={path!r} cannot be read: {error.strerror}") from error
