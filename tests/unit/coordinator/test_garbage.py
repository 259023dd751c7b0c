"""The interpreter's collector is kept from holding up a coordinator, and is as it was when that has ended."""

from __future__ import annotations

import asyncio
import gc

import pytest

from strata.coordinator.sharing import garbage
from tests.testbed.pace import stretch


class Knot:
    """An object that only the collector can free."""

    def __init__(self, freed: asyncio.Event) -> None:
        self.self = self
        self._freed = freed

    def __del__(self) -> None:
        self._freed.set()


async def test_old_objects_are_looked_through_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "EVERY_S", 0.01)
    before = gc.get_threshold()
    collecting = asyncio.create_task(garbage.collect_seldom())
    await asyncio.sleep(0)
    assert gc.get_threshold()[2] == garbage.NEVER
    freed = asyncio.Event()
    Knot(freed)
    await asyncio.wait_for(freed.wait(), stretch(10))
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
