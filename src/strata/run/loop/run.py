"""Run: a worker's part in a job, as the training loop holds it."""

from __future__ import annotations

import asyncio
import atexit
import logging
import operator
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, SupportsFloat, Unpack

from strata.checkpoint import CheckpointManager, Restored, SaveHandle
from strata.checkpoint.format.random_state import RANDOM_STATE, RandomStateOf
from strata.cluster.commands import WorkerState
from strata.cluster.events import Cause
from strata.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    ForeignCheckpointError,
    JobWaitingError,
    Reconfigure,
)
from strata.run.data.datasets import Datasets, count_steps
from strata.run.exit_code import ExitCode
from strata.run.exits import Stopped, goodbye_at_exit, goodbye_of
from strata.run.job_folder import JobFolder, RestartUnit
from strata.run.loop.cadence import Cadence
from strata.run.loop.ending import Ending
from strata.run.loop.lazy_saves import LazySaves
from strata.run.loop.meter import Meter
from strata.run.loop.recovery import Recovery
from strata.run.loop.schedule import Schedule
from strata.run.loop.state import State, find_generators, is_spread, put_back, share_of, to_like, to_tree
from strata.run.loop.steps import Loop, Step
from strata.run.loop.stop_agreement import StopAgreement
from strata.run.loop.stopping import StopSignal
from strata.run.randomness.randomness import Randomness
from strata.run.team.protocol import MEET_TIMEOUT_S, Team
from strata.run.watchdog.monitor import Monitor
from strata.run.watchdog.waits import Waits
from strata.run.watchdog.watchdog import Watchdog

if TYPE_CHECKING:
    from strata.run.data.blocks import Block
    from strata.run.data.dataset_sources import DatasetOptions, Source
    from strata.run.data.run_dataset import RunDataset

log = logging.getLogger(__name__)

# So long does a worker that fails wait for its last save: it may be the only one that can still be made durable.
ABANDON_S = 10.0
# How often what the model has seen is reported.
REPORT_S = 1.0


