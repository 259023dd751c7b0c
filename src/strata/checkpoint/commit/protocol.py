"""What a saver needs of a commit, a manager of a coordinator's client, and the client of a manager.

The client lives on an event loop of its own, and so does the manager; they meet in futures that belong to neither, so
that neither can hold the other up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from strata.checkpoint.engine import Saved
    from strata.checkpoint.load.restore import Restored
    from strata.checkpoint.save.draft import Draft
    from strata.checkpoint.save.handle import CheckpointInfo
    from strata.checkpoint.save.progress import SaveProgress
    from strata.cluster.events import ManifestWanted, RepairWanted
    from strata.cluster.values import CommitRecord, PartReport, RankInfo

# Under this name a manifest's cursors hold the coordinator's own, as it gave them.
LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of how many a save is, and of which generation; a ``token`` makes the names of its objects its own."""

    part: int = 0
    parts: int = 1
    generation: int = 0
    token: str = ""


class CommitPart(Protocol):
    """One save on its way to a commit."""

    async def commit(self, saved: Saved, progress: SaveProgress) -> CheckpointInfo:
        """Return when the checkpoint is committed, as far as it is this worker's to say; raise why it will not be."""
        ...

    async def clean_up(self, info: CheckpointInfo, progress: SaveProgress) -> None:
        """Delete what the commit leaves behind, if it is this worker's to do."""
        ...

    def drop(self, reason: str) -> None:
        """Say that the save failed, to whoever waits for it."""
        ...


class Commit(Protocol):
    """How parts become checkpoints: of one process alone, or together with the other workers of a job."""

    def find_place(self, step: int, *, part: int, parts: int, generation: int | None) -> Place:
        """Return which part a save is; CheckpointAbortedError or ClusterError if it cannot be any."""
        ...

    def begin(self, draft: Draft) -> CommitPart:
        """Note that a save has begun."""
        ...

    async def commit_parts(self, step: int, generation: int) -> CheckpointInfo:
        """Commit a step whose parts were saved one by one."""
        ...

    async def load(self, like: Any, only: Sequence[str], *, allow_suspect: bool) -> Restored:
        """Restore the newest checkpoint that can be restored, and a suspect one only if allowed or the last."""
        ...

    async def forget(self, steps: list[int]) -> None:
        """Tell who keeps a list of checkpoints that these were deleted."""
        ...

    def close(self) -> None:
        """Serve no one any more."""
        ...


class ManifestWriter(Protocol):
    """Whoever can write manifests: a manager. Called from the coordinator's thread, and must not block it."""

    def write_manifest(self, wanted: ManifestWanted) -> Future[CommitRecord]:
        """Commit in storage; a CheckpointError says that nobody can, any other error that another may try."""
        ...

    def write_repair(self, wanted: RepairWanted) -> Future[PartReport | None]:
        """Write the blocks of which this worker keeps a right copy in memory; None if there are none."""
        ...

    def clean_up(self, wanted: ManifestWanted) -> None:
        """Begin to delete what the commit that this writer made leaves behind."""
        ...


class CommitCoordinator(Protocol):
    """A coordinator as checkpoints see it; :class:`strata.client.client.Client` is one. From any thread."""

    def get_rank_info(self) -> RankInfo:
        """Return the worker's present rank_info, as last heard; waits only if it was heard that there is a new one.

        Its part of a checkpoint is that of its rank.
        """
        ...

    def begin_part(self, step: int, generation: int) -> int:
        """Note that a save has begun. Parts are reported in this order, each committed or dropped under its number."""
        ...

    def commit_part(
        self,
        number: int,
        *,
        epoch: int,
        report: PartReport,
        timeout_s: float,
        on_wait: Callable[[Sequence[str]], None],
    ) -> Future[None]:
        """Report a durable part; done when its checkpoint is committed.

        Fails with CheckpointAbortedError, or CheckpointTimeoutError that names whom it waits for. ``on_wait`` is given
        the workers that are waited for, whenever that is known anew.
        """
        ...

    def drop_part(self, number: int, reason: str) -> None:
        """Say that a save failed, so that the other workers do not wait for its part."""
        ...

    def serve_manifests(self, writer: ManifestWriter | None) -> None:
        """Let this writer write the manifests that the worker is asked for, also those that it was asked for before."""
        ...

    def adopt_checkpoints(self, records: Sequence[CommitRecord]) -> Future[None]:
        """Make known what storage holds."""
        ...

    def adopt_rewind(self, number: int, to_step: int, reason: str) -> Future[None]:
        """Make known that an operator rewound the job; the same again changes nothing."""
        ...

    def reject_checkpoint(self, step: int, reason: str) -> Future[None]:
        """Make known that the restore point cannot be restored, so that all workers go back to an older one together.

        Fails with LastCheckpointError if there is no other one.
        """
        ...

    def forget_checkpoints(self, steps: Sequence[int]) -> Future[None]:
        """Make known what is no longer in storage; the last checkpoint stays known."""
        ...

    def list_checkpoints(self) -> Future[tuple[int, ...]]:
        """Return the steps that are known."""
        ...

    def find_restore_point(self, *, timeout_s: float, allow_suspect: bool) -> Future[int | None]:
        """Return the step that all workers of this generation go on from, or None for the beginning.

        The first worker to ask decides whether it may be a suspect one though there are others.
        """
        ...
