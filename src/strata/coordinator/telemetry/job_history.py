"""The history of one job: what its workers report of their time, put on one time line. Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from strata.cluster.membership import split_incarnation
from strata.cluster.values import PARTS, SaveNote, WorkerAccount
from strata.coordinator.telemetry.buckets import Tiers
from strata.coordinator.telemetry.rank_times import RankTimes

MAX_MARKS = 500
MAX_CHECKPOINTS = 500
# So many of a worker's reports are compared with the others', to find who is slow.
RECENT_REPORTS = 8
_COMPUTE, _REPEATED, _OTHER = (PARTS.index(part) for part in ("compute", "repeated", "other"))
# What a worker reports of itself that is no metric of its training loop.
_OWN_NUMBERS = {
    "step_s",
    "samples_per_s",
    "tokens_per_s",
    "total_steps",
    "data_wait_s",
    "rss_bytes",
    "gpu_memory_bytes",
}
_OWN_NUMBERS |= {"stalled_s", "limit_s", "waiting", "in_collective", "collectives", "paused"}
# Nobody came or went: what ended the generation has a mark of its own.
_MARKED_ALREADY = frozenset({"rejected", "rewound"})
_NOTHING = WorkerAccount(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0)


class MarkNote(NamedTuple):
    """Something to show on the time axis."""

    at_s: float
    kind: str
    label: str
    step: int | None = None


class RecentSteps(NamedTuple):
    """The steps between two reports of a worker, and its own seconds in them: without waiting for others."""

    at_s: float
    step: int
    steps: int
    data_s: float
    compute_s: float
    save_s: float

    @property
    def own_s(self) -> float:
        """Its own seconds a step."""
        return (self.data_s + self.compute_s + self.save_s) / self.steps


class AccountChange(NamedTuple):
    """What a heartbeat said that was new."""

    before: WorkerAccount
    after: WorkerAccount
    saves: list[SaveNote]


@dataclass(slots=True)
class WorkerTrack:
    """What was last heard of one worker, and how its clock stands to the coordinator's."""

    incarnation: str
    offset_s: float
    end_s: float
    account: WorkerAccount
    heard_s: float = 0.0
    """When it was last alive, also if it had nothing new to say."""
    # Of the bucket that it reported in last: how much of it, and how many steps.
    place: float = -1.0
    covered_s: float = 0.0
    steps: float = 0.0
    recent: deque[RecentSteps] = field(default_factory=lambda: deque(maxlen=RECENT_REPORTS))
    mean: RecentSteps | None = None
    """What ``recent`` comes to, in seconds a step; worked out when it is asked for."""


@dataclass(slots=True)
class CheckpointTrack:
    """What is known of a checkpoint beside what the cluster keeps."""

    step: int
    began_s: float | None = None
    committed_s: float | None = None
    size_bytes: int | None = None
    parts: int | None = None
    aborted: str | None = None
    phases: tuple[float, float, float, float] | None = None
    full_bytes: int = 0
    is_diverged: bool = False
    told: int = 0
    """How many workers told how their saves went."""
    savers: set[str] = field(default_factory=set)
    """Who told, as far as this process heard; not kept in the file."""


