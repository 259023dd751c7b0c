"""Lazy saves: whether the next save of a run may be staged while training goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from strata.errors import StateChangedError
from strata.run.loop.state import State, find_optimizers

if TYPE_CHECKING:
    from strata.checkpoint import CheckpointManager, SaveHandle

log = logging.getLogger(__name__)


class LazySaves:
    """Saves lazily wherever a torch optimizer is in the state, until someone else changes what it manages."""

    def __init__(self, checkpoints: CheckpointManager) -> None:
        self._checkpoints = checkpoints
        self._is_safe = True

    def allow(self, state: State, last: SaveHandle | None) -> bool:
        """Return whether the next save may be lazy, and let its optimizers wait for it if so."""
        if last is not None and isinstance(error := last.error(), StateChangedError):
            log.warning("from now on, saves are staged before they return: %s", error)
            self._is_safe = False
        optimizers = find_optimizers(state) if self._is_safe else []
        self._checkpoints.watch(*optimizers)
        return bool(optimizers)
