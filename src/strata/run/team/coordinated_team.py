"""A worker's team behind a coordinator."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from strata.client.client import Client
from strata.client.unary import ask
from strata.client.worker.goodbye import goodbye_of
from strata.cluster import commands as c
from strata.cluster.events import Cause
from strata.cluster.membership import GONE
from strata.cluster.replies import KeyValue, ShardLease
from strata.cluster.values import RankInfo, Span
from strata.errors import (
    BarrierTimeoutError,
    CoordinatorLostError,
    JobWaitingError,
    JournalUnavailableError,
    MembershipError,
    Reconfigure,
    StrataError,
    WorldSizeError,
)
from strata.run.team.dataset_options import OPTIONS_VERSION, compare_options
from strata.run.team.global_batches import cut_blocks
from strata.run.team.host import describe_host
from strata.run.team.protocol import MEET_TIMEOUT_S, JobView, Progress, WorkerView
from strata.run.watchdog.waits import Waits
from strata.sharding import DatasetParams
from strata.sharding.cursor import Spans
from strata.tracing.trace_names import TRACES_KEY, barrier_trace
from strata.tracing.traces import NO_TRACES, Tracing
from strata.wire._generated import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.data.dataset_plan import Plan
    from strata.data.loading.dealer import Dealer
    from strata.data.rows.skips import SkippedRows

log = logging.getLogger(__name__)

T = TypeVar("T")
POLL_S = 0.05
# How long one question waits before whoever asks may have changed its mind.
ASK_S = 2.0
# How long a job that begins waits for all workers that were announced, once it has as many as it needs.
GATHER_S = 30.0
LOOK_TIMEOUT_S = 5.0
STOP_KEY = "stop"
# So many of the first ranks ask who is missing, when they wait.
ASKING_RANKS = 4


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
        waits: Waits,
        tracing: Tracing = NO_TRACES,
    ) -> None:
        self._url = url
        self._waits = waits
        self._worker_id = worker_id
        self._job_id = job_id
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._writer = uuid.uuid4().hex
        self._is_closed = False
        # Progress reports of the present generation that were not answered yet.
        self._reports: list[Future[None]] = []
        self._tracing = tracing
        self.client = Client(url, worker_id, job_id=job_id, preferred_rank=rank, **describe_host())
        try:
            self.traces = tracing.of(self._agree_on_seed()) if tracing.is_on else NO_TRACES
        except BaseException as error:
            cause, reason = goodbye_of(error)
            self.client.close(reason, cause=cause)
            raise

    @property
    def ends_hung_workers(self) -> bool:
        """Others may wait for it, and a launcher starts it again."""
        return True

    def _agree_on_seed(self) -> str:
        """Return what the ids of this job's traces are made from: the first worker says it, for the job's life."""
        whom = f"the coordinator at {self._url}"
        with self._waits.waiting("the job's traces get their ids", whom=lambda: whom, timeout_s=self._timeout_s):
            self.client.wait_registered(self._timeout_s)
            command = c.SetKey(
                job_id=self._job_id, key=TRACES_KEY, value=uuid.uuid4().hex.encode(), token=0, writer=self._writer
            )
            found = self.client.ask(command, timeout_s=self._timeout_s)
        assert isinstance(found, KeyValue)
        return found.value.decode()

    def look(self) -> JobView | None:
        """Return what the coordinator knows of all workers now; None while it is away."""
        try:
            status = ask(self._url, lambda stub: stub.GetStatus(pb.GetStatus(), timeout=LOOK_TIMEOUT_S))
        except StrataError as error:
            log.debug("the coordinator cannot be asked: %s", error)
            return None
        job = next((job for job in status.jobs if job.job_id == self._job_id), None)
        return None if job is None else _view(job)

    def request_stop(self, rank_info: RankInfo) -> None:
        """Tell the others, by a key that holds the generation in which someone stops."""
        found = self._get_stop_key()
        value = str(rank_info.generation).encode()
        if found.value != value:
            command = c.SetKey(
                job_id=self._job_id, key=STOP_KEY, value=value, token=found.token, writer=uuid.uuid4().hex
            )
            self.client.ask(command, timeout_s=ASK_S)

    def is_stop_requested(self, rank_info: RankInfo) -> bool:
        """Whether any worker of this generation has told so."""
        return self._get_stop_key().value == str(rank_info.generation).encode()

    def _get_stop_key(self) -> KeyValue:
        found = self.client.ask(c.GetKey(job_id=self._job_id, key=STOP_KEY), timeout_s=ASK_S)
        assert isinstance(found, KeyValue)
        return found

    def _name_missing(self, rank_info: RankInfo, barrier: str) -> str:
        """Say who is missing at a barrier; only the first ranks ask, so that a large job does not ask all at once."""
        if self.client.transport == "nothing":
            return f"the coordinator at {self._url}, which cannot be reached"
        if rank_info.rank >= ASKING_RANKS or (view := self.look()) is None:
            return ""
        return view.name(view.barriers.get(barrier, ()))

    def enter(self, check_stop: Callable[[], None] = lambda: None) -> RankInfo:
        """Return the rank_info in the present generation, when the job has as many workers as it needs."""
        self._told = f"the coordinator at {self._url}"
        with self._waits.waiting(
            f"job {self._job_id} gathers its workers", whom=lambda: self._told, timeout_s=self._timeout_s
        ):
            return self._enter(check_stop)

    def _enter(self, check_stop: Callable[[], None]) -> RankInfo:
        deadline_s = time.monotonic() + self._timeout_s
        gathered_s = time.monotonic() + GATHER_S
        self._reports.clear()
        while True:
            try:
                reply = self.client.heartbeat(state=c.WorkerState.RECOVERING, timeout_s=self._timeout_s)
            except MembershipError:
                # It was declared dead and joins again by itself.
                self._pause(deadline_s)
                continue
            needed = reply.world_size + reply.waits_for
            if reply.waits_for and self._world_size is not None and self._world_size < needed:
                raise WorldSizeError(self._job_id, given=self._world_size, needed=needed)
            missing = reply.waits_for
            if not missing and self._is_young(reply.generation) and time.monotonic() < gathered_s:
                missing = max(0, (self._world_size or 0) - reply.world_size)
            if not missing:
                return reply.rank_info
            self._told = f"{missing} more workers ({reply.world_size} of {reply.world_size + missing} are here)"
            check_stop()
            if time.monotonic() > deadline_s:
                raise JobWaitingError(self._job_id, missing=missing, min_workers=needed)
            self._pause(deadline_s)

    def check(self, rank_info: RankInfo) -> None:
        """Raise Reconfigure if the generation is over, DuplicateWorkerError if another process is this worker."""
        self._guard(rank_info, lambda: self.client.check(rank_info.generation))
        self._guard(rank_info, self._check_reports)

    def exchange(self, rank_info: RankInfo, name: str, payload: bytes, *, timeout_s: float | None) -> list[bytes]:
        """Meet the others and return everyone's payload, in the order of ranks."""
        while True:
            try:
                return self._meet(rank_info, name, payload, MEET_TIMEOUT_S if timeout_s is None else timeout_s)
            except BarrierTimeoutError as error:
                # Whoever waits must not give up before the watchdog of the one that is waited for does.
                if timeout_s is not None or not self._may_take_longer([each.worker_id for each in error.missing]):
                    raise
                log.info("waiting again: %s", error)

    def _may_take_longer(self, worker_ids: Sequence[str]) -> bool:
        view = self.look()
        return view is not None and any(
            worker.may_take_longer for worker in view.workers if worker.worker_id in worker_ids
        )

    def _meet(self, rank_info: RankInfo, name: str, payload: bytes, timeout_s: float) -> list[bytes]:
        trace = barrier_trace(rank_info.generation, name, self.client.next_round(name, rank_info.generation))
        with (
            self.traces.timed(trace, "wait", leads=rank_info.rank == 0, rank=rank_info.rank),
            self._waits.waiting(
                f"meeting {name!r}", whom=lambda: self._name_missing(rank_info, name), timeout_s=timeout_s
            ),
        ):
            released = self._guard(
                rank_info,
                lambda: self.client.meet(
                    name,
                    generation=rank_info.generation,
                    expected=rank_info.world_size,
                    payload=payload,
                    timeout_s=timeout_s,
                ),
            )
        return list(released.payloads)

    def register(self, params: DatasetParams, *, options: Mapping[str, Any], url: str) -> None:
        """Make a dataset known, or raise if the job knows another one by that name, or the same with other options."""
        mine = {
            "worker": self._worker_id,
            "process": self.client.process,
            "opened_s": time.time(),
            "version": OPTIONS_VERSION,
            "options": options,
        }
        known = c.SetKey(
            job_id=self._job_id,
            key=f"dataset/{params.dataset_id}",
            value=json.dumps(mine).encode(),
            token=0,
            writer=self._writer,
        )
        # Before the coordinator is asked to take it: it knows neither who registered it nor all options.
        found = self.client.ask(known, timeout_s=self._timeout_s)
        assert isinstance(found, KeyValue)
        compare_options(
            params.dataset_id,
            json.loads(known.value),
            json.loads(found.value),
            url=url,
            job_id=self._job_id,
            is_present=self._is_present,
        )
        self.client.ask(c.RegisterDataset(job_id=self._job_id, **params.to_json()), timeout_s=self._timeout_s)

    def _is_present(self, worker_id: str, process: str) -> bool:
        """Whether a worker's process, if it is known, is in the job now; if nobody can say, it is."""
        if (view := self.look()) is None:
            return True
        present = (worker for worker in view.workers if worker.worker_id == worker_id and worker.state not in GONE)
        return any(process in ("", worker.process) for worker in present)

    def dealer(self, rank_info: RankInfo, params: DatasetParams, plan: Plan, *, block_size: int) -> Dealer:
        """Return who says what this worker reads in this generation."""
        return CoordinatedDealer(self, rank_info, params, plan, block_size=block_size)

    def lease_shards(self, rank_info: RankInfo, dataset_id: str, epoch: int, sequence: int) -> Spans:
        """Return the worker's next rows of an epoch; waits while the job has too few workers, or no coordinator."""
        while not self._is_closed:
            command = self.client.worker_command(
                c.LeaseShards, generation=rank_info.generation, dataset_id=dataset_id, epoch=epoch, sequence=sequence
            )
            try:
                lease = self._guard(rank_info, partial(self.client.ask, command, timeout_s=ASK_S))
            except (CoordinatorLostError, JobWaitingError, JournalUnavailableError):
                # Training goes on until its data ends; then it waits for a journal that takes writes again.
                self.check(rank_info)
                time.sleep(POLL_S)
                continue
            assert isinstance(lease, ShardLease)
            return lease.spans
        raise Reconfigure(rank_info.generation, "the run was closed")

    def report(self, rank_info: RankInfo, progress: Sequence[Progress]) -> None:
        """Say what the model has seen; it arrives before what is said after it, and is not waited for."""
        for each in progress:
            self._reports.append(
                self.client.report(
                    generation=rank_info.generation,
                    dataset_id=each.dataset_id,
                    epoch=each.epoch,
                    step=each.step,
                    spans=tuple(Span(*row) for row in each.spans.tolist()),
                    is_passed_over=each.is_passed_over,
                )
            )

    def skip(self, rank_info: RankInfo, dataset_id: str, rows: SkippedRows) -> None:
        """Say what could not be read; it is not waited for."""
        command = self.client.worker_command(
            c.SkipSamples,
            generation=rank_info.generation,
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

    def report_stall(self, reason: str, *, is_over: bool) -> None:
        """Let the job's events show that this worker stands still, or goes on again."""
        self.client.tell(self.client.worker_command(c.ReportStall, reason=reason, is_over=is_over))

    def close(self, reason: str = "", *, cause: Cause = Cause.FINISHED) -> None:
        """Leave the job, and say why."""
        self._is_closed = True
        self.client.close(reason, cause=cause)
        self._tracing.close()

    def _check_reports(self) -> None:
        """Raise what was answered to the first report that was refused."""
        while self._reports and self._reports[0].done():
            self._reports.pop(0).result()

    def _is_young(self, generation: int) -> bool:
        """Whether nothing has happened in this job but workers joining for the first time."""
        return self._world_size is not None and generation < self._world_size

    def _guard(self, rank_info: RankInfo, work: Callable[[], T]) -> T:
        try:
            return work()
        except MembershipError as error:
            # The answer may be here before the news: what was said last is then of the generation before.
            is_told = self.client.generation != rank_info.generation
            raise Reconfigure(rank_info.generation, (is_told and self.client.why_changed) or str(error)) from error

    def _pause(self, deadline_s: float) -> None:
        if time.monotonic() > deadline_s:
            raise CoordinatorLostError(self._url, waited_s=self._timeout_s)
        time.sleep(POLL_S)


def _view(job: pb.JobStatus) -> JobView:
    workers = (
        WorkerView(
            worker_id=worker.worker_id,
            rank=worker.rank,
            state=worker.state,
            step=worker.step,
            silent_s=worker.silent_s,
            resources=dict(worker.resources),
            process=worker.process,
        )
        for worker in job.workers
    )
    return JobView(
        generation=job.generation,
        workers=tuple(workers),
        waits_for=job.waits_for,
        barriers={barrier.name: tuple(barrier.missing) for barrier in job.barriers},
        commits={pending.step: tuple(pending.missing) for pending in job.pending},
    )


class CoordinatedDealer:
    """Deals what the coordinator gives this worker in one generation."""

    def __init__(
        self, team: CoordinatedTeam, rank_info: RankInfo, params: DatasetParams, plan: Plan, *, block_size: int
    ) -> None:
        self._team = team
        self._rank_info = rank_info
        self._params = params
        self._plan = plan
        self._block_size = block_size
        self.empty_batches = 0
        """How many batches of the epoch that was dealt last have nothing for this worker; they are its last ones."""

    def deal(self, epoch: int) -> Iterator[Spans]:
        """Yield rows until the epoch has no more for this worker."""
        sequence = 1
        self.empty_batches = 0
        while len(spans := self._team.lease_shards(self._rank_info, self._params.dataset_id, epoch, sequence)):
            if self._params.is_global:
                for _, start, stop in spans.tolist():
                    rows = cut_blocks(
                        start,
                        stop,
                        batch_size=self._plan.global_batch_size,
                        block_size=self._block_size,
                        rank=self._rank_info.rank,
                        world_size=self._rank_info.world_size,
                        drop_last=self._plan.options.drop_last,
                    )
                    filled = rows[:, 2] > rows[:, 1]
                    self.empty_batches += int((~filled).sum())
                    yield rows[filled]
            else:
                yield spans
            sequence += 1
