"""What keeps a worker in its job: the driver and the keep-alive process, on the client's event loop.

It holds no reference to the :class:`strata.client.client.Client`, so that a client that nobody holds can be collected,
and its worker leaves the job instead of beating on for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from strata.client.driver import Driver
from strata.client.worker.heartbeats import BEATS_PER_LEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.client.keep_alive import KeepAliveProcess
    from strata.cluster import commands as c
    from strata.cluster.events import Effect


class MembershipLoop:
    """One worker's driver, and the process that speaks for it. Made and run on one event loop."""

    def __init__(
        self,
        url: str,
        worker: c.RegisterWorker,
        *,
        on_effect: Callable[[Effect], None],
        keep_alive: KeepAliveProcess | None,
    ) -> None:
        self._keep_alive = keep_alive
        self.driver = Driver(url, worker, on_effect=on_effect, on_join=self._tick)

    async def run(self) -> None:
        """Keep the worker in its job until cancelled, or refused for good."""
        ticking = asyncio.get_running_loop().create_task(self._tick_for_ever())
        try:
            await self.driver.run()
        finally:
            ticking.cancel()
            if self._keep_alive is not None:
                self._keep_alive.close()

    async def _tick_for_ever(self) -> None:
        while True:
            self._tick()
            registered = self.driver.protocol.registered
            lease_s = registered.lease_s if registered is not None else 1.0
            await asyncio.sleep(lease_s / BEATS_PER_LEASE / 2)

    def _tick(self) -> None:
        """Let the keep-alive process know that this thread runs; it speaks for the worker when it does not."""
        if self._keep_alive is None:
            return
        protocol = self.driver.protocol
        # Only where the channel is open: the small process does not speak gRPC.
        if protocol.registered is not None and self.driver.kind == "channel":
            driver = self.driver
            self._keep_alive.speak_for(protocol.worker, driver.channels, driver.dial, protocol.registered.lease_s)
        self._keep_alive.tick()
