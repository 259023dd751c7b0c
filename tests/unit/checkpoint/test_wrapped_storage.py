"""A storage that wraps a local one keeps its speed: what it can do beyond the protocol's core is passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from strata.checkpoint import CheckpointManager
from strata.storage import LocalStorage, MemoryStorage, Storage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Wrapped:
    """Passes everything on, as a storage that counts or limits would."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_wrapped_local_storage_is_read_and_written_in_the_fast_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    for name in ("write_behind", "open_files"):
        plain = getattr(LocalStorage, name)

        def noted(self: LocalStorage, *arguments: Any, name: str = name, plain: Any = plain) -> Any:
            used.append(name)
            return plain(self, *arguments)

        monkeypatch.setattr(LocalStorage, name, noted)
    state = {"w": np.arange(1000.0)}
    with CheckpointManager(storage=Wrapped(LocalStorage(tmp_path))) as manager:
        manager.save(state, 1)
        assert np.array_equal(manager.load().data["w"], state["w"])
    assert used == ["write_behind", "open_files"]


def test_a_storage_without_files_says_so() -> None:
    assert MemoryStorage().local_files is None
