"""Checkpoints from the first part to the manifest, and the index of those that are committed.

A checkpoint is *collecting* parts, then *writing* its manifest, then committed. Only while it collects can it be given
up: once all parts are durable, any worker can write the manifest, so the death of one is no reason to lose it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strata.cluster.commands import AckPart
from strata.errors import CheckpointAbortedError, StepTakenError

# For so many steps that ended it is remembered which parts they had, for workers that could not hear how. A worker
# takes part in each commit and has fewer saves uncommitted than this, so none of its own is forgotten while it waits.
MAX_REMEMBERED = 64


@dataclass(slots=True)
class Pending:
    """A checkpoint under way. Who was asked and when is not durable: after a restart it is asked for anew."""

    step: int
    epoch: int
    generation: int
    expected: tuple[str, ...]
    begun_s: float
    parts: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    cursors: str | None = None
    asked: int = 0
    asked_of: str | None = None
    asked_at_s: float = float("-inf")

    @property
    def is_collecting(self) -> bool:
        """Whether parts are still missing."""
        return self.cursors is None

    def missing(self) -> list[str]:
        """Return the workers whose parts are not in."""
        return [worker_id for worker_id in self.expected if worker_id not in self.parts]


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint that can be restored."""

    step: int
    epoch: int
    manifest: str
    cursors: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that cannot be restored. What is saved of its step from generation ``until`` on is another one."""

    reason: str
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitProgress:
    """How a checkpoint is doing: ``missing`` are the workers that it waits for, ``reason`` says why it was given up."""

    phase: str
    """collecting, writing, committed, aborted, or unknown: then the part is to be acknowledged again."""
    missing: tuple[str, ...] = ()
    reason: str = ""


class Commits:
    """The checkpoints of a job, by step."""

    def __init__(self) -> None:
        self.pending: dict[int, Pending] = {}
        self.committed: dict[int, Committed] = {}
        self.rejected: dict[int, Rejected] = {}
        self._parts_of: dict[int, list[str]] = {}
        self._aborted: dict[int, tuple[list[str], str]] = {}

    def latest(self) -> Committed | None:
        """Return the newest committed checkpoint."""
        return self.committed[max(self.committed)] if self.committed else None

    def progress(self, step: int, part: str) -> CommitProgress:
        """Say how the checkpoint that has this part is doing."""
        pending = self.pending.get(step)
        if part in self._parts_of.get(step, ()):
            return CommitProgress(phase="committed")
        if pending is not None and any(part == path for path, _, _ in pending.parts.values()):
            if pending.is_collecting:
                return CommitProgress(phase="collecting", missing=tuple(pending.missing()))
            return CommitProgress(phase="writing", missing=(pending.asked_of,) if pending.asked_of else ())
        parts, reason = self._aborted.get(step, ([], ""))
        if part in parts:
            return CommitProgress(phase="aborted", reason=reason)
        return CommitProgress(phase="unknown")

    def ack(self, command: AckPart, workers: tuple[str, ...], *, now_s: float) -> Pending | None:
        """Note a part; the first one begins the checkpoint, of the workers that are present then.

        Returns None if the part is in a checkpoint that is committed already.
        """
        pending = self.pending.get(command.step)
        if command.step in self.committed:
            if command.part in self._parts_of.get(command.step, ()):
                return None  # its first reply was lost, and meanwhile all was well
            raise StepTakenError(command.job_id, command.step)
        if pending is None:
            latest = self.latest()
            if latest is not None and command.step < latest.step:
                # What the model had seen by then cannot be told any more; or it ended so long ago that it is forgotten.
                raise CheckpointAbortedError(command.step, f"step {latest.step} was committed before it began")
            pending = Pending(command.step, command.epoch, command.generation, workers, now_s)
            self.pending[command.step] = pending
        elif not pending.is_collecting and pending.generation != command.generation:
            raise StepTakenError(command.job_id, command.step)
        pending.parts.setdefault(command.worker_id, (command.part, command.size_bytes, command.digest))
        return pending

    def commit(self, checkpoint: Committed) -> bool:
        """Take a committed checkpoint into the index; return whether it is new there."""
        pending = self.pending.pop(checkpoint.step, None)
        if checkpoint.step in self.committed:
            return False
        self.committed[checkpoint.step] = checkpoint
        self.rejected.pop(checkpoint.step, None)
        if pending is not None:
            self._parts_of[checkpoint.step] = sorted(part for part, _, _ in pending.parts.values())
            for step in sorted(self._parts_of)[:-MAX_REMEMBERED]:
                del self._parts_of[step]
        return True

    def abort(self, step: int, reason: str, *, even_writing: bool = False) -> bool:
        """Give up a checkpoint that is still collecting; return whether there was one that could be given up."""
        pending = self.pending.get(step)
        if pending is None or not (pending.is_collecting or even_writing):
            return False
        del self.pending[step]
        self._aborted[step] = sorted(part for part, _, _ in pending.parts.values()), reason
        for old in sorted(self._aborted)[:-MAX_REMEMBERED]:
            del self._aborted[old]
        return True

    def reject(self, step: int, reason: str, *, until: int) -> None:
        """Take a checkpoint that cannot be restored out of the index, and remember it."""
        del self.committed[step]
        self.rejected[step] = Rejected(reason, until)

    def of_older_generations(self, generation: int) -> list[int]:
        """Return the steps that still collect parts of workers of an older generation, which will never come."""
        return [p.step for p in self.pending.values() if p.is_collecting and p.generation < generation]

    def forget(self, steps: tuple[int, ...]) -> list[int]:
        """Take checkpoints out of the index, but never the newest; return which."""
        latest = self.latest()
        gone = [step for step in steps if step in self.committed and latest is not None and step != latest.step]
        for step in gone:
            del self.committed[step]
        # A newer one is remembered until it is saved again: a listing that is older than its deletion may still come.
        for step in steps:
            if latest is not None and step < latest.step:
                self.rejected.pop(step, None)
        return gone

    def surplus(self, *, keep_count: int) -> list[int]:
        """Return the steps that a limit of ``keep_count`` no longer keeps, oldest first; never the newest."""
        return sorted(self.committed)[: -max(1, keep_count)]

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "committed": [[c.step, c.epoch, c.manifest, c.cursors] for _, c in sorted(self.committed.items())],
            "parts_of": [[step, parts] for step, parts in sorted(self._parts_of.items())],
            "rejected": [[step, each.reason, each.until] for step, each in sorted(self.rejected.items())],
            "aborted": [[step, parts, reason] for step, (parts, reason) in sorted(self._aborted.items())],
            "pending": [
                {
                    "step": p.step,
                    "epoch": p.epoch,
                    "generation": p.generation,
                    "expected": list(p.expected),
                    "begun_s": p.begun_s,
                    "parts": {worker: list(part) for worker, part in sorted(p.parts.items())},
                    "cursors": p.cursors,
                }
                for _, p in sorted(self.pending.items())
            ],
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        for row in record["committed"]:
            self.committed[row[0]] = Committed(*row)
        self._parts_of = dict(record["parts_of"])
        self.rejected = {step: Rejected(reason, until) for step, reason, until in record.get("rejected", ())}
        self._aborted = {step: (parts, reason) for step, parts, reason in record.get("aborted", ())}
        for row in record["pending"]:
            parts = {worker: (part, size, digest) for worker, (part, size, digest) in row["parts"].items()}
            self.pending[row["step"]] = Pending(**{**row, "expected": tuple(row["expected"]), "parts": parts})

    def restart_clocks(self, *, now_s: float) -> None:
        """Count time anew, after a restart of the coordinator."""
        for pending in self.pending.values():
            pending.begun_s, pending.asked_at_s, pending.asked_of = now_s, float("-inf"), None