class JobHistory:
    """The series, marks and totals of one job. All times are the coordinator's."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.tiers = Tiers()
        self.ranks = RankTimes()
        self.workers: dict[str, WorkerTrack] = {}
        self.marks: deque[MarkNote] = deque(maxlen=MAX_MARKS)
        self.checkpoints: dict[int, CheckpointTrack] = {}
        self.causes: Counter[str] = Counter()
        self.failures = 0
        self.last_failure_s: float | None = None
        self.began_s: float | None = None
        self.until_s: float | None = None
        self.last_step_s: float | None = None
        # Where the job is in its steps, where it was first, and how many steps it lost by going back.
        self.step = 0
        self.first_step = 0
        self.lost_steps = 0
        # Up to this step was it once, before the generation of the last rewind: what is done again is lost time.
        self.furthest = 0
        self.generation = 0
        self.releases = 0
        """How many barriers were released since the coordinator started."""
        # The processes of the workers that are present, as far as this coordinator saw them come.
        self._present: dict[str, str] = {}
        # What was told as a counter must not fall, though a late report moves seconds from one part to another.
        self._told: dict[str, float] = {}

    def never_falling(self, part: str, seconds: float) -> float:
        """Return the seconds of a part as a counter: the most that was ever returned."""
        self._told[part] = max(seconds, self._told.get(part, 0.0))
        return self._told[part]

    def hear(
        self,
        worker_id: str,
        incarnation: str,
        account: WorkerAccount,
        *,
        step: int,
        metrics: Mapping[str, float],
        at_s: float,
    ) -> AccountChange | None:
        """Note a worker's heartbeat; return what is new, or None if nothing is."""
        if not _is_sound(account):
            return None
        track = self.workers.get(worker_id)
        offset_s = at_s - account.elapsed_s
        if track is None or split_incarnation(track.incarnation)[0] != split_incarnation(incarnation)[0]:
            # Its time begins when its process did; what its predecessor did not report is lost with it.
            track = self.workers[worker_id] = WorkerTrack(incarnation, offset_s, offset_s, _NOTHING)
        # A process that was declared dead goes on in its next life, and so does its account.
        track.incarnation, track.heard_s = incarnation, max(track.heard_s, at_s)
        if account.elapsed_s <= track.account.elapsed_s:
            track.offset_s = min(track.offset_s, offset_s)
            return None
        # A heartbeat says what was noted before it was sent: the least delay is nearest to the truth.
        track.offset_s = min(track.offset_s, offset_s)
        end_s = min(at_s, max(track.end_s, track.offset_s + account.elapsed_s))
        before, track.account = track.account, account
        self._spread(track, worker_id, before, account, step=step, end_s=end_s)
        bucket = self.tiers.at(end_s)
        for name, value in metrics.items():
            if name not in _OWN_NUMBERS and math.isfinite(value):
                bucket.note_metric(name, value)
        if account.steps > before.steps:
            bucket.step = max(bucket.step, step)
            if step > self.step and account.generation >= self.generation:
                self.step, self.last_step_s = step, end_s
        self.began_s = track.end_s if self.began_s is None else min(self.began_s, track.end_s)
        track.end_s = end_s
        self.until_s = max(end_s, self.until_s or end_s)
        return AccountChange(before, account, [save for save in account.saves if self._note_save(worker_id, save)])

    def join(self, worker_id: str, incarnation: str, *, at_s: float) -> None:
        """Note that a worker is in. One that replaces a process that did not leave was restarted: that one died."""
        before = self._present.get(worker_id)
        self._present[worker_id] = incarnation
        if before is not None and split_incarnation(before)[0] != split_incarnation(incarnation)[0]:
            self._cut_off(worker_id)
            label = f"{worker_id} was restarted before anyone missed it"
            self.note_change("restarted", is_failure=True, at_s=at_s, label=label)

    def leave(self, worker_ids: Iterable[str]) -> None:
        """Note that workers left."""
        for worker_id in worker_ids:
            self._present.pop(worker_id, None)

    def fail(self, worker_ids: Iterable[str]) -> None:
        """Note that workers died, or were declared dead: the step that each was in is lost."""
        for worker_id in worker_ids:
            self._cut_off(worker_id)
            self._present.pop(worker_id, None)

    def note_mark(self, mark: MarkNote) -> None:
        """Note something that happened."""
        self.marks.append(mark)

    def note_change(self, cause: str, *, is_failure: bool, at_s: float, label: str) -> None:
        """Note why a generation ended."""
        self.causes[cause] += 1
        if is_failure:
            self.failures += 1
            self.last_failure_s = at_s
        if cause in _MARKED_ALREADY:
            return
        kind = "failure" if is_failure else "joined" if cause == "joined" else "left"
        self.note_mark(MarkNote(at_s, kind, label, self.step or None))

    def checkpoint(self, step: int) -> CheckpointTrack:
        """Return what is known of a checkpoint, to add to it; of very many the oldest is forgotten."""
        if step not in self.checkpoints:
            self.checkpoints[step] = CheckpointTrack(step)
            if len(self.checkpoints) > MAX_CHECKPOINTS:
                del self.checkpoints[min(self.checkpoints)]
        return self.checkpoints.get(step) or CheckpointTrack(step)

    def begin_checkpoint(self, step: int, *, at_s: float) -> None:
        """Note that a part was reported; the first one begins the checkpoint, also of a step that ended before."""
        track = self.checkpoint(step)
        if track.began_s is None or track.committed_s is not None or track.aborted is not None:
            self.checkpoints[step] = CheckpointTrack(step, began_s=at_s)

    def note_commit(self, step: int, *, at_s: float) -> None:
        """Note that a checkpoint is committed."""
        track = self.checkpoint(step)
        if track.committed_s is not None:
            return
        track.committed_s, track.aborted = at_s, None
        bucket = self.tiers.at(at_s)
        bucket.commits += 1
        bucket.commit_bytes += track.size_bytes or 0
        bucket.commit_s += max(0.0, at_s - track.began_s) if track.began_s is not None else 0.0
        self.note_mark(MarkNote(at_s, "committed", f"checkpoint of step {step}", step))

    @property
    def kept_steps(self) -> int:
        """How many steps were done and not lost."""
        return self.step - self.first_step

    def rewind(self, step: int, *, generation: int) -> None:
        """A generation goes on from a step: what was done after it is lost."""
        if generation <= self.generation:
            return
        if self.generation == 0 and self.began_s is None:
            self.first_step = self.step = self.furthest = step
        self.generation = generation
        self.furthest = max(self.furthest, self.step)
        self.lost_steps += max(0, self.step - step)
        self.step = step

    def _cut_off(self, worker_id: str) -> None:
        """Count what a worker did since its last report, as long as it was alive: a hang is no time without workers."""
        track = self.workers.get(worker_id)
        if track is None or track.heard_s <= track.end_s:
            return
        parts = [0.0] * len(PARTS)
        parts[_REPEATED if track.account.steps else _OTHER] = track.heard_s - track.end_s
        self._lay(track, parts, end_s=track.heard_s, steps=0, samples=0)
        track.end_s = track.heard_s
        self.until_s = max(track.end_s, self.until_s or track.end_s)

    def _spread(
        self, track: WorkerTrack, worker_id: str, before: WorkerAccount, now: WorkerAccount, *, step: int, end_s: float
    ) -> None:
        """Lay what a worker did between two reports onto the time that it was done in."""
        parts = [max(0.0, new - old) for new, old in zip(now.parts, before.parts, strict=True)]
        steps, repeated = now.steps - before.steps, now.repeated_steps - before.repeated_steps
        # A new process does not know what its job has done before it; the others' reports tell.
        known = max(repeated, min(steps, max(0, self.furthest - (step - steps)))) if steps else repeated
        if steps > repeated and known > repeated:
            moved_s = parts[_COMPUTE] * (known - repeated) / (steps - repeated)
            parts[_COMPUTE] -= moved_s
            parts[_REPEATED] += moved_s
        if steps > 0:
            own = RecentSteps(end_s, step, steps, parts[1], parts[_COMPUTE] + parts[_REPEATED], parts[2])
            track.recent.append(own)
            track.mean = None
            self.ranks.note(now.rank, worker_id, own, generation=now.generation)
        if end_s > track.end_s and sum(parts) > 0:
            self._lay(track, parts, end_s=end_s, steps=steps, samples=now.samples - before.samples, step=step)

    def _lay(
        self, track: WorkerTrack, parts: list[float], *, end_s: float, steps: int, samples: int, step: int = 0
    ) -> None:
        """Lay seconds, steps and samples evenly onto the time since the worker's last report; ``step`` ends it."""
        at_s, elapsed_s = track.end_s, end_s - track.end_s
        while at_s < end_s:
            bucket = self.tiers.at(at_s)
            # One that is too old for the finest tier is wider, or has no end at all.
            stop_s = min(end_s, bucket.start_s + bucket.width_s) if bucket.width_s else end_s
            stop_s = stop_s if stop_s > at_s else end_s
            share = (stop_s - at_s) / elapsed_s
            for number, part_s in enumerate(parts):
                bucket.parts[number] += share * part_s
            bucket.worker_s += stop_s - at_s
            bucket.samples += share * samples
            if steps > 0:
                # The whole steps that were done until then.
                bucket.step = max(bucket.step, step - math.ceil(steps * (end_s - stop_s) / elapsed_s))
            if track.place != bucket.start_s:
                track.place, track.covered_s, track.steps = bucket.start_s, 0.0, 0.0
            track.covered_s += stop_s - at_s
            track.steps += share * steps
            bucket.covered_s = max(bucket.covered_s, track.covered_s)
            bucket.steps = max(bucket.steps, track.steps)
            at_s = stop_s

    def _note_save(self, worker_id: str, save: SaveNote) -> bool:
        """Note how a save went; return whether that is new."""
        track = self.checkpoint(save.step)
        if worker_id in track.savers or len(track.savers) < track.told:
            # It was told before, to this process or to the one before it.
            return False
        track.savers.add(worker_id)
        track.told += 1
        if save.is_failed:
            return True
        phases = save.blocked_s, save.stage_s, save.write_s, save.commit_s
        blocked, stage, write, commit = phases if track.phases is None else map(max, track.phases, phases)
        track.phases = blocked, stage, write, commit
        track.full_bytes += save.full_bytes
        track.is_diverged = track.is_diverged or save.is_diverged
        return True


def _is_sound(account: WorkerAccount) -> bool:
    """Whether an account can be: nobody's mistake may spoil the series of all."""
    seconds = account[:8]
    return all(math.isfinite(each) and 0 <= each <= 1e10 for each in seconds) and all(
        0 <= each < 1 << 63 for each in account[8:13]
    )
