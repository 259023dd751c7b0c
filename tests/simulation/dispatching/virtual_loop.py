"""An event loop in virtual time: nothing waits, and what runs in a thread is done at once after a while."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from strata.clock import ManualClock


class _VirtualSelector(selectors.DefaultSelector):
    """Lets time pass instead of waiting for a socket."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise ViolationError("everything waits, and nothing will ever happen")
        self._clock.advance(max(0.0, timeout))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in the order of their times; ``thread_s`` says how long the next call in a thread takes."""

    def __init__(self, clock: ManualClock, thread_s: Callable[[], float]) -> None:
        self._clock = clock
        self._thread_s = thread_s
        super().__init__(_VirtualSelector(clock))

    def time(self) -> float:
        return self._clock.monotonic_s()

    def end_tasks(self) -> None:
        """Cancel what still runs after a violation, so that nothing of it is left for the garbage collector."""
        running = asyncio.all_tasks(self)
        for task in running:
            task.cancel()
        if running:
            self.run_until_complete(asyncio.wait(running))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # no thread runs
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            # A thread that was started goes on, also when nobody waits for it any more.
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - passed on, as by an executor
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self._thread_s(), run)
        return future
