"""Three coordinators on three etcd nodes, each coordinator in a network namespace of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from strata.client.description import describe
from strata.client.dial import Dial
from strata.errors import StrataError
from tests.ha.etcd_proxy import EtcdProxy
from tests.testbed.ha.etcd import EtcdCluster
from tests.testbed.network.namespaces import Host, Network
from tests.testbed.process import end, start
from tests.testbed.waiting import wait_until

REPLICAS = 3
LEADER_LEASE_S = 3
# A commit names the cursors of all epochs until then, so the journal of a long job holds some 50 MB.
QUOTA_BYTES = 160 << 20
ETCD_OPTIONS = (
    f"--quota-backend-bytes={QUOTA_BYTES}",
    # Otherwise each node replays all that ever filled it when it starts again.
    "--snapshot-count=1000",
    # Only what a fault writes is to fill it.
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=30s",
)
DESCRIBE_S = 2.0
END_S = 60.0


class CoordinatorReplica:
    """One coordinator: a process that can be killed, frozen, ended and started again at the same address."""

    def __init__(self, folder: Path, host: Host, state: str) -> None:
        self.host = host
        self.address = f"{host.ip}:50051"
        self._state = state
        self._log = folder / f"{host.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, if it does not run."""
        if self.process is not None:
            return
        command = [*self.host.prefix, sys.executable, "-m", "strata", "coordinator", "--listen", self.host.ip]
        command += ["--insecure", "--no-http", "--leader-lease", str(LEADER_LEASE_S), "--state", self._state]
        with self._log.open("ab") as log:
            self.process = start(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self.process is not None:
            end(self.process)
            self.process = None

    def stop(self) -> None:
        """Tell it to end, and wait until it has."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(END_S)
            self.process = None

    def freeze(self) -> None:
        """Stop its process, until :meth:`thaw`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def log_lines(self) -> list[str]:
        """Return what all its processes have logged."""
        return self._log.read_text(errors="replace").splitlines()

    def leads(self) -> bool:
        """Whether it says that it leads."""
        with suppress(StrataError):
            return describe(Dial.to(self.address), self.address, name=self.address, timeout_s=DESCRIBE_S).is_leader
        return False


class Site:
    """All of it. ``url`` is what clients are given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.network = Network()
        self.etcd = EtcdCluster(folder, *ETCD_OPTIONS)
        self.replicas: list[CoordinatorReplica] = []
        self.url = ""

    @contextmanager
    def connected(self) -> Iterator[Site]:
        """Make the network, and run etcd and its proxy in it."""
        with ExitStack() as stack:
            stack.enter_context(self.network)
            stack.enter_context(self.etcd.serving())
            targets = [(host, int(port)) for host, _, port in (each.partition(":") for each in self.etcd.endpoints)]
            self.proxy = EtcdProxy(self.network.middle, targets)
            stack.callback(self.proxy.close)
            state = f"etcd://{','.join(self.proxy.endpoints)}/ha"
            hosts = [self.network.add(f"c{number}") for number in range(REPLICAS)]
            self.replicas = [CoordinatorReplica(self._folder, host, state) for host in hosts]
            self.workers = self.network.add("workers")
            self.url = f"strata://{','.join(replica.address for replica in self.replicas)}"
            yield self

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the coordinators until the block ends."""
        try:
            for replica in self.replicas:
                replica.start()
            self.leader()
            yield
        finally:
            for replica in self.replicas:
                replica.thaw()
                replica.kill()

    def failed_workers(self) -> list[str]:
        """Return what the coordinators told of workers that were declared dead."""
        lines = [line for replica in self.replicas for line in replica.log_lines()]
        told = [json.loads(line) for line in lines if '"event": "generation changed"' in line]
        return [each["message"] for each in told if " failed: " in each["message"]]

    def leader(self) -> CoordinatorReplica:
        """Return the coordinator that leads; one is waited for."""
        found: list[CoordinatorReplica] = []

        def look() -> bool:
            found[:] = [replica for replica in self.replicas if replica.process is not None and replica.leads()]
            return bool(found)

        wait_until(look, "a coordinator leads", timeout_s=90.0)
        return found[-1]
