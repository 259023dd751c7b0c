"""Run: a worker's part in a job, as the training loop holds it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from strata.checkpoint import CheckpointManager, Restored, SaveHandle
from strata.cluster.commands import WorkerState
from strata.cluster.seat import Seat
from strata.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    ForeignCheckpointError,
    JobWaitingError,
    Reconfigure,
    StrataError,
)
from strata.run.cadence import Cadence
from strata.run.data import RunDataset
from strata.run.schedule import MEET_TIMEOUT_S, Schedule
from strata.run.state import State, has_slices, put_back, spread, to_like, to_tree
from strata.run.steps import Step, go_through
from strata.run.stopping import StopSignal
from strata.run.team import Team

log = logging.getLogger(__name__)

# So long does a worker that fails wait for its last save: it may be the only one that can still be made durable.
ABANDON_S = 10.0
# How often what the model has seen is reported.
REPORT_S = 1.0


class Run:
    """A worker of a job. Leaving the ``with`` block, or :meth:`close`, waits for pending saves and says goodbye.

    All workers of a job call the same methods at the same steps. A change of the membership raises
    :class:`strata.Reconfigure` in :meth:`step`, :meth:`barrier` and :meth:`exchange`; loop over :meth:`steps`, which
    restores and goes on by itself. Not for several threads.
    """

    def __init__(
        self, team: Team, checkpoints: CheckpointManager, cadence: Cadence, *, job_id: str, worker_id: str
    ) -> None:
        self._team = team
        self._datasets: dict[str, RunDataset] = {}
        self._stop = StopSignal()
        self._seat = team.enter(self._stop.is_told)
        self._schedule = Schedule(team, cadence, self._seat)
        self._saved: SaveHandle | None = None
        self._restored_step = 0
        self._reported_s = time.monotonic()
        self._samples = 0.0
        self._metrics: dict[str, float] = {}
        self._is_save_due = False
        self._is_closed = False
        self.job_id = job_id
        self.worker_id = worker_id
        self.checkpoints = checkpoints
        self.step_number = 0

    # Who this is

    @property
    def rank(self) -> int:
        """This worker's number in the present generation, from 0 on."""
        return self._seat.rank

    @property
    def world_size(self) -> int:
        """How many workers the present generation has."""
        return self._seat.world_size

    @property
    def generation(self) -> int:
        """The number of the membership that this worker trains in."""
        return self._seat.generation

    @property
    def last_save(self) -> SaveHandle | None:
        """The save that was begun last since the state was restored."""
        return self._saved

    # Data and state

    def dataset(self, source: Any, *, name: str | None = None, block_size: int = 1, **options: Any) -> RunDataset:
        """Open a dataset that all workers of the job share; ``options`` are those of ``strata.data.open_dataset``.

        ``name`` is what the job knows it by, by default the last part of its URL. In the ``global`` order every global
        batch is cut between workers in whole blocks of ``block_size``.
        """
        dataset = RunDataset.open(self._team, self._seat, source, name=name, block_size=block_size, options=options)
        if dataset.name in self._datasets:
            raise ValueError(f"this run has a dataset {dataset.name!r} already; give one of them another name")
        self._datasets[dataset.name] = dataset
        self._schedule.is_uneven |= not dataset.is_even
        return dataset

    def restore(self, state: State) -> int:
        """Bring model, optimizer and data position to where the job is, in place; return the step, 0 at the beginning.

        All workers of the present generation restore the same checkpoint. Where there is none, rank 0's state becomes
        the beginning of all. Open datasets before this.
        """
        while True:
            self._note(WorkerState.RECOVERING)
            self._seat = seat = self._team.enter(self._stop.is_told)
            self._schedule.enter(seat)
            self._is_save_due = False
            try:
                restored = self._load(state)
                self._team.check(seat)
                if restored.job_id not in ("", self.job_id):
                    raise ForeignCheckpointError(restored.step, found=restored.job_id, expected=self.job_id)
            except (Reconfigure, JobWaitingError) as error:
                log.info("restoring again: %s", error)
                continue
            except CheckpointError:
                # The generation may have ended meanwhile, and with it what was asked for.
                if self._is_current(seat):
                    raise
                continue
            return self._go_on_from(state, restored)

    def save(self, state: State, step: int | None = None, **metadata: Any) -> SaveHandle:
        """Begin to save the state after ``step``; returns when it is staged, and training may go on.

        A save that fails is reported and stops nothing. All workers call it at the same step.
        """
        step = self.step_number if step is None else step
        self._report_progress()
        tree = to_tree(state)
        if not has_slices(tree):
            tree = spread(tree, rank=self.rank, world_size=self.world_size)
        return self._save(tree, step, metadata)

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

        A change of the membership is handled here: whatever was done since the last checkpoint is void, and steps are
        yielded again from there. Put the work of a step into ``with step:``, which ends early when that happens. With
        ``recover=False`` Reconfigure is raised instead: for what cannot change its membership and is started again as a
        whole, such as DDP under torchrun.
        """
        self._stop.heed()
        return go_through(self, state, dataset, epochs=epochs, until=until, recover=recover)

    def step(self, number: int | None = None, **metrics: float) -> None:
        """Say that a step is done: the safe point, where Reconfigure is raised and the next save is agreed on."""
        self.step_number = self.step_number + 1 if number is None else number
        samples = sum(dataset.collect(self.step_number) for dataset in self._datasets.values())
        self._schedule.tick()
        step_s = self._schedule.step_s
        self._samples = 0.9 * self._samples + 0.1 * samples
        self._metrics = {"step_s": step_s, "samples_per_s": self._samples / max(step_s, 1e-9), **metrics}
        self._note(WorkerState.TRAINING)
        self._team.check(self._seat)
        if time.monotonic() - self._reported_s > REPORT_S:
            self._report_progress()
        self._is_save_due = self._schedule.decide(self.step_number, is_leaving=self._stop.is_told())

    def should_save(self) -> bool:
        """Whether the state is to be saved after the step that was last said to be done; the same for all workers."""
        return self._is_save_due

    def should_stop(self) -> bool:
        """Whether this process was asked to end (SIGTERM): finish the step, save if that is due, and leave.

        From the first call on, SIGTERM asks instead of ending the process.
        """
        self._stop.heed()
        return self._stop.is_told()

    def barrier(self, name: str, *, timeout_s: float = MEET_TIMEOUT_S) -> None:
        """Return when all workers are here, or raise who is missing. A name is used once in a generation."""
        self._team.exchange(self._seat, f"user/{name}", b"", timeout_s=timeout_s)

    def exchange(self, name: str, payload: bytes, *, timeout_s: float = MEET_TIMEOUT_S) -> list[bytes]:
        """Return everyone's payload (up to 1 MiB each) in the order of ranks. A name is used once in a generation."""
        return self._team.exchange(self._seat, f"user/{name}", payload, timeout_s=timeout_s)

    async def barrier_async(self, name: str, *, timeout_s: float = MEET_TIMEOUT_S) -> None:
        """As :meth:`barrier`, for an event loop."""
        await asyncio.to_thread(self.barrier, name, timeout_s=timeout_s)

    async def exchange_async(self, name: str, payload: bytes, *, timeout_s: float = MEET_TIMEOUT_S) -> list[bytes]:
        """As :meth:`exchange`, for an event loop."""
        return await asyncio.to_thread(self.exchange, name, payload, timeout_s=timeout_s)

    # Ending

    def is_over_without_data(self, dataset: RunDataset) -> bool:
        """Whether all workers are out of data, now that this one is."""
        self._schedule.is_out = True
        return dataset.is_even or self._schedule.is_over or self.world_size == 1 or not self._schedule.meets

    def may_leave(self) -> bool:
        """Whether this process was asked to end, and the others know; where they save first, they have."""
        return self.should_stop() and (self._schedule.may_leave or not self._schedule.meets)

    def leave(self, state: State) -> None:
        """See the save of the last step through, if all made one, before this worker goes."""
        if self._team.client is None:
            self.finish(state)
        elif self._saved is not None and self._saved.step == self.step_number:
            with suppress(CheckpointError):  # it is in the log, and the others go on from the one before
                self._saved.result(MEET_TIMEOUT_S)

    def finish(self, state: State) -> None:
        """Return when the last step is committed; raise why it is not."""
        if self._saved is None or self._saved.step != self.step_number:
            if self.step_number == self._restored_step:
                return
            self.save(state)
        assert self._saved is not None
        try:
            self._saved.result(MEET_TIMEOUT_S)
        except CheckpointError:
            # If it was given up because a worker was lost, the others do the last steps again.
            self._team.check(self._seat)
            raise

    def close(self, *, timeout_s: float = MEET_TIMEOUT_S) -> None:
        """Say what was seen last, wait for pending saves, and leave the job."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._report_progress()
        except StrataError as error:
            log.debug("what was seen last was not reported: %s", error)
        try:
            self.checkpoints.close(timeout_s)
        except CheckpointTimeoutError as error:
            log.warning("left before its last save was committed: %s", error)
        finally:
            for dataset in self._datasets.values():
                dataset.close()
            self._team.close()
            self._stop.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(timeout_s=MEET_TIMEOUT_S if error is None else ABANDON_S)

    def __repr__(self) -> str:
        return f"Run({self.job_id}/{self.worker_id}: rank {self.rank} of {self.world_size}, step {self.step_number})"

    def _is_current(self, seat: Seat) -> bool:
        try:
            self._team.check(seat)
        except Reconfigure:
            return False
        return True

    def _load(self, state: State) -> Restored:
        try:
            return self.checkpoints.load(like=to_like(state))
        except CheckpointNotFoundError as error:
            if error.step is not None:
                raise  # there was one, and it is lost: that is no beginning
            tree = to_tree(state)
            if self._team.client is None:
                return Restored(data=tree, step=0, epoch=0, metadata={}, cursors={}, generation=self.generation)
            # Rank 0's state becomes the first checkpoint: so there is always one to go back to, the same for all.
            if self.rank != 0 and not has_slices(tree):
                tree = {}
            with suppress(CheckpointExistsError):
                self._save(tree, 0, {}).result(MEET_TIMEOUT_S)
            return self.checkpoints.load(0, like=to_like(state))

    def _go_on_from(self, state: State, restored: Restored) -> int:
        put_back(state, restored.data)
        for dataset in self._datasets.values():
            dataset.restore(self._seat, restored.cursors)
        self.step_number = self._restored_step = restored.step
        self._saved = None
        self._reported_s = time.monotonic()
        self._schedule.restored(restored.step)
        return restored.step

    def _save(self, tree: Any, step: int, metadata: dict[str, Any]) -> SaveHandle:
        cursors = {}
        if self._team.client is None:
            cursors = {name: dataset.state_dict() for name, dataset in self._datasets.items()}
        self._note(WorkerState.CHECKPOINTING)
        epoch = max((dataset.epoch for dataset in self._datasets.values()), default=0)
        generation = None if self._team.client is None else self.generation
        handle = self.checkpoints.save_background(tree, step, epoch, metadata, cursors=cursors, generation=generation)
        self._schedule.saved(step, cost_s=handle.blocked_s)
        self._saved = handle
        return handle

    def _report_progress(self) -> None:
        progress = [each for dataset in self._datasets.values() for each in dataset.take_progress()]
        self._team.report(self._seat, progress)
        self._reported_s = time.monotonic()

    def _note(self, state: WorkerState) -> None:
        epoch = max((dataset.epoch for dataset in self._datasets.values()), default=0)
        self._team.note(state=state, step=self.step_number, epoch=epoch, resources=self._metrics)