class Run:
    """A worker of a job. Leaving the ``with`` block, or :meth:`close`, waits for pending saves and says goodbye.

    All workers of a job call the same methods at the same steps. A change of the membership raises
    :class:`strata.Reconfigure` in :meth:`step`, :meth:`barrier` and :meth:`exchange`; loop over :meth:`steps`, which
    restores and goes on by itself. Not for several threads. :func:`strata.join` makes one.
    """

    def __init__(
        self,
        team: Team,
        checkpoints: CheckpointManager,
        cadence: Cadence,
        *,
        job_id: str,
        worker_id: str,
        folder: JobFolder,
        waits: Waits,
        monitor: Monitor,
        randomness: Randomness,
        watchdog_s: float | None = None,
        log_to: str | None = None,
    ) -> None:
        self._team, self._datasets = team, Datasets()
        self._stop = StopSignal()
        self._waits = waits
        self._monitor = monitor
        self._randomness = randomness
        self._job_folder = folder
        self.worker_id = worker_id
        if team.client is not None:
            self._note_restart_unit(RestartUnit.WORKER)
        self._note_membership()
        self._rank_info = team.enter()
        self._schedule = Schedule(team, cadence, self._rank_info)
        self._agreement = StopAgreement(team, waits, self._stop)
        self._ending = Ending(self, self._schedule, team, waits, self._stop, ExitCode(folder, worker_id=worker_id))
        self._watchdog = Watchdog(
            team,
            waits,
            worker_id=worker_id,
            folder=folder.stacks,
            limit_s=watchdog_s,
            is_outdated=lambda: not self.is_current(),
        )
        monitor.add(self._agreement.tick, self._watchdog.tick)
        self._is_first_step = True
        self._saved: SaveHandle | None = None
        self._is_save_due = self._is_stop_due = self._is_closed = False
        self._meter = Meter(waits.account, log_to=log_to, job_id=job_id)
        self.bound_generation: int | None = None
        self.step_number = self.restored_step = 0
        self._pid, self._reported_s = os.getpid(), time.monotonic()
        self.job_id, self.checkpoints = job_id, checkpoints
        self._lazy_saves = LazySaves(checkpoints)
        randomness.begin(rank=self.rank)
        # After the client's own: what is registered last is called first, and the client is still there to say why.
        atexit.register(self._close_at_exit)

    @property
    def rank(self) -> int:
        """This worker's number in the present generation, from 0 on."""
        return self._rank_info.rank

    @property
    def world_size(self) -> int:
        """How many workers the present generation has."""
        return self._rank_info.world_size

    @property
    def generation(self) -> int:
        """The number of the membership that this worker trains in."""
        return self._rank_info.generation

    @property
    def metrics(self) -> dict[str, float]:
        """What was last reported, such as the loss, with step_s and samples_per_s; empty before the first step."""
        return dict(self._meter.metrics)

    @property
    def last_save(self) -> SaveHandle | None:
        """The save that was begun last since the state was restored."""
        return self._saved

    @property
    def next_step(self) -> int:
        """The number of the step that is done next: after batches that a rewind skips, the one of its own batch."""
        return self.step_number + 1 + self._datasets.passed

    def refresh(self) -> None:
        """Take this worker's place in the present generation, when the job has as many workers as it needs."""
        self._rank_info = self._team.enter(self._ending.check_stop)
        self._note_membership()
        self._schedule.enter(self._rank_info)

    def bind(self) -> None:
        """Let ``run.steps(recover=False)`` begin in this generation only: a process group was made in it."""
        self.bound_generation = self.generation
        self._note_restart_unit(RestartUnit.GROUP)

    # Data and state

    def dataset(
        self, source: Source, *, name: str | None = None, block_size: int = 1, **options: Unpack[DatasetOptions]
    ) -> RunDataset:
        """Open a dataset that all workers of the job share; ``options`` are those of ``strata.data.open_dataset``.

        ``name`` is what the job knows it by, by default the last part of its URL. In the ``global`` order every global
        batch is cut between workers in whole blocks of ``block_size``.
        """
        dataset = self._datasets.open(self._team, self._rank_info, source, options, name=name, block_size=block_size)
        self._schedule.is_uneven |= not dataset.is_even
        return dataset

    def restore(self, state: State) -> int:
        """Bring model, optimizer and data position to where the job is, in place; return the step, 0 at the beginning.

        All workers of the present generation restore the same checkpoint. Where there is none, rank 0's state becomes
        the beginning of all. Open datasets before this.
        """
        self._watchdog.disarm()
        while True:
            self._note(WorkerState.RECOVERING)
            recovery = Recovery(self._team.traces)
            self.refresh()
            self._is_save_due = False
            try:
                with recovery.restoring(self._rank_info), self._waits.waiting("the state is restored", part="restore"):
                    restored = self._load(state)
                self._team.check(self._rank_info)
                if restored.job_id not in ("", self.job_id):
                    raise ForeignCheckpointError(restored.step, found=restored.job_id, expected=self.job_id)
            except (Reconfigure, JobWaitingError) as error:
                log.info("restoring again: %s", error)
                continue
            except CheckpointError:
                # The generation may have ended meanwhile, and with it what was asked for.
                if self.is_current():
                    raise
                continue
            return recovery.end(self._go_on_from(state, restored))

    def save(self, /, state: State, step: int | None = None, **metadata: Any) -> SaveHandle:
        """Begin to save the state after ``step``; returns when training may go on.

        Tensors of torch optimizers are staged meanwhile; their next step() waits for that, and who else changes them
        calls the handle's ``wait_staged()`` before. A save that fails is reported and stops nothing. All workers call
        it at the same step; a step that is being saved already is not saved again.
        """
        step = self.step_number if step is None else step
        if self._saved is not None and self._saved.step == step:
            return self._saved
        self._report_progress()
        with self._waits.waiting(f"the state of step {step} is staged", is_on_others=False, part="save"):
            tree = share_of(state, rank=self.rank, world_size=self.world_size)
            return self._save(tree, state, step, metadata, lazy=self._lazy_saves.allow(state, self._saved))

    # The loop

    def steps(
        self,
        state: State,
        dataset: RunDataset | None = None,
        *,
        epochs: int = 1,
        until: int | None = None,
        recover: bool = True,
    ) -> Iterator[Step]:
        """Restore, and yield step after step until the epochs, or ``until`` so many steps, are over; then save.

        When the membership changes, whatever was done since the last checkpoint is discarded, and steps are yielded
        again from there. Put the work of a step into ``with step:``, which ends early when that happens. With
        ``recover=False`` Reconfigure is raised instead: for what cannot change its membership and is started again as a
        whole, such as DDP. A worker that gets SIGTERM raises :class:`strata.Stopped` after a step that all have saved.
        """
        self._ending.enter_loop()
        if not recover:
            self._note_restart_unit(RestartUnit.GROUP)
        self._meter.total_steps = count_steps(dataset, epochs=epochs, until=until)
        loop = Loop(self, self._ending, self._waits, state, dataset, epochs=epochs, until=until, recover=recover)
        return self._watched(loop)

    def step(self, /, number: int | None = None, **metrics: SupportsFloat) -> None:
        """Say that a step is done: the safe point, where Reconfigure is raised and the next save is agreed on.

        From the first step on, SIGTERM asks this worker to stop instead of ending its process. ``metrics`` are as in
        :meth:`Step.report`.
        """
        self.end_step(None if number is None else operator.index(number), metrics)

    def end_step(self, number: int | None, metrics: Mapping[str, SupportsFloat]) -> None:
        """Do what :meth:`step` does, with metrics of any names."""
        self._ending.enter_loop()
        if self._is_stop_due:
            self.stop()
        self.step_number = self.next_step if number is None else number
        self._watchdog.done(self.step_number)
        samples = self._datasets.collect(self.step_number)
        self._schedule.tick()
        self._meter.add(self.step_number, step_s=self._schedule.step_s, samples=samples, reported=metrics)
        self._note(WorkerState.TRAINING)
        if self._is_first_step:
            self._is_first_step = False
            self._job_folder.note_first_step(worker_id=self.worker_id)
            if _has_process_group():
                self._note_restart_unit(RestartUnit.GROUP)
        self._team.check(self._rank_info)
        if time.monotonic() - self._reported_s > REPORT_S:
            self._report_progress()
        self._is_save_due = self._schedule.decide(self.step_number, is_leaving=self._stop.is_set())
        is_stopping = self._agreement.is_reached(self.step_number)
        self._is_save_due |= is_stopping
        if self._stop.is_set():
            alone = self._team.client is None
            self._is_save_due |= alone
            self._is_stop_due = alone or self._schedule.may_leave or is_stopping or self._agreement.has_failed()

    def seeded(self, block: Block) -> AbstractContextManager[None]:
        """Seed random numbers by (seed, next step, block) within the ``with`` block; then they go on as before.

        Dropout in it is the same for any number of workers. The seed is the one given to :func:`strata.join`, or 0.
        """
        return self._randomness.seeded(self.next_step, block.number)

    def should_save(self) -> bool:
        """Whether the state is to be saved after the step that was last said to be done; the same for all workers."""
        return self._is_save_due

    def should_stop(self) -> bool:
        """Whether this worker was told to stop (SIGTERM), and it is time: save if that is due, then :meth:`stop`."""
        return self._is_stop_due

    def stop(self) -> NoReturn:
        """Wait until the last step is committed, if all workers saved it, and raise Stopped, as the next step does."""
        self._ending.stop()

    def pause_watchdog(self, what: str) -> AbstractContextManager[None]:
        """Let a known long phase, such as an evaluation, take as long as it does: the block is no stall."""
        return self._watchdog.pause(what)

    def barrier(self, name: str, *, timeout_s: float | None = None) -> None:
        """Return when all workers are here, or raise who is missing. A name is used once in a generation."""
        self._team.exchange(self._rank_info, f"user/{name}", b"", timeout_s=timeout_s)

    def exchange(self, name: str, payload: bytes, *, timeout_s: float | None = None) -> list[bytes]:
        """Return everyone's payload (up to 1 MiB each) in the order of ranks. A name is used once in a generation."""
        return self._team.exchange(self._rank_info, f"user/{name}", payload, timeout_s=timeout_s)

    async def barrier_async(self, name: str, *, timeout_s: float | None = None) -> None:
        """As :meth:`barrier`, for an event loop."""
        await asyncio.to_thread(self.barrier, name, timeout_s=timeout_s)

    async def exchange_async(self, name: str, payload: bytes, *, timeout_s: float | None = None) -> list[bytes]:
        """As :meth:`exchange`, for an event loop."""
        return await asyncio.to_thread(self.exchange, name, payload, timeout_s=timeout_s)

    def is_current(self) -> bool:
        """Whether the membership is still the one that this worker trains in."""
        return self.find_change() is None

    def find_change(self) -> Reconfigure | None:
        """Return how the membership that this worker trains in ended; None if it has not."""
        try:
            self._team.check(self._rank_info)
        except Reconfigure as change:
            return change
        return None

    def close(self, *, timeout_s: float = MEET_TIMEOUT_S, reason: str = "", cause: Cause = Cause.FINISHED) -> None:
        """Say what was seen last, wait for pending saves, and leave the job; its events show cause and reason."""
        if self._is_closed or self._pid != os.getpid():  # a child that was forked is no worker
            return
        self._is_closed = True
        if cause is Cause.FINISHED and self._ending.stopped is not None:  # the script has caught it
            cause, reason = goodbye_of(self._ending.stopped)
        if cause is Cause.PREEMPTED:
            # SIGTERM says nothing of why; the launcher that sent it does.
            told = self._job_folder.read_why_ended()
            cause, reason = (cause, reason) if told is None else (told[0], f"{told[1]}; {reason}")
        atexit.unregister(self._close_at_exit)
        self._agreement.leave()
        self._watchdog.disarm()
        self._meter.close()
        try:
            self._report_progress()
            with self._waits.waiting("pending saves are committed", timeout_s=timeout_s, part="save"):
                self.checkpoints.close(timeout_s)
        except CheckpointTimeoutError as error:
            log.warning("left before its last save was committed: %s", error)
        finally:
            self._datasets.close()
            self._note(WorkerState.IDLE)
            self._team.close(reason, cause=cause)
            self._job_folder.discard_membership(worker_id=self.worker_id)
            if cause is Cause.FINISHED and not self._is_stop_due:
                self._ending.leave_loop()
            self._stop.release()
            self._monitor.close()
            self._watchdog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timeout_s = MEET_TIMEOUT_S if error is None or isinstance(error, Stopped) else ABANDON_S
        cause, reason = goodbye_of(error)
        self.close(timeout_s=timeout_s, reason=reason, cause=cause)

    def _close_at_exit(self) -> None:
        """The script ended without closing its run: say why, as far as that is known."""
        ended_by = self._ending.stopped or self._ending.group_restart
        cause, reason = goodbye_at_exit(ended_by, is_finished=self._ending.is_finished)
        self.close(timeout_s=ABANDON_S, reason=reason, cause=cause)

    def __repr__(self) -> str:
        return f"Run({self.job_id}/{self.worker_id}: rank {self.rank} of {self.world_size}, step {self.step_number})"

    def _load(self, state: State) -> Restored:
        try:
            return self.checkpoints.load(like=self._to_like(state))
        except CheckpointNotFoundError as error:
            if error.step is not None:
                raise  # there was one, and it is lost: that is no beginning
        self._randomness.begin(rank=self.rank)
        tree = to_tree(state)
        if self._team.client is None:
            return Restored(data=tree, step=0, epoch=0, metadata={}, cursors={}, generation=self.generation)
        # Rank 0's state becomes the first checkpoint: so there is always one to go back to, the same for all.
        tree = tree if self.rank == 0 or is_spread(tree) else {}
        with suppress(CheckpointExistsError):
            self._save(tree, state, 0, {}).result(MEET_TIMEOUT_S)
        return self.checkpoints.load(0, like=self._to_like(state))

    def _to_like(self, state: State) -> Any:
        like = to_like(state)
        return {**like, RANDOM_STATE: RandomStateOf(self.rank)} if isinstance(like, dict) else like

    def _go_on_from(self, state: State, restored: Restored) -> int:
        put_back(state, restored.data)
        self._datasets.restore(self._rank_info, restored)
        self.step_number = self.restored_step = restored.step
        self._saved, self._reported_s = None, time.monotonic()
        self._meter.begin(restored.step, rank=self.rank)
        self._schedule.restored(restored.step)
        saved = restored.data.get(RANDOM_STATE) if isinstance(restored.data, dict) else None
        place = {"step": restored.step, "rank": self.rank, "world_size": self.world_size}
        self._randomness.put_back(saved, find_generators(state), **place)
        self.go_on()
        return restored.step

    def go_on(self) -> None:
        """Begin with the steps after the one that the state is of, in the present generation."""
        self._schedule.enter(self._rank_info)
        if self._team.client is not None and not self._schedule.meets:
            self._agreement.enter(self._rank_info, self.step_number)
        self._watchdog.arm(self.step_number, rank=self.rank, generation=self.generation)

    def _save(self, tree: Any, state: State, step: int, metadata: dict[str, Any], *, lazy: bool = False) -> SaveHandle:
        self._note(WorkerState.CHECKPOINTING)
        cursors, epoch = self._datasets.cursors(), self._datasets.epoch
        generation = None if self._team.client is None else self.generation
        self._saved = handle = self.checkpoints.save_background(
            tree,
            step,
            epoch,
            metadata,
            cursors=cursors,
            generation=generation,
            lazy=lazy,
            random_state=self._randomness.read(find_generators(state)) if isinstance(tree, dict) else None,
        )
        self._meter.note_save(handle)
        self._schedule.saved(step, cost_s=handle.blocked_s)
        return handle

    def _report_progress(self) -> None:
        self._team.report(self._rank_info, self._datasets.take_progress())
        self._reported_s = time.monotonic()

    def _watched(self, loop: Loop) -> Iterator[Step]:
        try:
            yield from loop.go_through()
            self._ending.leave_loop(is_finished=True)
        except GeneratorExit:
            # By break; a script that breaks because of SIGTERM has not finished.
            if not self._stop.is_set():
                self._ending.leave_loop()
            raise
        finally:
            self._agreement.leave()
            self._watchdog.disarm()

    def _note_restart_unit(self, unit: RestartUnit) -> None:
        self._job_folder.note_restart_unit(unit, worker_id=self.worker_id)

    def _note_membership(self) -> None:
        if self._team.client is not None:
            self._job_folder.note_membership(self._team.client.incarnation, worker_id=self.worker_id)

    def _note(self, state: WorkerState) -> None:
        self._watchdog.metrics = self._meter.sent
        report = self._meter.report(self._rank_info)
        self._team.note(state=state, step=self.step_number, epoch=self._datasets.epoch, **report)


def _has_process_group() -> bool:
    """Whether this process is in a process group of torch, whose members cannot change."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()
