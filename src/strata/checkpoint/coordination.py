"""What a manager needs of a coordinator, and what a coordinator's client needs of a manager. Values and protocols.

The client lives on an event loop of its own, and so does the manager; they meet in futures that belong to neither, so
that neither can hold the other up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from strata.cluster.seat import Seat

# Under this name a manifest's cursors hold the coordinator's own, as it gave them.
LEDGER = "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartAck:
    """A part that is durable. ``report`` is the object that says all about it, with a name that no other part has."""

    step: int
    epoch: int
    generation: int
    report: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOrder:
    """The coordinator's wish for a manifest, with rows (report, size, digest) of all parts in the order of ranks."""

    step: int
    epoch: int
    generation: int
    reports: tuple[tuple[str, int, str], ...]
    cursors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """A checkpoint whose manifest is in storage; ``cursors`` are the coordinator's own, as JSON."""

    step: int
    epoch: int
    manifest: str
    cursors: str


class ManifestWriter(Protocol):
    """Whoever can write manifests: a manager. Called from the coordinator's thread, and must not block it."""

    def write_manifest(self, order: ManifestOrder) -> Future[CommitRecord]:
        """Commit in storage; a CheckpointError says that nobody can, any other error that another may try."""
        ...

    def clean_up(self, order: ManifestOrder) -> None:
        """Begin to delete what the commit that this writer made leaves behind."""
        ...


class CommitCoordinator(Protocol):
    """A coordinator as checkpoints see it; :class:`strata.client.client.Client` is one. From any thread."""

    def take_seat(self) -> Seat:
        """Return the worker's present seat, as last heard; waits only if it was heard that there is a new one.

        Its part of a checkpoint is that of its rank.
        """
        ...

    def commit_part(self, ack: PartAck, *, timeout_s: float, on_wait: Callable[[Sequence[str]], None]) -> Future[None]:
        """Acknowledge a part; done when its checkpoint is committed.

        Fails with CheckpointAbortedError, or CheckpointTimeoutError that names whom it waits for. ``on_wait`` is told
        the workers that are waited for, whenever that is known anew.
        """
        ...

    def serve_manifests(self, writer: ManifestWriter | None) -> None:
        """Let this writer write the manifests that the worker is asked for, also those that it was asked for before."""
        ...

    def adopt_checkpoints(self, records: Sequence[CommitRecord]) -> Future[None]:
        """Make known what storage holds."""
        ...

    def reject_checkpoint(self, step: int, reason: str) -> Future[None]:
        """Make known that the restore point cannot be restored, so that all workers go back to an older one together.

        Fails with LastCheckpointError if there is no other one.
        """
        ...

    def forget_checkpoints(self, steps: Sequence[int]) -> Future[None]:
        """Make known what was deleted."""
        ...

    def find_restore_point(self, *, timeout_s: float) -> Future[int | None]:
        """Return the step that all workers of this generation go on from, or None for the beginning."""
        ...
