"""Three coordinators on three etcd nodes, on this machine: whatever of it dies is started again."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

from strata.client.description import describe
from strata.client.dial import Dial
from strata.demo.etcd_nodes import etcd_command
from strata.errors import CoordinatorLostError, MissingProgramError
from strata.run.launch.standalone import StandaloneCoordinator
from strata.run.launch.worker_process import die_with_parent

REPLICAS = 3
READY_S = 180.0
STARTING_LOOK_S = 0.1
# Each look opens connections: it must not cost what is measured or shown here.
LOOK_S = 0.5
# A node stays away for so long, so that the others must go on without it.
RESTART_PAUSE_S = 3.0


class ReplicatedCoordinator:
    """Coordinators with one journal in etcd, from entering the block to leaving it.

    ``pid`` and ``etcd_pid`` are the processes that lead now, as far as is known.
    """

    def __init__(self, folder: Path, *, options: Sequence[str] = ()) -> None:
        if shutil.which("etcd") is None:
            raise MissingProgramError("etcd", needed_for="strata demo --ha", install="apt-get install etcd-server")
        self._folder = folder
        ports = _free_ports(2 * REPLICAS)
        self._ports = list(zip(ports[:REPLICAS], ports[REPLICAS:], strict=True))
        self._nodes: list[Process | None] = [None] * REPLICAS
        state = f"etcd://{','.join(f'127.0.0.1:{port}' for port, _ in self._ports)}/demo"
        self._coordinators = []
        for number in range(REPLICAS):
            own = folder / f"coordinator-{number}"
            own.mkdir(parents=True, exist_ok=True)
            self._coordinators.append(StandaloneCoordinator(own, state=state, options=options))
        self._stack = AsyncExitStack()
        self._leader = self._etcd_leader = 0

    @property
    def url(self) -> str:
        """Where workers find the leader: all addresses."""
        return "strata://" + ",".join(each.url.removeprefix("http://") for each in self._coordinators)

    @property
    def http_url(self) -> str:
        """Where the leader's HTTP API is; the others send there."""
        return self._coordinators[self._leader].http_url

    @property
    def pid(self) -> int:
        """The coordinator that leads."""
        return self._coordinators[self._leader].pid

    @property
    def etcd_pid(self) -> int:
        """The etcd node that leads."""
        node = self._nodes[self._etcd_leader]
        assert node is not None
        return node.pid

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for number in range(REPLICAS):
                stack.push_async_callback(_cancel, asyncio.create_task(self._keep_node(number), name=f"etcd-{number}"))
            async with asyncio.timeout(READY_S):
                await _wait_for(self._find_etcd_leader)
                await asyncio.gather(*(stack.enter_async_context(each) for each in self._coordinators))
                await _wait_for(self._find_leader)
            stack.push_async_callback(_cancel, asyncio.create_task(self._look(), name="leaders"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _keep_node(self, number: int) -> None:
        command = die_with_parent(etcd_command(number, self._folder, self._ports))
        command = [shutil.which(word) or word if word == "etcd" else word for word in command]
        try:
            while True:
                with (self._folder / f"etcd-{number}.log").open("ab") as output:
                    node = await asyncio.create_subprocess_exec(
                        *command, stdin=DEVNULL, stdout=output, stderr=output, start_new_session=True
                    )
                self._nodes[number] = node
                await node.wait()
                await asyncio.sleep(RESTART_PAUSE_S)
        finally:
            running = self._nodes[number]
            if running is not None and running.returncode is None:
                running.send_signal(signal.SIGKILL)
                await running.wait()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self._find_etcd_leader)
            await asyncio.to_thread(self._find_leader)

    def _find_leader(self) -> bool:
        dial = Dial.to(self.url)
        # Most often it is who led last.
        for number in sorted(range(REPLICAS), key=lambda number: number != self._leader):
            with suppress(CoordinatorLostError):
                address = self._coordinators[number].url.removeprefix("http://")
                if describe(dial, address, timeout_s=1.0, name=address).is_leader:
                    self._leader = number
                    return True
        return False

    def _find_etcd_leader(self) -> bool:
        for number in sorted(range(REPLICAS), key=lambda number: number != self._etcd_leader):
            port = self._ports[number][0]
            status_url = f"http://127.0.0.1:{port}/v3/maintenance/status"
            # Without the user's http_proxy, which cannot reach this machine's own servers.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with suppress(OSError, ValueError, urllib.error.URLError):
                with opener.open(status_url, data=b"{}", timeout=1.0) as answer:
                    status = json.load(answer)
                if status.get("leader") == status["header"]["member_id"]:
                    self._etcd_leader = number
                    return True
        return False


async def _wait_for(is_found: Callable[[], bool]) -> None:
    while not await asyncio.to_thread(is_found):  # noqa: ASYNC110 - a process tells nobody that it leads
        await asyncio.sleep(STARTING_LOOK_S)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago: etcd's nodes must know each other's before they start."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
