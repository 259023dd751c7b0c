"""A worker's team behind a coordinator."""

from __future__ import annotations

import logging
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from strata.client.client import Client
from strata.client.connection import parse_address
from strata.cluster import commands as c
from strata.cluster.replies import Hand, KeyValue, Reply
from strata.cluster.seat import Seat
from strata.data.dataset import Plan
from strata.data.dealer import Dealer
from strata.data.skips import SkippedRows
from strata.errors import (
    CoordinatorLostError,
    DatasetChangedError,
    GenerationChangedError,
    JobWaitingError,
    OutOfOrderError,
    Reconfigure,
    StaleGenerationError,
    StaleIncarnationError,
    StrataError,
    UnknownWorkerError,
    WorldSizeError,
)
from strata.run.blocks import cut_blocks
from strata.run.team import Progress
from strata.sharding import DatasetParams
from strata.sharding.cursor import Spans

log = logging.getLogger(__name__)

T = TypeVar("T")
POLL_S = 0.05
# How long one question waits before whoever asks may have changed its mind.
ASK_S = 2.0
# How long a job that begins waits for all workers that were announced, once it has as many as it needs.
GATHER_S = 30.0
# What says that a generation is over. A report out of order follows one that was refused for that.
_OVER = (StaleGenerationError, StaleIncarnationError, GenerationChangedError, UnknownWorkerError, OutOfOrderError)


class CoordinatedTeam:
    """The workers of a job that meet at a coordinator. All methods may be called from any thread."""

    def __init__(
        self,
        url: str,
        worker_id: str,
        *,
        job_id: str,
        rank: int | None,
        world_size: int | None,
        timeout_s: float,
    ) -> None:
        self._url = parse_address(url)
        self._job_id = job_id
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._writer = uuid.uuid4().hex
        self._is_closed = False
        self._reports = _Reports()
        self.client = Client(url, worker_id, job_id=job_id, preferred_rank=rank)

    def enter(self, is_told_to_stop: Callable[[], bool]) -> Seat:
        """Return the seat in the present generation, when the job has as many workers as it needs."""
        deadline_s = time.monotonic() + self._timeout_s
        gathered_s = time.monotonic() + GATHER_S
        told = ""
        self._reports.settle(timeout_s=self._timeout_s)
        while True:
            try:
                heard = self.client.heartbeat(state=c.WorkerState.RECOVERING, timeout_s=self._timeout_s)
            except (StaleIncarnationError, UnknownWorkerError):
                # It was declared dead and joins again by itself.
                self._pause(deadline_s)
                continue
            needed = heard.world_size + heard.waits_for
            if heard.waits_for and self._world_size is not None and self._world_size < needed:
                raise WorldSizeError(self._job_id, given=self._world_size, needed=needed)
            missing = heard.waits_for
            if not missing and self._is_young(heard.generation) and time.monotonic() < gathered_s:
                missing = max(0, (self._world_size or 0) - heard.world_size)
            if not missing:
                return heard.seat
            if told != (told := f"{heard.world_size} of {heard.world_size + missing}"):
                log.info("job %s waits for its workers: %s are here", self._job_id, told)
            if is_told_to_stop():
                raise SystemExit(128 + signal.SIGTERM)
            if time.monotonic() > deadline_s:
                raise JobWaitingError(self._job_id, missing=missing, min_workers=needed)
            self._pause(deadline_s)

    def check(self, seat: Seat) -> None:
        """Raise Reconfigure if the generation is over."""
        if self.client.generation != seat.generation:
            raise Reconfigure(seat.generation, self.client.why_changed)
        self._guard(seat, self._reports.check)

    def exchange(self, seat: Seat, name: str, payload: bytes, *, timeout_s: float) -> list[bytes]:
        """Meet the others and return everyone's payload, in the order of ranks."""
        released = self._guard(
            seat,
            lambda: self.client.meet(
                name, generation=seat.generation, expected=seat.world_size, payload=payload, timeout_s=timeout_s
            ),
        )
        return list(released.payloads)

    def register(self, params: DatasetParams, *, fingerprint: str, url: str) -> None:
        """Make a dataset known, or raise if the job knows another one by that name."""
        self.client.ask(c.RegisterDataset(job_id=self._job_id, **params.to_json()), timeout_s=self._timeout_s)
        known = c.SetKey(
            job_id=self._job_id,
            key=f"dataset/{params.dataset_id}",
            value=fingerprint.encode(),
            token=0,
            writer=self._writer,
        )
        found = self.client.ask(known, timeout_s=self._timeout_s)
        assert isinstance(found, KeyValue)
        if found.value != known.value:
            raise DatasetChangedError(params.dataset_id, url=url)

    def dealer(self, seat: Seat, params: DatasetParams, plan: Plan, *, block_size: int) -> Dealer:
        """Return who says what this worker reads in this generation."""
        return CoordinatedDealer(self, seat, params, plan, block_size=block_size)

    def take_hand(self, seat: Seat, dataset_id: str, epoch: int, ticket: int) -> Spans:
        """Return the worker's next rows of an epoch; waits while the job has too few workers, or no coordinator."""
        while not self._is_closed:
            command = self.client.own(
                c.TakeHand, generation=seat.generation, dataset_id=dataset_id, epoch=epoch, ticket=ticket
            )
            try:
                hand = self._guard(seat, partial(self.client.ask, command, timeout_s=ASK_S))
            except (CoordinatorLostError, JobWaitingError):
                self.check(seat)
                time.sleep(POLL_S)
                continue
            assert isinstance(hand, Hand)
            return hand.spans
        raise Reconfigure(seat.generation, "the run was closed")

    def report(self, seat: Seat, progress: Sequence[Progress]) -> None:
        """Say what the model has seen; it arrives before what is said after it, and is not waited for."""
        for each in progress:
            command = self.client.own(
                c.ReportProgress,
                generation=seat.generation,
                sequence=1,
                dataset_id=each.dataset_id,
                epoch=each.epoch,
                step=each.step,
                spans=tuple((shard, start, stop) for shard, start, stop in each.spans.tolist()),
            )
            self._reports.send(command, self.client.tell)

    def skip(self, seat: Seat, dataset_id: str, rows: SkippedRows) -> None:
        """Say what could not be read; it is not waited for."""
        command = self.client.own(
            c.SkipSamples,
            generation=seat.generation,
            dataset_id=dataset_id,
            start=rows.start,
            stop=rows.start + rows.num_rows,
            reason=rows.reason,
        )
        # Of an older generation it is refused; everything is said again in the next one.
        self.client.tell(command)

    def note(self, **fields: Any) -> None:
        """Say what the worker is doing, with the next beat."""
        self.client.note(**fields)

    def close(self) -> None:
        """Leave the job."""
        self._is_closed = True
        self.client.close()

    def _is_young(self, generation: int) -> bool:
        """Whether nothing has happened in this job but workers joining for the first time."""
        return self._world_size is not None and generation < self._world_size

    def _guard(self, seat: Seat, work: Callable[[], T]) -> T:
        try:
            return work()
        except _OVER as error:
            raise Reconfigure(seat.generation, self.client.why_changed or str(error)) from error

    def _pause(self, deadline_s: float) -> None:
        if time.monotonic() > deadline_s:
            raise CoordinatorLostError(self._url, waited_s=self._timeout_s)
        time.sleep(POLL_S)


