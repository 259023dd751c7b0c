"""Two processes that save the same step, such as a run that was started twice: what one committed stays as it is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, SavePolicy
from strata.errors import CheckpointExistsError
from strata.storage import LocalStorage, MemoryStorage
from tests.unit.checkpoint.states import same

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

CHUNKS = 8 * (4 << 20) // 8


class _Late:
    """Lets another save of the step go first, after this one has chosen a name for its part."""

    before: Callable[[], Any] | None = None

    async def _let_other_go(self) -> None:
        before, self.before = self.before, None
        if before is not None:
            await asyncio.to_thread(before)


class LateLocal(_Late, LocalStorage):
    async def write_behind(self, path: str, data: Any, wait_ready: Any) -> None:
        await self._let_other_go()
        await super().write_behind(path, data, wait_ready)

    @asynccontextmanager
    async def writer(self, path: str, *, size_bytes: int | None = None) -> AsyncIterator[Any]:
        await self._let_other_go()
        async with super().writer(path, size_bytes=size_bytes) as writer:
            yield writer


class LateMemory(_Late, MemoryStorage):
    async def write(self, path: str, data: Any) -> None:
        # An empty object is the claim of a name, which is one atomic step in a real store.
        if len(data):
            await self._let_other_go()
        await super().write(path, data)

    @asynccontextmanager
    async def writer(self, path: str, *, size_bytes: int | None = None) -> AsyncIterator[Any]:
        await self._let_other_go()
        async with super().writer(path, size_bytes=size_bytes) as writer:
            yield writer


@pytest.fixture(params=["local", "memory"])
def late(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return LateLocal(tmp_path) if request.param == "local" else LateMemory()


@pytest.mark.parametrize("kind", ["tree", "bytes"])
def test_a_save_that_was_overtaken_does_not_replace_what_the_other_committed(late: Any, kind: str) -> None:
    def state(value: int) -> Any:
        return {"w": np.full(1000, value)} if kind == "tree" else bytes([value]) * 1000

    with CheckpointManager(storage=late) as first, CheckpointManager(storage=late) as second:
        late.before = lambda: first.save(state(1), 7)
        with pytest.raises(CheckpointExistsError):
            second.save(state(2), 7)
        assert same(second.load(7).data, state(1))
        assert second.load().skipped == []


def test_an_overtaken_delta_does_not_replace_what_the_other_committed(late: Any) -> None:
    def state(value: float) -> dict[str, Any]:
        weights = np.zeros(CHUNKS)
        weights[0] = value
        return {"w": weights}

    policy = SavePolicy(delta=True)
    with (
        CheckpointManager(storage=late, saving=policy) as first,
        CheckpointManager(storage=late, saving=policy) as second,
    ):
        first.save(state(0), 1)
        second.load()
        late.before = lambda: first.save(state(1), 7)
        with pytest.raises(CheckpointExistsError):
            second.save(state(2), 7)
        assert same(second.load(7).data, state(1))


def test_an_unchanged_delta_leaves_no_empty_file(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, saving=SavePolicy(delta=True)) as manager:
        manager.save({"w": np.zeros(CHUNKS), "step": 1}, 1)
        with pytest.warns(UserWarning, match="bit-identical"):
            manager.save({"w": np.zeros(CHUNKS), "step": 2}, 2)
        assert manager.load().data["step"] == 2
    assert [each.name for each in (tmp_path / "default/checkpoints/step_2").iterdir()] == ["metadata.json"]
