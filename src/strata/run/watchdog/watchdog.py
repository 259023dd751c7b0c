"""The watchdog on progress: it names a worker that stands still, writes its stacks down, and ends it."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from strata.cluster.events import Cause
from strata.run.exits import HUNG
from strata.run.team.protocol import JobView, Team
from strata.run.watchdog.stacks import count_collectives, dump_stacks, is_in_collective, place_of
from strata.run.watchdog.step_times import StepTimes
from strata.run.watchdog.verdict import Fine, Hung, Late, Standing, Verdict, Waits, judge
from strata.run.watchdog.waits import Waits as NamedWaits

log = logging.getLogger(__name__)

# From this age on a stall is shown in the status, with what others need to tell whose fault it is.
SHOWN_S = 3.0
# How often a stalled worker looks at the others.
LOOK_S = 2.0
# How long the interpreter's lock may be held beyond the limit before faulthandler's own thread ends the process.
LOCK_SLACK_S = 15.0
# A step that takes so many times as long as usual, and is in a collective, waits for others.
USUAL_FACTOR = 3.0
_GONE = ("failed", "left")


class Watchdog:
    """Watches one training thread from another one.

    A hang that holds the interpreter's lock stops this thread too: then faulthandler's C thread, which this one puts
    off as long as it runs, writes the stacks and ends the process with code 1.
    """

    def __init__(
        self,
        team: Team,
        waits: NamedWaits,
        *,
        worker_id: str,
        folder: Path,
        limit_s: float | None,
        is_outdated: Callable[[], bool],
    ) -> None:
        self._team = team
        self._waits = waits
        self._worker_id = worker_id
        self._folder = folder
        self._is_on = limit_s != 0
        self._times = StepTimes(limit_s or None)
        self._is_outdated = is_outdated
        self._since_s: float | None = None
        self._looked_s = 0.0
        self._outdated_since_s: float | None = None
        self._step = 0
        self._paused: list[str] = []
        self._thread = 0
        self._verdict: Verdict = Fine()
        self._is_shown = self._is_told = False
        self._lock_file: TextIO | None = None
        self._guarding = threading.Lock()
        self.rank = self.generation = 0
        self.metrics: dict[str, float] = {}
        _watchdogs.add(self)

    def arm(self, step: int, *, rank: int, generation: int) -> None:
        """The training thread, which is the calling one, begins to work on the step after this one."""
        self.rank, self.generation = rank, generation
        self._begin(step)
        # At once, and not with the next tick: from now on the lock may be held for ever.
        self._hold_lock_guard()

    def _begin(self, step: int) -> None:
        self._thread = threading.get_ident()
        self._step = step
        self._since_s = time.monotonic()
        self._outdated_since_s = None
        self._is_told = False

    def done(self, step: int) -> None:
        """A step is done, and the next one begins."""
        if self._since_s is not None and not self._paused:
            self._times.add(time.monotonic() - self._since_s)
        if self._is_shown:
            log.warning("step %d finished after a stall; training continues", step)
            self._is_shown = False
        if isinstance(self._verdict, Late):
            self._team.report_stall(f"rank {self.rank} has done step {step}", is_over=True)
        self._verdict = Fine()
        if self._since_s is None:
            self.arm(step, rank=self.rank, generation=self.generation)
        else:
            self._begin(step)

    def disarm(self) -> None:
        """The loop is over, or the state is being restored: nothing is a stall until the next step begins."""
        self._since_s = None
        self._is_shown = False
        self._release_lock_guard()

    @contextmanager
    def pause(self, what: str) -> Iterator[None]:
        """Watch nothing while the block runs: a phase that is known to be long."""
        self._paused.append(what)
        self._release_lock_guard()
        # Whoever waits for this worker meanwhile sees that it may take longer.
        self._team.note(resources={**self.metrics, "paused": 1.0})
        try:
            yield
        finally:
            self._paused.remove(what)
            self._team.note(resources=self.metrics)
            if self._since_s is not None:
                self._since_s = time.monotonic()
                self._hold_lock_guard()

    def tick(self, now_s: float) -> None:
        """Look whether the training thread stands still, and do what follows from it."""
        since_s = self._since_s
        if since_s is None or self._paused or not self._is_on:
            return
        self._hold_lock_guard()
        stalled_s = now_s - since_s
        if stalled_s < SHOWN_S:
            return
        if self._outdated_since_s is None and self._is_outdated():
            self._outdated_since_s = now_s
        me = self._stand(stalled_s, now_s)
        self._show(me)
        self._tell_of_collective(me)
        if stalled_s < self._times.limit_s() / 2 or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        view = self._team.look()
        if me.outdated_s is None and view is not None and view.generation > self.generation:
            # The coordinator removed a worker, and its message about that is not here yet. This worker may have waited
            # for the one that is gone, so it must not be judged by the workers that are left.
            self._outdated_since_s = now_s
            me = replace(me, outdated_s=0.0)
        verdict = judge(
            me,
            _others(view, me),
            limit_s=self._times.limit_s(),
            is_limit_given=self._times.is_given,
            is_deadlocked=view is not None and view.is_deadlocked(),
        )
        if self._since_s == since_s:  # else a step was done meanwhile
            self._act(verdict, me)

    def _tell_of_collective(self, me: Standing) -> None:
        """Say once that the step waits in a collective, where the framework says nothing; slow steps are no news."""
        if self._is_told or not me.is_in_collective or me.stalled_s < USUAL_FACTOR * self._times.median_s():
            return
        self._is_told = True
        log.warning(
            "waiting for %.0f s, the watchdog's limit is %.0f s: step %d is in a collective or a backward "
            "pass, at %s; `strata status` shows what the other ranks do",
            *(me.stalled_s, self._times.limit_s(), me.step + 1, place_of(self._thread)),
        )

    def _act(self, verdict: Verdict, me: Standing) -> None:
        place = place_of(self._thread)
        where = f"rank {me.rank} ({self._worker_id}) stands still for {me.stalled_s:.0f} s in step {me.step + 1}"
        is_news = verdict != self._verdict
        self._verdict = verdict
        match verdict:
            case Waits(ranks=ranks) if is_news:
                whom = f"rank {', '.join(map(str, ranks[:5]))}" if ranks else "the others, who wait too"
                log.warning("%s, because it waits for %s", where, whom)
            case Late(reason=reason) if is_news:
                limit_s = self._times.limit_s()
                path = dump_stacks(self._folder, f"stacks-{self._worker_id}")
                log.error(
                    "%s at %s: %s. Its stacks are in %s. The watchdog kills it after its limit of %.0f s; if the "
                    'phase is long on purpose, put it into: with run.pause_watchdog("eval")',
                    *(where, place, reason, path, limit_s),
                )
                stall = f"{where} at {place}: {reason}; the watchdog kills it after its limit of {limit_s:.0f} s"
                self._team.report_stall(stall, is_over=False)
            case Hung(reason=reason):
                self._end(f"{where} at {place}: {reason}")

    def _end(self, reason: str) -> None:
        path = dump_stacks(self._folder, f"stacks-{self._worker_id}")
        if not self._team.ends_hung_workers:
            log.error("%s. Its stacks are in %s", reason, path)
            self.disarm()
            return
        log.error(
            "%s. Its stacks are in %s. The worker exits with code %d, so that it is restarted", reason, path, HUNG
        )
        leaving = threading.Thread(target=self._team.close, kwargs={"reason": reason, "cause": Cause.HUNG}, daemon=True)
        leaving.start()
        leaving.join(3.0)
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        # The training thread cannot be asked: an ordinary exit would wait for it.
        os._exit(HUNG)

    def _stand(self, stalled_s: float, now_s: float) -> Standing:
        return Standing(
            rank=self.rank,
            worker_id=self._worker_id,
            step=self._step,
            collectives=count_collectives(),
            stalled_s=stalled_s,
            is_waiting=self._waits.is_on_others(self._thread),
            is_in_collective=is_in_collective(self._thread),
            outdated_s=None if self._outdated_since_s is None else now_s - self._outdated_since_s,
        )

    def _show(self, me: Standing) -> None:
        self._is_shown = me.stalled_s >= self._times.limit_s() / 2
        fields = {"stalled_s": me.stalled_s, "limit_s": self._times.limit_s()}
        fields["waiting"] = float(me.is_waiting)
        fields["in_collective"] = float(me.is_in_collective)
        if me.collectives is not None:
            fields["collectives"] = me.collectives
        self._team.note(resources={**self.metrics, **fields})

    def _hold_lock_guard(self) -> None:
        if not self._team.ends_hung_workers or not self._is_on:
            return
        limit_s = self._times.limit_s() + LOCK_SLACK_S
        with self._guarding:
            if self._since_s is None or self._paused:
                return
            # Both the training thread and the thread that ticks come here.
            if self._lock_file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._lock_file = lock_file_of(self._folder, self._worker_id, os.getpid()).open("w")
            faulthandler.dump_traceback_later(limit_s, exit=True, file=self._lock_file)

    def _release_lock_guard(self) -> None:
        with self._guarding:
            if self._lock_file is not None:
                faulthandler.cancel_dump_traceback_later()

    def before_fork(self) -> None:
        """Keep faulthandler's thread away until the process is forked."""
        self._guarding.acquire()
        if self._lock_file is not None:
            faulthandler.cancel_dump_traceback_later()

    def after_fork(self) -> None:
        """Go on in the process that forked."""
        self._guarding.release()
        if self._lock_file is not None:
            self._hold_lock_guard()

    def after_fork_in_child(self) -> None:
        """Watch nothing: the child is no worker."""
        self._guarding.release()
        self._is_on, self._since_s, self._lock_file = False, None, None

    def close(self) -> None:
        """Watch nothing more."""
        self.disarm()
        with self._guarding:
            file, self._lock_file = self._lock_file, None
        if file is not None:
            file.close()
            with suppress(OSError):
                Path(file.name).unlink()