class CoordinatedDealer:
    """Deals what the coordinator gives this worker in one generation."""

    def __init__(
        self, team: CoordinatedTeam, seat: Seat, params: DatasetParams, plan: Plan, *, block_size: int
    ) -> None:
        self._team = team
        self._seat = seat
        self._params = params
        self._plan = plan
        self._block_size = block_size
        self.empty_batches = 0
        """How many batches of the epoch that was dealt last have nothing for this worker; they are its last ones."""

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield rows until the epoch has no more for this worker."""
        ticket = 1
        self.empty_batches = 0
        while len(spans := self._team.take_hand(self._seat, self._params.dataset_id, epoch, ticket)):
            if self._params.is_global:
                for _, start, stop in spans.tolist():
                    rows = cut_blocks(
                        start,
                        stop,
                        batch_size=self._plan.global_batch_size,
                        block_size=self._block_size,
                        rank=self._seat.rank,
                        world_size=self._seat.world_size,
                        drop_last=self._plan.options.drop_last,
                    )
                    filled = rows[:, 2] > rows[:, 1]
                    self.empty_batches += int((~filled).sum())
                    yield rows[filled]
            else:
                yield spans
            ticket += 1


class _Reports:
    """Reports that were sent and not answered. They are numbered by how many the coordinator took of this life."""

    def __init__(self) -> None:
        self._sent: list[tuple[int, Future[Reply]]] = []
        self._incarnation = ""
        self._number = 0

    def send(self, command: c.ReportProgress, tell: Callable[[c.JobCommand], Future[Reply]]) -> None:
        if command.incarnation != self._incarnation:
            self._incarnation, self._number = command.incarnation, 0
        self._number += 1
        self._sent.append((self._number, tell(replace(command, sequence=self._number))))

    def check(self) -> None:
        """Raise what was answered to the first report that was refused."""
        while self._sent and self._sent[0][1].done():
            self._sent.pop(0)[1].result()

    def settle(self, *, timeout_s: float) -> None:
        """Wait for all answers, and count on from the last report that was taken."""
        sent, self._sent = self._sent, []
        for number, future in sent:
            try:
                future.result(timeout_s)
            except OutOfOrderError as error:
                self._number = error.expected - 1
                return
            except StrataError:
                self._number = number - 1
                return
