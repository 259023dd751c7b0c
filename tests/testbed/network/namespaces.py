"""A small network of its own: hosts in network namespaces on one bridge, between any two of which it can be cut.

A cut is silent, as it is when a switch fails: packets vanish, and neither side is told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.testbed.pace import stretch

# Of the networks for private use; the third number is of this process.
SUBNET = "10.213"
# Nobody has it: frames to it are dropped by whoever gets them.
NO_MAC = "02:00:00:00:00:00"


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one address."""

    name: str
    namespace: str
    ip: str

    @property
    def prefix(self) -> list[str]:
        """What a command line begins with that runs there; the process is the command itself, with its signals."""
        return ["ip", "netns", "exec", self.namespace]


class Network:
    """A bridge and its hosts. Leaving the block takes all of it away; this machine is a host too, named ``here``."""

    def __init__(self) -> None:
        self._tag = f"st{os.getpid():x}"
        net = f"{SUBNET}.{os.getpid() % 250 + 1}"
        self._net = net
        self.hosts: dict[str, Host] = {}
        self.here = f"{net}.1"
        # For what stands between hosts: a cut from it leaves the way to this machine open.
        self.middle = f"{net}.2"
        self._cuts: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        _remove_left_overs()
        _ip("link", "add", self._tag, "type", "bridge")
        _ip("address", "add", f"{self.here}/24", "dev", self._tag)
        _ip("address", "add", f"{self.middle}/24", "dev", self._tag)
        _ip("link", "set", self._tag, "up")
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self._tag)

    def add(self, name: str) -> Host:
        """Add a host."""
        number = len(self.hosts) + 10
        host = Host(name, f"{self._tag}-{name}", f"{self._net}.{number}")
        near, far = f"{self._tag}n{number}", f"{self._tag}f{number}"
        _ip("netns", "add", host.namespace)
        _ip("link", "add", near, "type", "veth", "peer", "name", far)
        _ip("link", "set", far, "netns", host.namespace)
        _ip("link", "set", near, "master", self._tag, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("link", "set", far, "name", "eth0"),
            ("address", "add", f"{host.ip}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            _ip("-n", host.namespace, *command)
        self.hosts[name] = host
        return host

    def cut(self, name: str, ip: str) -> None:
        """Let nothing through from a host to an address any more, and from a host with it to this one."""
        for one, other in self._ways(name, ip):
            self._cuts.add((one, other))
            _ip("-n", one, "neighbour", "replace", other, "lladdr", NO_MAC, "dev", "eth0", "nud", "permanent")

    def heal(self) -> None:
        """Mend every cut."""
        for namespace, ip in self._cuts:
            _ip("-n", namespace, "neighbour", "del", ip, "dev", "eth0")
        self._cuts.clear()

    def _ways(self, name: str, ip: str) -> list[tuple[str, str]]:
        host = self.hosts[name]
        back = [(each.namespace, host.ip) for each in self.hosts.values() if each.ip == ip]
        return [(host.namespace, ip), *back]


def why_not() -> str | None:
    """Return why no network can be made here; None if one can."""
    if shutil.which("ip") is None:
        return "network namespaces need the program ip: apt-get install iproute2"
    name = f"st{os.getpid():x}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=stretch(30))
    if made.returncode:
        return f"network namespaces are not allowed here ({made.stderr.strip()}); run it as root"
    _ip("netns", "del", name)
    return None


def _remove_left_overs() -> None:
    """Take away what a killed run has left."""
    for link in Path("/sys/class/net").glob("st*"):
        tag = link.name
        if (link / "bridge").exists():
            with suppress(ValueError):
                if not Path(f"/proc/{int(tag.removeprefix('st'), 16)}").exists():
                    _remove(tag)


def _remove(tag: str) -> None:
    for path in Path("/run/netns").glob(f"{tag}-*"):
        # Its end of each wire goes with it, and the wire with that.
        _ip("netns", "del", path.name)
    _ip("link", "del", tag)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=stretch(30))
