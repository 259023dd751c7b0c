"""A coordinator of one's own, for a job on one machine: it is started, started again when it dies, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from strata.client.local_tokens import keeping_local_token
from strata.errors import CoordinatorLostError
from strata.run.launch.worker_process import die_with_parent

log = logging.getLogger(__name__)

# Only for one that starts slowly: one that ends is noticed at once.
READY_S = 120.0
STOP_S = 5.0
RESTART_PAUSE_S = 0.2


class StandaloneCoordinator:
    """A coordinator in a process of its own, on free ports of this machine, from entering the block to leaving it.

    Its journal lies in ``folder``, or in a temporary one. If it dies it is started again on the same ports: its workers
    find it where it was. It has a token of its own, which programs of the same user find by its port; ``is_open`` is
    for a page in a browser, which cannot.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        state: str | None = None,
        options: Sequence[str] = (),
        is_open: bool = False,
    ) -> None:
        """Keep the journal in ``folder``, or at the URL of ``state``, which others may share; those have no token.

        ``options`` are others of ``strata coordinator``.
        """
        self._state = state
        self._options = options
        self._is_open = is_open or state is not None
        self._stack = contextlib.ExitStack()
        self._temporary = tempfile.TemporaryDirectory(prefix="strata-") if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary is not None else folder
        self._ports = (0, 0, 0)
        self._process: Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.restarts = 0

    @property
    def url(self) -> str:
        """Where workers find it."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def http_url(self) -> str:
        """Where its HTTP API is."""
        return f"http://127.0.0.1:{self._ports[2]}"

    @property
    def pid(self) -> int:
        """The process that serves now."""
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except CoordinatorLostError:
            await self._stop()
            raise
        if not self._is_open:
            token = self._token_file.read_text().strip()
            self._stack.enter_context(keeping_local_token(token, self._ports, pid=os.getpid()))
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="coordinator")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeping is not None
        self._stack.close()
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        await self._stop()

    async def _stop(self) -> None:
        """End the process and wait for it, and delete its journal if that is temporary."""
        assert self._process is not None
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._process.wait()
                    break
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _token_file(self) -> Path:
        assert self._folder is not None
        return self._folder / "admin-token"

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            log.warning("the coordinator ended with code %s; it is started again", code)
            await asyncio.sleep(RESTART_PAUSE_S)
            self.restarts += 1
            with contextlib.suppress(CoordinatorLostError):  # it is logged, and tried again
                await self._start()

    async def _start(self) -> None:
        assert self._folder is not None
        grpc_port, channel_port, http_port = self._ports
        state = self._state or f"sqlite://{self._folder / 'journal.db'}"
        command = [sys.executable, "-m", "strata", "coordinator", "--state", state]
        command += ["--grpc-address", f"127.0.0.1:{grpc_port}", "--channel-address", f"127.0.0.1:{channel_port}"]
        command += ["--http-port", str(http_port), *self._options]
        if not self._is_open:
            command += ["--admin-token-file", str(self._token_file)]
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with (self._folder / "coordinator.log").open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *die_with_parent(command), stdin=DEVNULL, stdout=PIPE, stderr=output, start_new_session=True
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = (await self._process.stdout.readline()).decode()
        except TimeoutError:
            line = ""
        ready = re.match(r"ready grpc=(\d+) channel=(\d+) http=(\d+)", line)
        if ready is None:
            tail = (self._folder / "coordinator.log").read_text(errors="replace")[-500:]
            log.error("the coordinator did not start; the end of its log: %s", tail)
            raise CoordinatorLostError(self.url, waited_s=loop.time() - begun_s)
        self._ports = int(ready[1]), int(ready[2]), int(ready[3])
