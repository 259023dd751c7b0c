"""What a worker tells of its saves: those that ended last, with their phases."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from strata.cluster.values import SaveNote

if TYPE_CHECKING:
    from strata.checkpoint import SaveHandle

# A heartbeat carries so many; more do not end between two of them, or are not missed.
KEPT = 4


class SaveNotes:
    """The saves of one worker that are under way, and the last that ended."""

    def __init__(self) -> None:
        self._open: dict[SaveHandle, float] = {}
        self._ended: deque[SaveNote] = deque(maxlen=KEPT)

    def add(self, handle: SaveHandle) -> None:
        """Follow a save; how long it has blocked until now is known already."""
        self._open[handle] = handle.blocked_s

    def look(self) -> float:
        """Note which saves have ended; return for how long they blocked training after they were begun."""
        blocked_s = 0.0
        for handle in [each for each in self._open if each.done()]:
            known_s = self._open.pop(handle)
            blocked_s += max(0.0, handle.blocked_s - known_s)
            self._ended.append(_describe(handle))
        return blocked_s

    def recent(self) -> tuple[SaveNote, ...]:
        """Return the saves that ended last."""
        return tuple(self._ended)


def _describe(handle: SaveHandle) -> SaveNote:
    info = None if handle.error() is not None else handle.result(0)
    took_s = handle.took_s or 0.0
    staged_s = min(took_s, handle.staged_s or 0.0)
    written_s = min(took_s, max(staged_s, handle.written_s or staged_s))
    return SaveNote(
        step=handle.step,
        blocked_s=handle.blocked_s,
        stage_s=staged_s,
        write_s=written_s - staged_s,
        commit_s=took_s - written_s,
        full_bytes=handle.bytes_total,
        is_failed=info is None,
        is_diverged=info is not None and info.diverged is not None,
    )
