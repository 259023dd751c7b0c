"""What stands between coordinators and etcd: it passes bytes on, at once or late."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class EtcdProxy:
    """Listens on an address for each etcd node. ``delay_s`` is added to all that passes, each way."""

    def __init__(self, ip: str, targets: list[tuple[str, int]]) -> None:
        self.delay_s = 0.0
        self._ip = ip
        self._targets = targets
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.endpoints: list[str] = []
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="etcd proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """End it, with all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        passing = asyncio.all_tasks() - {asyncio.current_task()}
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _listen(self) -> None:
        for host, port in self._targets:

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = host, port: int = port
            ) -> None:
                with suppress(OSError, asyncio.CancelledError):
                    try:
                        far_reader, far_writer = await asyncio.open_connection(host, port)
                    except OSError:
                        writer.close()
                        return
                    await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

            server = await asyncio.start_server(serve, self._ip, 0)
            self._servers.append(server)
            self.endpoints.append(f"{self._ip}:{server.sockets[0].getsockname()[1]}")

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)