# A child that was forked while faulthandler's thread runs has no such thread, and waits for it when it ends.
_watchdogs: weakref.WeakSet[Watchdog] = weakref.WeakSet()
_at_fork: list[Watchdog] = []


def _before_fork() -> None:
    _at_fork[:] = _watchdogs
    for watchdog in _at_fork:
        watchdog.before_fork()


def _after_fork_in_parent() -> None:
    while _at_fork:
        _at_fork.pop().after_fork()


def _after_fork_in_child() -> None:
    while _at_fork:
        _at_fork.pop().after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def lock_file_of(folder: Path, worker_id: str, pid: int) -> Path:
    """Return where the stacks of a process go that hung with the interpreter's lock; else it is empty, or not there."""
    return folder / f"stacks-{worker_id}-{pid}-interpreter-lock.txt"


def _others(view: JobView | None, me: Standing) -> list[Standing]:
    if view is None:
        return []
    return [
        Standing(
            rank=worker.rank,
            worker_id=worker.worker_id,
            step=worker.step,
            collectives=worker.resources.get("collectives"),
            stalled_s=worker.resources.get("stalled_s", 0.0),
            is_waiting=bool(worker.resources.get("waiting", 0.0)),
            is_in_collective=bool(worker.resources.get("in_collective", 0.0)),
        )
        for worker in view.workers
        if worker.worker_id != me.worker_id and worker.state not in _GONE
    ]
