"""Checkpoints from the first reported part to the manifest, and the index of those that are committed.

A checkpoint is *collecting* reports, then *writing* its manifest, then committed. Only while it collects can it be
given up: once all parts are durable, any worker can write the manifest, so the death of one is no reason to lose it.
Where replicas differ it is *repairing* before its manifest is written, until all workers have said what they repaired,
one of them is gone, or the time for it is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from strata.cluster.commands import ConfirmCommit, ReportPart
from strata.cluster.values import CommitRecord, Divergence, PartReport
from strata.errors import CheckpointAbortedError, CommitRefusedError, StepTakenError

# What a worker reports that repaired nothing.
NOTHING = PartReport("", 0, "")
# For so many steps that ended it is remembered which reports they had, for workers that missed the announcement. A
# worker takes part in each commit and has fewer saves uncommitted than this, so none of its own is forgotten meanwhile.
MAX_REMEMBERED = 64


@dataclass(slots=True)
class Pending:
    """A checkpoint under way. Who was asked and when is not durable: after a restart it is asked for anew."""

    step: int
    epoch: int
    generation: int
    expected: tuple[str, ...]
    begun_s: float
    reports: dict[str, PartReport] = field(default_factory=dict)
    cursors: str | None = None
    repairs: dict[str, PartReport] | None = None
    """What workers repaired, with an empty path for nothing; None if replicas are the same."""
    is_repairing: bool = False
    repair_began_s: float = float("-inf")
    asked: int = 0
    asked_of: str | None = None
    asked_at_s: float = float("-inf")

    @property
    def is_collecting(self) -> bool:
        """Whether parts are still missing."""
        return self.cursors is None

    @property
    def is_writing(self) -> bool:
        """Whether only the manifest is missing."""
        return not self.is_collecting and not self.is_repairing

    def missing(self) -> list[str]:
        """Return the workers whose parts were not reported."""
        return [worker_id for worker_id in self.expected if worker_id not in self.reports]

    def unrepaired(self) -> list[str]:
        """Return the workers that have not said what they repaired."""
        return [worker_id for worker_id in self.expected if worker_id not in (self.repairs or {})]

    def ordered_repairs(self) -> tuple[PartReport, ...]:
        """Return what was repaired, in the order of the parts; nothing if nobody repaired anything."""
        repairs = self.repairs or {}
        if not any(repair.path for repair in repairs.values()):
            return ()
        return tuple(repairs.get(worker_id, NOTHING) for worker_id in self.expected)

    def has_diverged(self) -> bool:
        """Whether workers of one group reported other digests of what they hold alike."""
        found: dict[str, str] = {}
        for report in self.reports.values():
            for each in filter(None, report.replicas.split(",")):
                group, _, digest = each.partition(":")
                if found.setdefault(group, digest) != digest:
                    return True
        return False

    def size_bytes(self) -> int:
        """Return the bytes of the parts that were reported."""
        return sum(report.size_bytes for report in self.reports.values())

    def paths(self) -> list[str]:
        """Return the paths of all reports, sorted."""
        return sorted(report.path for report in self.reports.values())


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that cannot be restored. What is saved of its step from generation ``until`` on is another one."""

    reason: str
    until: int
    suspect: CommitRecord | None = None
    """The checkpoint itself, if it is only suspect: it is taken back if there is nothing better."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A step that a generation does not save, because a worker cannot bring its part."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitProgress:
    """How a checkpoint is doing: ``missing`` are the workers that it waits for, ``reason`` says why it was given up."""

    phase: str
    """collecting, repairing, writing, committed, aborted, or unknown: then the part is to be reported again."""
    missing: tuple[str, ...] = ()
    reason: str = ""


class Commits:
    """The checkpoints of a job, by step."""

    def __init__(self) -> None:
        self.pending: dict[int, Pending] = {}
        self.committed: dict[int, CommitRecord] = {}
        self.rejected: dict[int, Rejected] = {}
        self.rewinds = 0
        """How many times the job was rewound."""
        # The bytes of the parts of committed checkpoints; of those that storage was listed for, nobody said how many.
        self._sizes: dict[int, int] = {}
        self._reports_of: dict[int, list[str]] = {}
        self._aborted: dict[int, tuple[list[str], str]] = {}
        self._given_up: dict[int, GivenUp] = {}
        # The generation and the step of each worker's last part, in the present generation.
        self._last_reported: dict[str, tuple[int, int]] = {}

    def latest(self) -> CommitRecord | None:
        """Return the newest committed checkpoint."""
        return self.committed[max(self.committed)] if self.committed else None

    def find_restore_point(self, *, allow_suspect: bool = False) -> CommitRecord | None:
        """Return the newest committed checkpoint; a suspect one only if that is allowed, or if all are."""
        trusted = [step for step, record in self.committed.items() if allow_suspect or not record.is_suspect]
        return self.committed[max(trusted)] if trusted else self.latest()

    def size_bytes(self) -> int:
        """Return the bytes of all parts that are committed or under way, as far as workers said."""
        return sum(self._sizes.values()) + sum(pending.size_bytes() for pending in self.pending.values())

    def progress(self, step: int, path: str) -> CommitProgress:
        """Say how the checkpoint is doing that has the part with this report."""
        pending = self.pending.get(step)
        if path in self._reports_of.get(step, ()):
            return CommitProgress(phase="committed")
        if pending is not None and any(path == report.path for report in pending.reports.values()):
            if pending.is_collecting:
                return CommitProgress(phase="collecting", missing=tuple(pending.missing()))
            if pending.is_repairing:
                return CommitProgress(phase="repairing", missing=tuple(pending.unrepaired()))
            return CommitProgress(phase="writing", missing=(pending.asked_of,) if pending.asked_of else ())
        paths, reason = self._aborted.get(step, ([], ""))
        if path in paths:
            return CommitProgress(phase="aborted", reason=reason)
        return CommitProgress(phase="unknown")

    def report(self, command: ReportPart, workers: tuple[str, ...], *, now_s: float) -> Pending:
        """Note a durable part; the first one begins the checkpoint, of the workers that are present then."""
        pending = self.pending.get(command.step)
        if command.step in self.committed:
            raise StepTakenError(command.job_id, command.step)
        if pending is None:
            given_up = self._given_up.get(command.step)
            if given_up is not None and given_up.generation == command.generation:
                raise CheckpointAbortedError(command.step, given_up.reason)
            latest = self.latest()
            if latest is not None and command.step < latest.step:
                # What the model had seen by then is not known any more; or it ended so long ago that it is forgotten.
                raise CheckpointAbortedError(command.step, f"step {latest.step} was committed before it began")
            self._check_awaited(command, workers)
            pending = Pending(command.step, command.epoch, command.generation, workers, now_s)
            self.pending[command.step] = pending
        elif not pending.is_collecting and pending.generation != command.generation:
            raise StepTakenError(command.job_id, command.step)
        pending.reports.setdefault(command.worker_id, command.report)
        # Workers that read shards of their own end an epoch at different steps; it is over when it is for all.
        pending.epoch = min(pending.epoch, command.epoch)
        self._last_reported[command.worker_id] = command.generation, command.step
        return pending

    def has_other_part(self, command: ReportPart) -> bool:
        """Whether the worker has reported another part of this step in this generation already."""
        pending = self.pending.get(command.step)
        if pending is None or pending.generation != command.generation:
            return False
        return pending.reports.get(command.worker_id, command.report).path != command.report.path

    def check_confirmed(self, command: ConfirmCommit) -> Pending:
        """Return the checkpoint that a worker has written the manifest of, or raise why that commits nothing.

        A manifest belongs to the parts that this coordinator has asked it for: all of them, in their generation.
        """
        pending = self.pending.get(command.step)
        if pending is None:
            problem = "no worker has reported a part of it"
            if command.step in self.rejected:
                problem = f"it was rejected: {self.rejected[command.step].reason}"
            elif command.step in self._aborted:
                problem = f"it was aborted: {self._aborted[command.step][1]}"
        elif pending.generation != command.generation:
            problem = f"its parts are those of generation {pending.generation}"
        elif pending.is_collecting:
            problem = f"the parts of {', '.join(pending.missing()[:5])} are missing"
        elif pending.is_repairing:
            problem = f"the repairs of {', '.join(pending.unrepaired()[:5])} are missing"
        else:
            return pending
        raise CommitRefusedError(command.job_id, command.step, generation=command.generation, problem=problem)

    def _check_awaited(self, command: ReportPart, workers: tuple[str, ...]) -> None:
        """Raise if a worker has reported a later step already, so that its part of this one never comes."""
        for worker_id in workers:
            generation, step = self._last_reported.get(worker_id, (0, 0))
            if worker_id != command.worker_id and generation == command.generation and step > command.step:
                raise CheckpointAbortedError(command.step, f"{worker_id} has saved step {step} without it")

    def passed_by(self, worker_id: str, step: int) -> list[int]:
        """Return the steps that still wait for a part of a worker that has reported a later one.

        Parts are reported in the order of their steps, so what these steps wait for never comes.
        """
        return [
            p.step
            for p in self.pending.values()
            if p.is_collecting and p.step < step and worker_id in p.expected and worker_id not in p.reports
        ]

    def commit(self, checkpoint: CommitRecord) -> bool:
        """Take a committed checkpoint into the index; return whether it is new there."""
        pending = self.pending.pop(checkpoint.step, None)
        if checkpoint.step in self.committed:
            return False
        self.committed[checkpoint.step] = checkpoint
        self.rejected.pop(checkpoint.step, None)
        if pending is not None:
            self._sizes[checkpoint.step] = pending.size_bytes()
            self._reports_of[checkpoint.step] = pending.paths()
            _forget_oldest(self._reports_of)
        return True

    def give_up(self, step: int, generation: int, reason: str) -> None:
        """Remember that a generation does not save a step, for those that have not reported their part yet."""
        self._given_up[step] = GivenUp(generation, reason)
        _forget_oldest(self._given_up)

    def abort(self, step: int, reason: str, *, even_writing: bool = False) -> bool:
        """Give up a checkpoint that is still collecting; return whether there was one that could be given up."""
        pending = self.pending.get(step)
        if pending is None or not (pending.is_collecting or even_writing):
            return False
        del self.pending[step]
        self._end_as_aborted(step, pending.paths(), reason)
        return True

    def reject(self, step: int, reason: str, *, until: int) -> None:
        """Take a checkpoint that cannot be restored out of the index, and remember it."""
        self._drop(step)
        self.rejected[step] = Rejected(reason, until)
        self._end_as_aborted(step, self._reports_of.pop(step, []), f"it was rejected: {reason}")

    def pass_over(self, to_step: int, *, until: int) -> list[CommitRecord]:
        """Take the suspect checkpoints after ``to_step`` out, so that their steps can be saved again; return them."""
        gone = [record for step, record in sorted(self.committed.items()) if step > to_step]
        for record in gone:
            reason = f"it is suspect: {record.diverged}"
            self.reject(record.step, reason, until=until)
            self.rejected[record.step] = Rejected(reason, until, record)
        return gone

    def take_back(self) -> list[int]:
        """Take suspect checkpoints that were passed over into the index again; return their steps."""
        records = [each.suspect for each in self.rejected.values() if each.suspect is not None]
        for record in records:
            self.committed[record.step] = record
            del self.rejected[record.step]
        return sorted(record.step for record in records)

    def drop_suspects(self, steps: Iterable[int]) -> None:
        """Remember that storage has no suspect checkpoints of these steps any more."""
        for step in list(steps):
            if step in self.rejected:
                self.rejected[step] = replace(self.rejected[step], suspect=None)

    def rewind(self, number: int, to_step: int, *, until: int) -> list[int]:
        """Take everything after ``to_step`` out, whatever became of it; return the steps."""
        self.rewinds = number
        self.drop_suspects(step for step in self.rejected if step > to_step)
        gone = sorted(step for step in {*self.committed, *self.pending} if step > to_step)
        for step in gone:
            self.abort(step, "the job was rewound", even_writing=True)
            if step in self.committed:
                self.reject(step, "the job was rewound", until=until)
            else:
                # Its manifest may be written by now, and confirmed later.
                self.rejected[step] = Rejected("the job was rewound", until)
        return gone

    def change_generation(self) -> None:
        """Forget who has reported what last: in another generation steps are saved anew."""
        self._last_reported.clear()

    def of_older_generations(self, generation: int) -> list[int]:
        """Return the steps that still collect parts of workers of an older generation, which will never come."""
        return [p.step for p in self.pending.values() if p.is_collecting and p.generation < generation]

    def forget(self, steps: tuple[int, ...]) -> list[int]:
        """Take checkpoints out of the index, but never the newest; return which."""
        latest = self.latest()
        self.drop_suspects(steps)
        gone = [step for step in steps if step in self.committed and latest is not None and step != latest.step]
        for step in gone:
            self._drop(step)
        # A newer one is remembered until it is saved again: a listing that is older than its deletion may still come.
        for step in steps:
            if latest is not None and step < latest.step:
                self.rejected.pop(step, None)
        return gone

    def drop_deleted(self, steps: Iterable[int], *, until: int) -> list[int]:
        """Take checkpoints that storage has no longer out of the index, but never the last one; return which."""
        steps = set(steps)
        self.drop_suspects(steps)
        gone = self.committed.keys() & steps
        if gone == self.committed.keys():
            gone -= {max(gone, default=-1)}
        latest = max(self.committed.keys() - gone, default=-1)
        for step in sorted(gone):
            if step > latest:
                # Remembered until it is saved again: a listing that is older than its deletion may still come.
                self.rejected[step] = Rejected("it was deleted from storage", until)
            self._drop(step)
        for step in [step for step in steps if step < latest]:
            self.rejected.pop(step, None)
        return sorted(gone)

    def delay(self, seconds: float) -> None:
        """Put all deadlines off, for time in which this coordinator did not run."""
        for pending in self.pending.values():
            pending.begun_s += seconds
            pending.repair_began_s += seconds
            pending.asked_at_s += seconds

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "committed": [write_row(checkpoint) for _, checkpoint in sorted(self.committed.items())],
            "sizes": [[step, size] for step, size in sorted(self._sizes.items())],
            "reports_of": [[step, paths] for step, paths in sorted(self._reports_of.items())],
            "rejected": [
                [step, each.reason, each.until, *([] if each.suspect is None else [write_row(each.suspect)])]
                for step, each in sorted(self.rejected.items())
            ],
            "aborted": [[step, paths, reason] for step, (paths, reason) in sorted(self._aborted.items())],
            "rewinds": self.rewinds,
            "given_up": [[step, each.generation, each.reason] for step, each in sorted(self._given_up.items())],
            "last_reported": [[worker, *last] for worker, last in sorted(self._last_reported.items())],
            "pending": [
                {
                    "step": p.step,
                    "epoch": p.epoch,
                    "generation": p.generation,
                    "expected": list(p.expected),
                    "begun_s": p.begun_s,
                    "reports": {worker: list(report) for worker, report in sorted(p.reports.items())},
                    "cursors": p.cursors,
                    **({} if p.repairs is None else _record_repairs(p)),
                }
                for _, p in sorted(self.pending.items())
            ],
        }

    def restore(self, record: dict[str, Any]) -> None:
        """Take over what :meth:`record` returned."""
        for row in record["committed"]:
            self.committed[row[0]] = read_row(row)
        self._sizes = dict(record.get("sizes", []))
        self._reports_of = dict(record["reports_of"])
        self.rejected = {
            step: Rejected(reason, until, *map(read_row, suspect))
            for step, reason, until, *suspect in record["rejected"]
        }
        self._aborted = {step: (paths, reason) for step, paths, reason in record["aborted"]}
        self.rewinds = record.get("rewinds", 0)
        self._given_up = {step: GivenUp(generation, reason) for step, generation, reason in record["given_up"]}
        self._last_reported = {worker: (generation, step) for worker, generation, step in record["last_reported"]}
        for row in record["pending"]:
            read: dict[str, Any] = {"expected": tuple(row["expected"])}
            for name in row.keys() & {"reports", "repairs"}:
                read[name] = {worker: PartReport(*report) for worker, report in row[name].items()}
            self.pending[row["step"]] = Pending(**{**row, **read})

    def restart_clocks(self, *, now_s: float) -> None:
        """Count time anew, after a restart of the coordinator."""
        for pending in self.pending.values():
            pending.begun_s, pending.asked_at_s, pending.asked_of = now_s, float("-inf"), None
            pending.repair_began_s = now_s

    def _drop(self, step: int) -> None:
        self.committed.pop(step, None)
        self._sizes.pop(step, None)

    def _end_as_aborted(self, step: int, paths: list[str], reason: str) -> None:
        self._aborted[step] = paths, reason
        _forget_oldest(self._aborted)


def _record_repairs(pending: Pending) -> dict[str, Any]:
    repairs = {worker: list(repair) for worker, repair in sorted((pending.repairs or {}).items())}
    return {"repairs": repairs, "is_repairing": pending.is_repairing}


def write_row(checkpoint: CommitRecord) -> list[Any]:
    """Return a commit as values that JSON can hold."""
    diverged = checkpoint.diverged
    if diverged is None:
        return list(checkpoint[:4])
    suspect = [True] if diverged.suspect else []
    return [*checkpoint[:4], [list(diverged.ranks), diverged.tensor, diverged.tensors, *suspect]]


def read_row(row: list[Any]) -> CommitRecord:
    """Return the commit that :func:`write_row` wrote."""
    step, epoch, manifest, cursors, *more = row
    diverged = [Divergence(tuple(ranks), *rest) for ranks, *rest in more]
    return CommitRecord(step, epoch, manifest, cursors, *diverged)


def _forget_oldest(by_step: dict[int, Any]) -> None:
    for step in sorted(by_step)[:-MAX_REMEMBERED]:
        del by_step[step]
