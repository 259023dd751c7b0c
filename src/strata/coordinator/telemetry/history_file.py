"""The history's file: lines of JSON beside the journal, bounded in bytes. A torn or damaged line loses only itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from strata.cluster.values import PARTS, WorkerAccount
from strata.coordinator.entry.private_files import make_private
from strata.coordinator.telemetry.buckets import OPEN, Bucket, Tiers
from strata.coordinator.telemetry.history import History
from strata.coordinator.telemetry.job_history import CheckpointTrack, JobHistory, MarkNote, WorkerTrack

log = logging.getLogger(__name__)

VERSION = 1
# Whose row it is that belongs to no job: no job can be called so.
COORDINATOR = ""
# Above this the file is written anew with what is still kept.
MAX_BYTES = 32 << 20
# A worker that was not heard of for so long is forgotten; if it comes back, its time counts from then on.
FORGET_S = 3_600.0
_TOTALS = (
    "began_s",
    "until_s",
    "last_step_s",
    "step",
    "first_step",
    "lost_steps",
    "furthest",
    "generation",
    "failures",
    "last_failure_s",
)
_BUCKET = tuple(each.name for each in fields(Bucket) if each.name not in ("is_unsaved", "width_s"))
Row = dict[str, Any]


class HistoryFile:
    """Where histories survive a restart. What cannot be written or read is logged, and nothing fails for it.

    What was last heard of each worker is in a file of its own, which is written anew each time: the totals of a worker
    that goes on through a restart must not be counted again.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._workers_path = path.with_name(path.name + "-workers")
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._is_failing = False
        # The time of the last mark of each job that the file has.
        self._marks: dict[str, float] = {}
        self._checkpoints: dict[tuple[str, int], str] = {}
        self._totals: dict[str, str] = {}

    def load(self, history: History) -> None:
        """Take over what the file holds."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("the history of goodput starts empty, because %s cannot be read: %s", self._path, error)
            return
        bad = 0
        for line in data.split(b"\n"):
            try:
                if line:
                    _take(history, json.loads(line))
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
                bad += 1
        if bad:
            log.warning("%d damaged lines of %s are skipped", bad, self._path)
        self._marks = {job_id: job.marks[-1].at_s for job_id, job in history.jobs.items() if job.marks}
        self._size_bytes = len(data)
        if data and not data.endswith(b"\n"):
            # What comes next must not be glued to a torn line.
            self._append(b"\n")
        self._load_workers(history)

    def _load_workers(self, history: History) -> None:
        try:
            rows = json.loads(self._workers_path.read_bytes())
            for job_id, workers in rows.items():
                job = history.find(job_id)
                for worker_id, (incarnation, offset_s, end_s, account) in workers.items():
                    told = WorkerAccount._make((*map(float, account[:8]), *map(int, account[8:]), ()))
                    job.workers[worker_id] = WorkerTrack(str(incarnation), float(offset_s), float(end_s), told)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
            log.warning("the last reports of workers cannot be read: %s: %s", self._workers_path, error)

    async def save(self, history: History, *, now_s: float) -> None:
        """Write what is new; rewrite the file if it is too large, or if the last write failed and lost its rows."""
        lines = b"".join(_line(row) for row in self._new_rows(history))
        if not lines and not self._is_failing:
            return
        anew = self._is_failing or self._size_bytes + len(lines) > self._max_bytes
        content = self._all_lines(history) if anew else lines
        workers = _workers(history, since_s=now_s - FORGET_S)
        await asyncio.to_thread(self._write, content, workers, anew=anew)

    def _new_rows(self, history: History) -> Iterator[Row]:
        for bucket in history.requests.tiers[0].values():
            if bucket.is_unsaved:
                bucket.is_unsaved = False
                yield _bucket_row(COORDINATOR, 0, bucket)
        for job_id, job in history.jobs.items():
            for bucket in job.tiers.tiers[0].values():
                if bucket.is_unsaved:
                    bucket.is_unsaved = False
                    yield _bucket_row(job_id, 0, bucket)
            for step, track in job.checkpoints.items():
                row = _checkpoint_row(job_id, track)
                if self._checkpoints.get((job_id, step)) != str(row):
                    self._checkpoints[job_id, step] = str(row)
                    yield row
            last_s = self._marks.get(job_id, float("-inf"))
            for mark in job.marks:
                if mark.at_s > last_s:
                    self._marks[job_id] = mark.at_s
                    yield {"job": job_id, "mark": list(mark)}
            totals = _totals_row(job)
            if self._totals.get(job_id) != str(totals):
                self._totals[job_id] = str(totals)
                yield totals

    def _all_lines(self, history: History) -> bytes:
        """Return everything that is kept, within half of the limit: the jobs heard of last come first."""
        lines = [_line(row) for row in _tier_rows(COORDINATOR, history.requests)]
        room = self._max_bytes // 2 - sum(map(len, lines))
        for job_id, job in reversed(history.jobs.items()):
            # Where its series does not fit, its totals stay, and so do the intervals that may still change: those are
            # written again, and would be counted twice if they were in the totals.
            choices = _job_rows(job_id, job), _short_rows(job_id, job, newest=OPEN), _short_rows(job_id, job, newest=0)
            for rows in choices:
                mine = [_line(row) for row in rows]
                if (size := sum(map(len, mine))) <= room:
                    break
            else:
                break
            room -= size
            lines = mine + lines
        return b"".join(lines)

    def _write(self, content: bytes, workers: bytes, *, anew: bool) -> None:
        try:
            if anew:
                _replace(self._path, content)
                self._size_bytes = len(content)
            else:
                self._append(content)
            _replace(self._workers_path, workers)
        except OSError as error:
            if not self._is_failing:
                log.warning("the history of goodput cannot be written: %s: %s", self._path, error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _append(self, content: bytes) -> None:
        make_private(self._path)
        with self._path.open("ab") as file:
            file.write(content)
        self._size_bytes += len(content)


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or what was there before."""
    fresh = path.with_name(path.name + ".new")
    make_private(fresh)
    fresh.write_bytes(content)
    fresh.replace(path)


