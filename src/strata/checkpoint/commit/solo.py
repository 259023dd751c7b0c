"""Commits of one process alone: a save of one part is committed at once, several parts when they are all there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strata.checkpoint.commit.protocol import Place
from strata.checkpoint.save.progress import SaveProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from strata.checkpoint.engine import Engine, Saved
    from strata.checkpoint.load.restore import Restored
    from strata.checkpoint.save.background_work import BackgroundWork
    from strata.checkpoint.save.draft import Draft
    from strata.checkpoint.save.handle import CheckpointInfo
    from strata.checkpoint.save.notices import Notices


class SoloCommit:
    """Commits without a coordinator: storage alone says what is committed."""

    def __init__(
        self,
        engine: Engine,
        work: BackgroundWork,
        notices: Notices,
        *,
        observer: Callable[[str], None] | None = None,
    ) -> None:
        self._engine = engine
        self._work = work
        self._notices = notices
        self._observer = observer

    def find_place(self, step: int, *, part: int, parts: int, generation: int | None) -> Place:
        """Return the place that the caller gives."""
        return Place(part, parts, generation or 0)

    def begin(self, draft: Draft) -> SoloPart:
        """Begin a save that nobody else waits for."""
        return SoloPart(self._engine)

    async def commit_parts(self, step: int, generation: int) -> CheckpointInfo:
        """Commit a step whose parts are all durable, and begin to prune; doing it again is harmless."""
        progress = SaveProgress(observer=self._observer)
        info, same_as = await self._engine.commit(step, generation, progress)
        self._notices.note_unchanged(step, same_as)
        self._notices.note_divergence(step, info.diverged)
        self._work.track(self._prune(progress))
        return info

    async def load(self, like: Any, only: Sequence[str], *, allow_suspect: bool) -> Restored:
        """Restore the newest step that is good."""
        return await self._engine.load_newest(like, only, allow_suspect=allow_suspect)

    async def forget(self, steps: list[int]) -> None:
        """Do nothing: nobody else keeps a list."""

    def close(self) -> None:
        """Do nothing: nobody is served."""

    async def _prune(self, progress: SaveProgress) -> None:
        await self._engine.pruner.retain(progress)


class SoloPart:
    """One save of a process alone; the engine has committed it if it is the only part."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def commit(self, saved: Saved, progress: SaveProgress) -> CheckpointInfo:
        """Return what the engine made of it."""
        return saved.info

    async def clean_up(self, info: CheckpointInfo, progress: SaveProgress) -> None:
        """Prune after a commit."""
        if info.committed:
            await self._engine.pruner.retain(progress)

    def drop(self, reason: str) -> None:
        """Do nothing: nobody waits for this part."""
