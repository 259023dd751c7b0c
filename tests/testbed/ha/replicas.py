"""Several coordinators on one etcd, each a process that can be killed, frozen and started again on its ports."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.testbed.pace import stretch
from tests.testbed.process import end, free_ports, start
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class Replicas:
    """Coordinators with one journal; ``state`` is its URL. They are known by their place, from 0.

    With ``hosts`` each has an address of its own and all the same ``port`` for gRPC, as behind one name.
    ``trusted`` are the authority and a name of their certificate, if they have one.
    """

    def __init__(
        self,
        folder: Path,
        state: str,
        *options: str,
        hosts: Sequence[str] = ("127.0.0.1",) * 3,
        port: int | None = None,
        token: str | None = None,
        trusted: tuple[Path, str] | None = None,
    ) -> None:
        self._folder = folder
        self._hosts = hosts
        self._trusted = trusted
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._state = state
        self._options = options
        ports = free_ports(3 * len(hosts))
        places = range(0, len(ports), 3)
        self._ports = [(port or ports[place], ports[place + 1], ports[place + 2]) for place in places]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * len(hosts)
        self.addresses = [f"{host}:{ports[0]}" for host, ports in zip(hosts, self._ports, strict=True)]
        self.http_urls = [f"http://{host}:{ports[2]}" for host, ports in zip(hosts, self._ports, strict=True)]
        self.url = f"strata://{','.join(self.addresses)}"

    @contextmanager
    def serving(self) -> Iterator[Replicas]:
        """Run all of them until the block ends; enter it when one leads."""
        try:
            for place in range(len(self._ports)):
                self.start(place)
            self.leader()
            yield self
        finally:
            for process in self.processes:
                if process is not None:
                    end(process)

    def start(self, place: int) -> None:
        """Start one, or start it again."""
        grpc_port, channel_port, http_port = self._ports[place]
        host = self._hosts[place]
        command = [sys.executable, "-m", "strata", "coordinator", "--grpc-address", f"{host}:{grpc_port}"]
        command += ["--channel-address", f"{host}:{channel_port}", "--http-port", str(http_port)]
        command += ["--state", self._state, *self._options]
        with (self._folder / f"coordinator-{place}.log").open("ab") as log:
            self.processes[place] = start(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self, place: int) -> str:
        """Return what one has logged."""
        return (self._folder / f"coordinator-{place}.log").read_text(errors="replace")

    def kill(self, place: int) -> None:
        """Kill -9 of one."""
        process = self.processes[place]
        assert process is not None
        end(process)
        self.processes[place] = None

    def stop(self, place: int) -> int:
        """SIGTERM, and wait until it has ended; return its exit code."""
        process = self.processes[place]
        assert process is not None
        process.terminate()
        code = process.wait(stretch(20))
        self.processes[place] = None
        return code

    def signal(self, place: int, number: signal.Signals) -> None:
        """Send a signal to one, such as SIGSTOP."""
        process = self.processes[place]
        assert process is not None
        process.send_signal(number)

    def describe(self, place: int) -> pb.Description | None:
        """Return what one says of itself; None if it does not answer."""
        with self._open(self.addresses[place]) as channel:
            try:
                stub = stubs.CoordinatorStub(channel)
                return stub.Describe(pb.Describe(), timeout=2, metadata=self._metadata)
            except grpc.RpcError:
                return None

    def _open(self, address: str) -> grpc.Channel:
        if self._trusted is None:
            return grpc.insecure_channel(address)
        ca, name = self._trusted
        credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        return grpc.secure_channel(address, credentials, options=[("grpc.ssl_target_name_override", name)])

    def find_leaders(self) -> list[int]:
        """Return those that say that they lead."""
        told = {place: self.describe(place) for place, process in enumerate(self.processes) if process is not None}
        return [place for place, description in told.items() if description is not None and description.is_leader]

    def leader(self, *, but: int | None = None) -> int:
        """Wait until one leads, and return which."""
        found: list[int] = []

        def is_found() -> bool:
            found[:] = [place for place in self.find_leaders() if place != but]
            return bool(found)

        wait_until(
            is_found,
            lambda: "a leader; the end of the logs:\n" + "\n".join(self.log(p)[-800:] for p in range(len(self._hosts))),
        )
        return found[0]