def _workers(history: History, *, since_s: float) -> bytes:
    """Return what was last heard of each worker; those that are long gone are forgotten."""
    rows: Row = {}
    for job_id, job in history.jobs.items():
        for worker_id in [each for each, track in job.workers.items() if track.end_s < since_s]:
            del job.workers[worker_id]
        rows[job_id] = {
            worker_id: [track.incarnation, track.offset_s, track.end_s, _round(list(track.account[:13]))]
            for worker_id, track in job.workers.items()
        }
    return json.dumps(rows, separators=(",", ":")).encode()


def _line(row: Row) -> bytes:
    return json.dumps({"v": VERSION, **row}, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _job_rows(job_id: str, job: JobHistory) -> Iterator[Row]:
    yield _totals_row(job)
    yield from _tier_rows(job_id, job.tiers)
    for mark in job.marks:
        yield {"job": job_id, "mark": list(mark)}
    for track in job.checkpoints.values():
        yield _checkpoint_row(job_id, track)


def _short_rows(job_id: str, job: JobHistory, *, newest: int) -> Iterator[Row]:
    older, fresh = job.tiers.split(newest)
    yield _totals_row(job)
    yield _bucket_row(job_id, -1, older)
    for bucket in fresh:
        yield _bucket_row(job_id, 0, bucket)


def _tier_rows(job_id: str, tiers: Tiers) -> Iterator[Row]:
    yield _bucket_row(job_id, -1, tiers.older)
    for tier in reversed(range(len(tiers.tiers))):
        for bucket in tiers.tiers[tier].values():
            yield _bucket_row(job_id, tier, bucket)


def _bucket_row(job_id: str, tier: int, bucket: Bucket) -> Row:
    return {"job": job_id, "tier": tier, "bucket": [_round(getattr(bucket, name)) for name in _BUCKET]}


def _totals_row(job: JobHistory) -> Row:
    return {"job": job.job_id, "totals": {**{name: getattr(job, name) for name in _TOTALS}, "causes": dict(job.causes)}}


def _checkpoint_row(job_id: str, track: CheckpointTrack) -> Row:
    row = {each.name: getattr(track, each.name) for each in fields(CheckpointTrack) if each.name != "savers"}
    return {"job": job_id, "checkpoint": row}


def _take(history: History, row: Row) -> None:
    """Take over one line, or raise if it is not one of this version."""
    if row["v"] != VERSION:
        raise ValueError(row["v"])
    if row["job"] == COORDINATOR:
        _take_bucket(history.requests, row["tier"], dict(zip(_BUCKET, row["bucket"], strict=True)))
        return
    job = history.job(str(row["job"]))
    if "bucket" in row:
        _take_bucket(job.tiers, row["tier"], dict(zip(_BUCKET, row["bucket"], strict=True)))
    elif "mark" in row:
        at_s, kind, label, step = row["mark"]
        job.marks.append(MarkNote(float(at_s), str(kind), str(label), None if step is None else int(step)))
    elif "checkpoint" in row:
        track = CheckpointTrack(**row["checkpoint"])
        if track.phases is not None:
            blocked, stage, write, commit = map(float, track.phases)
            track.phases = blocked, stage, write, commit
        job.checkpoints[int(track.step)] = track
    else:
        totals = row["totals"]
        job.causes = Counter({str(cause): int(count) for cause, count in totals.pop("causes").items()})
        for name in _TOTALS:
            value = totals[name]
            setattr(job, name, None if value is None else float(value) if name.endswith("_s") else int(value))


def _take_bucket(tiers: Tiers, tier: int, values: Row) -> None:
    values["parts"] = [float(part) for part in values["parts"]]
    if len(values["parts"]) != len(PARTS):
        raise ValueError("parts")
    values["waits"] = {int(place): int(count) for place, count in values["waits"].items()}
    values["metrics"] = {str(name): [float(x), float(n)] for name, (x, n) in values["metrics"].items()}
    bucket = Bucket(width_s=0.0 if tier < 0 else tiers.widths_s[tier], **values)
    if tier < 0:
        tiers.older = bucket
    else:
        tiers.put(tier, bucket)


def _round(value: Any) -> Any:
    """Return numbers with no more digits than anyone can use."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list):
        return [_round(each) for each in value]
    if isinstance(value, dict):
        return {key: _round(each) for key, each in value.items()}
    return value
