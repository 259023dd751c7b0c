"""The launcher: it starts the workers of one machine, passes signals and output on, and restarts the dead.

It decides nothing about the job: who is in it, and where it goes on, is the coordinator's business. Launchers of
several machines (``nnodes``) agree through the coordinator on each start of their workers; others work without knowing
of each other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace

from strata.client.unary import ask, ask_latest_checkpoint, configure_job, say_goodbye
from strata.cluster.commands import Goodbye
from strata.cluster.events import Cause
from strata.errors import CoordinatorLostError, JournalUnavailableError, NotLeaderError, StrataError
from strata.run.exits import HUNG
from strata.run.job_folder import JobFolder, RestartUnit, make_folder
from strata.run.launch.display import LIVE_S, PLAIN_S, Display
from strata.run.launch.group.addresses import LOOPBACK, find_free_port, reserve_port
from strata.run.launch.group.agreement import NO_ROUND, Agreement
from strata.run.launch.group.claim import RENEW_S, JobClaim, JobTakenError, LauncherRecord, StandaloneClaim
from strata.run.launch.group.launcher_group import LauncherGroup
from strata.run.launch.group.start_gate import StartGate
from strata.run.launch.group.torch_variables import Start, limits_threads, torch_variables
from strata.run.launch.job_progress import read_progress
from strata.run.launch.log_files import LogFile
from strata.run.launch.plan import LaunchPlan, NodesMissingError, WorkerLimitsError, name_ranks
from strata.run.launch.recall import Recall, lacks_workers
from strata.run.launch.restart_policy import (
    Decision,
    Exit,
    Finished,
    GiveUp,
    LeaveOut,
    Preempted,
    Restart,
    Restarts,
)
from strata.run.launch.standalone import READY_S, StandaloneCoordinator
from strata.run.launch.worker_process import WorkerProcess
from strata.run.watchdog.waits import TOLD_AT_S
from strata.run.watchdog.watchdog import lock_file_of
from strata.wire._generated import coordinator_pb2 as pb

log = logging.getLogger(__name__)

# How long workers have that are ended because the job failed, and until a kill has had its effect.
TERM_S = 10.0
KILL_S = 5.0
# How long the goodbye of a worker may take that was ended before it could say it.
GOODBYE_S = 2.0
# How long a coordinator may take to answer before the launcher says that there is none.
COORDINATOR_S = 60.0
# How long the launchers of several machines wait for each other, and for the coordinator when they have to agree.
GATHER_S = 600.0
# How often each of them looks what the others agreed on: while workers run, and while all wait for a start.
AGREE_S = 1.0
START_S = 0.25
TELL_AGAIN_S = 15.0
# A standalone coordinator learns of older checkpoints only when a worker has joined.
NOTHING_SAVED = "nothing was saved since this start"
# How often it is looked whether all workers that are left have finished their training.
LOOK_S = 1.0
_AWAY = (CoordinatorLostError, JournalUnavailableError, NotLeaderError)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Launcher:
    """The workers of one machine, until they are all done, one cannot be saved, or someone says stop."""

    def __init__(self, plan: LaunchPlan, *, print_line: Callable[[str, bytes], None] | None = None) -> None:
        self._plan = plan
        self._display = Display()
        self._print_line = print_line or self._display.print_line
        self._world_size = plan.world_size
        self._restarts = Restarts(plan.restarts, min_workers=min(plan.least(self._world_size), plan.nproc))
        self._workers: dict[int, WorkerProcess] = {}
        self._recall = Recall()
        self._finished: set[int] = set()
        self._given_up: str | None = None
        self._stopped_by: int | None = None
        self._saved = NOTHING_SAVED
        self._stages: list[tuple[int, float]] = []
        self._impatience = asyncio.Event()
        self._stopping = asyncio.Event()
        self._folder = JobFolder(plan.home)
        self._gate = StartGate(range(plan.nproc), self._form)
        self._used_ports: set[int] = set()
        self._ending_group: asyncio.Task[None] | None = None
        self._unit: RestartUnit | None = None
        # What follows applies where the launchers of several machines agree.
        self._group: LauncherGroup | None = None
        self._round = 0
        self._restarts_known = 0
        self._given_up_code: int | None = None
        self._given_up_elsewhere = False
        # One of what the others agreed on and what is decided here comes first.
        self._agreeing = asyncio.Lock()

    async def run(self) -> int:
        """Run the job and return its exit code: 0, that of the first cause, or 128 and the signal that ended it."""
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, self.stop, number)
        for number in _PASSED_ON:
            loop.add_signal_handler(number, self._signal_all, number)
        try:
            async with AsyncExitStack() as stack:
                url = await self._prepare(stack)
                async with asyncio.TaskGroup() as group:
                    ending = group.create_task(self._end_when_told())
                    showing = group.create_task(self._show_progress(url))
                    looking = group.create_task(self._recall.watch(lambda: lacks_workers(url, self._plan.job_id)))
                    following = group.create_task(self._follow_group())
                    supervising = [group.create_task(self._supervise(i, url)) for i in range(self._plan.nproc)]
                    await asyncio.wait(supervising)
                    for task in (ending, showing, looking, following):
                        task.cancel()
                    if self._ending_group is not None:
                        self._ending_group.cancel()
                if self._stopping.is_set():
                    self._saved = await asyncio.to_thread(_describe_saved, url, self._plan.job_id)
        finally:
            self._display.close()
            for number in (*_ENDING, *_PASSED_ON):
                loop.remove_signal_handler(number)
        return self._conclude()

    def stop(self, number: int) -> None:
        """End the job: the first call asks the workers to save and leave, a second one kills them."""
        if self._stopping.is_set():
            self._impatience.set()
            return
        self._stopped_by = number
        if number == signal.SIGINT:
            self._folder.note_why_ended(Cause.STOPPED, "Ctrl-C")
        self._stages = [(signal.SIGTERM, self._plan.grace_s), (signal.SIGKILL, KILL_S)]
        if self._workers:
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            again = "; again to kill them" if number == signal.SIGINT else ""
            self._say(f"{name}: the workers save and leave, within {self._plan.grace_s:g} s{again}")
        self._stopping.set()

    async def _prepare(self, stack: AsyncExitStack) -> str:
        """Claim the job, make its folder, and find or bring its coordinator; return where that is."""
        plan = self._plan
        record = LauncherRecord.of_this_process(plan.name, nproc=plan.nproc, node_rank=plan.node_rank)
        if plan.coordinator_url is None:
            claim = StandaloneClaim(plan.home, plan.job_id, record)
            await asyncio.to_thread(claim.take, takeover=plan.takeover)
            stack.callback(claim.release)
            self._folder = make_folder(plan.home)
            with self._telling("the job's own coordinator to start", READY_S):
                coordinator = await stack.enter_async_context(StandaloneCoordinator(self._folder.path))
            (self._folder.path / "coordinator.url").write_text(coordinator.url)
            url = coordinator.url
        else:
            url = plan.coordinator_url
            self._folder = make_folder(plan.home)
            await self._claim(url, record, stack)
        if not self._stopping.is_set():
            await self._configure(url)
        if not self._stopping.is_set() and limits_threads(dict(os.environ), nproc=plan.nproc):
            self._say("OMP_NUM_THREADS=1 for each worker, so that they do not compete for cores; set it to change that")
        return url

    async def _claim(self, url: str, record: LauncherRecord, stack: AsyncExitStack) -> None:
        claim = JobClaim(url, self._plan.job_id, record, nnodes=self._plan.nnodes)
        with self._telling(f"the coordinator at {url}", COORDINATOR_S):
            await self._insist(lambda: claim.take(takeover=self._plan.takeover))
        if self._stopping.is_set():
            return
        stack.callback(_release, claim)
        renewing = asyncio.get_running_loop().create_task(self._renew(claim), name="claim")
        stack.callback(renewing.cancel)
        if self._plan.nnodes > 1:
            self._group = await asyncio.to_thread(
                LauncherGroup, claim, nnodes=self._plan.nnodes, min_workers=self._plan.min_workers
            )
            stack.push_async_callback(asyncio.to_thread, _leave, self._group)
            await self._gather(claim, self._group)

    async def _gather(self, claim: JobClaim, group: LauncherGroup) -> None:
        """Wait for the launchers of all machines, and take part in what they agree on."""
        seen: dict[int, LauncherRecord] = {}
        nnodes = self._plan.nnodes
        here: list[LauncherRecord] = []
        deadline_s = time.monotonic() + GATHER_S
        with self._telling(lambda: _name_machines(_absent(claim.record, here, nnodes), nnodes), GATHER_S):
            is_member = False
            while not is_member and not self._stopping.is_set():
                if time.monotonic() > deadline_s:
                    absent = _absent(claim.record, here, nnodes)
                    raise NodesMissingError(self._plan.job_id, nnodes=nnodes, absent=absent, waited_s=GATHER_S)
                with suppress(*_AWAY):
                    here = await asyncio.to_thread(claim.find_others, seen)
                    if len(here) == nnodes:
                        self._refuse_same_name(claim.record, here)
                        is_member = await asyncio.to_thread(group.join, here)
                    else:
                        is_member = await asyncio.to_thread(group.is_over)
                await asyncio.sleep(RENEW_S / 4)
        self._world_size = sum(record.nproc for record in here)
        if group.agreement.outcome is None and not self._stopping.is_set():
            await self._check_world(group)
        least = self._plan.least(self._world_size)
        self._restarts = Restarts(self._plan.restarts, min_workers=min(least, self._plan.nproc))
        self._round, self._restarts_known = group.agreement.number, group.agreement.restarts
        agreement = group.agreement
        self._restarts.count_elsewhere(agreement.recent_restarts, signature=agreement.signature, now_s=time.monotonic())

    async def _check_world(self, group: LauncherGroup) -> None:
        """Refuse more or less workers than the job may have, and let the other launchers know."""
        try:
            self._plan.check_world(self._world_size)
        except WorkerLimitsError as error:
            reason = str(error)
            await self._insist(lambda: group.give_up(group.agreement.number, code=1, reason=reason))
            raise

    def _refuse_same_name(self, own: LauncherRecord, launchers: Sequence[LauncherRecord]) -> None:
        for other in launchers:
            if other.name == own.name and other.node_rank != own.node_rank:
                raise JobTakenError(self._plan.job_id, other)

    async def _renew(self, claim: JobClaim) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                holder = await asyncio.to_thread(claim.renew)
            except StrataError as error:
                log.debug("the claim was not renewed: %s", error)
                continue
            if holder is not None and not self._stopping.is_set():
                self._say(f"the job was taken over by {holder}; the workers here leave")
                self.stop(signal.SIGTERM)

    async def _show_progress(self, url: str) -> None:
        """Show the progress of the job, on its first machine."""
        while self._plan.node_rank == 0:
            await asyncio.sleep(LIVE_S if self._display.is_live else PLAIN_S)
            try:
                status = await asyncio.to_thread(ask, url, lambda stub: stub.GetStatus(pb.GetStatus(), timeout=LIVE_S))
            except StrataError as error:
                log.debug("the coordinator cannot be asked: %s", error)
                continue
            progress = read_progress(status, self._plan.job_id, restarts=self._restarts.total)
            if progress is not None and not self._stopping.is_set():
                self._display.show(progress)

    async def _insist(self, work: Callable[[], object], *, timeout_s: float | None = None) -> None:
        """Do something that needs the coordinator, and again while it is away, for a bounded time."""
        deadline_s = time.monotonic() + (COORDINATOR_S if timeout_s is None else timeout_s)
        while not self._stopping.is_set():
            try:
                await asyncio.to_thread(work)
            except _AWAY:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.5)
            else:
                return

    @contextmanager
    def _telling(self, whom: str | Callable[[], str], timeout_s: float) -> Iterator[None]:
        """Say every few seconds for whom the launcher waits, while the block runs."""
        began_s = time.monotonic()

        async def tell() -> None:
            await asyncio.sleep(TOLD_AT_S[0])
            while True:
                name = whom if isinstance(whom, str) else whom()
                waited_s = time.monotonic() - began_s
                self._say(f"waiting for {name} for {waited_s:.0f} s, timeout in {timeout_s - waited_s:.0f} s")
                await asyncio.sleep(TELL_AGAIN_S)

        if timeout_s == float("inf"):
            yield
            return
        task = asyncio.get_running_loop().create_task(tell())
        try:
            yield
        finally:
            task.cancel()

    async def _configure(self, url: str) -> None:
        plan = self._plan
        least = plan.least(self._world_size)
        with self._telling(f"the coordinator at {url}", COORDINATOR_S):
            await self._insist(lambda: configure_job(url, plan.job_id, min_workers=least, max_workers=plan.max_workers))

    async def _supervise(self, member: int, url: str) -> None:
        with self._recall.busy():
            while not self._stopping.is_set():
                start = await self._gate.enter(member)
                if start is None:
                    return
                number = self._gate.number
                ended = await self._live(member, start, url)
                # If its round is over, it was ended with its group, and starts with it again.
                is_over = number != self._gate.number
                if self._stopping.is_set() or not (is_over or await self._goes_on(member, ended)):
                    return

    async def _form(self, number: int, members: tuple[int, ...]) -> Start | None:
        """Return where the group of a round meets, and the ranks that it has here; None if it cannot meet."""
        if self._ending_group is not None:
            await asyncio.wait([self._ending_group])
        if self._group is not None:
            try:
                return await self._meet(self._group, members)
            except StrataError as error:
                await self._give_up(str(error), of_group=True)
                return None
        port = find_free_port(self._used_ports)
        self._used_ports.add(port)
        return Start(
            master_addr=LOOPBACK,
            master_port=port,
            ranks={member: index for index, member in enumerate(members)},
            world_size=max(len(members), self._plan.least(self._world_size)),
            restarts=number,
        )

    async def _meet(self, group: LauncherGroup, members: tuple[int, ...]) -> Start:
        """Wait until the launchers of all machines are ready for the present round."""
        nnodes, number = self._plan.nnodes, self._round
        # Workers that run on do not depend on it.
        timeout_s = float("inf") if self._gate.has_begun else GATHER_S
        deadline_s = time.monotonic() + timeout_s
        with (
            reserve_port(self._used_ports) as port,
            self._telling(lambda: _name_machines(group.absent, nnodes), timeout_s),
        ):
            while time.monotonic() < deadline_s:
                with suppress(*_AWAY):
                    agreement = await asyncio.to_thread(group.prepare, number, workers=len(members), port=port)
                    is_present = agreement.number == number and agreement.outcome is None
                    if is_present and (start := group.start_of(agreement, members)) is not None:
                        return start
                await asyncio.sleep(START_S)
        raise NodesMissingError(self._plan.job_id, nnodes=nnodes, absent=group.absent, waited_s=GATHER_S)

    async def _follow_group(self) -> None:
        """Do here what the launchers of all machines agree on, until the job is over for all of them."""
        group = self._group
        if group is None:
            return
        told = NO_ROUND
        with self._recall.busy():
            while not self._stopping.is_set():
                with suppress(*_AWAY):
                    async with self._agreeing:
                        self._adopt(await asyncio.to_thread(group.look))
                        agreement = await asyncio.to_thread(self._report, group)
                        self._adopt(agreement)
                    if agreement.outcome is not None:
                        return
                    if group.has_finished and group.unfinished and told != self._round:
                        told = self._round
                        others = name_ranks(group.unfinished)
                        self._say(f"the workers here have finished; waiting for those of {others}")
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGREE_S):
                        await self._stopping.wait()

    def _report(self, group: LauncherGroup) -> Agreement:
        """Let the others know what only this launcher sees; return what is agreed on then."""
        agreement = group.agreement
        if not self._gate.has_begun or agreement.number != self._round:
            return agreement
        if agreement.lost and self._is_one_unit():
            return group.end_round(self._round, cause=f"{name_ranks(agreement.lost)} left, or was lost")
        if not self._workers and self._finished >= self._gate.members:
            return group.finish(self._round)
        return agreement

    def _adopt(self, agreement: Agreement) -> None:
        """Follow what the launchers agreed on: the workers here end and start with all others, or the job is over."""
        if agreement.restarts > self._restarts_known:
            self._restarts.count_elsewhere(
                agreement.restarts - self._restarts_known, signature=agreement.signature, now_s=time.monotonic()
            )
            self._restarts_known = agreement.restarts
        if agreement.outcome is not None:
            if agreement.outcome.code and self._given_up is None:
                self._given_up, self._given_up_code = agreement.outcome.reason, agreement.outcome.code
                self._given_up_elsewhere = True
                self._end_all()
        elif agreement.number > self._round:
            self._round = agreement.number
            if not self._gate.has_begun:
                self._gate.end_round()
            elif self._is_one_unit():
                self._say(f"{agreement.cause}; all workers start again together")
                self._end_round()
            else:
                self._gate.renew()

    async def _give_up(self, reason: str, *, code: int = 1, of_group: bool) -> None:
        """End the job here, and with ``of_group`` on all machines."""
        self._given_up, self._given_up_code = reason, code
        if of_group and self._group is not None:
            group, number = self._group, self._round
            with suppress(StrataError):
                await asyncio.to_thread(group.give_up, number, code=code, reason=reason)
        self._end_all()

    def _end_all(self) -> None:
        self._folder.note_why_ended(Cause.GIVEN_UP, self._given_up or "")
        self._stages = [(signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)]
        self._stopping.set()

    async def _live(self, member: int, start: Start, url: str) -> Exit:
        """Let a worker run once, and return how it ended."""
        plan, rank = self._plan, start.ranks[member]
        worker_id = f"{plan.name}-{member}"
        environment = {
            "PYTHONUNBUFFERED": "1",
            "COORDINATOR_URL": url,
            "JOB_ID": plan.job_id,
            "WORKER_ID": worker_id,
            "JOB_FOLDER": str(self._folder.path),
            **torch_variables(
                start, member, run_id=plan.job_id, max_restarts=plan.restarts.max_restarts, inherited=os.environ
            ),
            **plan.environment,
        }
        log_file = LogFile(self._folder.logs / f"rank-{rank}.log")
        prefix = f"[{rank}] ".encode()

        def pass_on(stream: str, line: bytes) -> None:
            log_file.write(stream, line)
            self._print_line(stream, prefix + line)

        self._folder.discard_restart_unit(worker_id=worker_id)
        self._folder.discard_membership(worker_id=worker_id)
        worker = WorkerProcess.start(
            worker_id,
            rank,
            plan.command,
            environment,
            pass_on,
            life=self._folder.lives / worker_id,
            finished=self._folder.finished / worker_id,
        )
        self._workers[member] = worker
        self._finished.discard(member)
        try:
            ended = self._look_into(await worker.wait(), worker.pid)
        finally:
            del self._workers[member]
            log_file.close()
        if self._stopping.is_set():
            await self._say_goodbye_for(ended, url)
        # Other programs may exit with 0 because they were told to stop.
        if ended.code == 0 and (ended.is_over or not self._stopping.is_set()):
            self._finished.add(member)
        return ended

    async def _say_goodbye_for(self, ended: Exit, url: str) -> None:
        """Tell the coordinator why a worker has gone that ended before it could: a kill at a stop is no failure."""
        incarnation = self._folder.read_membership(worker_id=ended.worker_id)
        if incarnation is None:
            return
        cause, why = self._folder.read_why_ended() or (Cause.PREEMPTED, "SIGTERM")
        goodbye = Goodbye(
            job_id=self._plan.job_id,
            worker_id=ended.worker_id,
            incarnation=incarnation,
            cause=cause,
            reason=f"{why}; {ended}",
        )
        try:
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.to_thread(say_goodbye, url, goodbye)
        except (StrataError, TimeoutError) as error:
            log.info("the coordinator was not told why %s has gone, and will count it as lost: %s", ended, error)

    def _look_into(self, ended: Exit, pid: int) -> Exit:
        """Tell a hang that held the interpreter's lock from a failure: faulthandler ends both with code 1."""
        stacks = lock_file_of(self._folder.stacks, ended.worker_id, pid)
        if ended.code == 1 and stacks.is_file() and stacks.stat().st_size:
            return replace(ended, code=HUNG)
        return ended

    async def _goes_on(self, member: int, ended: Exit, *, is_needed: bool = False) -> bool:
        """Do what was decided about a worker that ended; return whether it is started again."""
        gate, number = self._gate, self._gate.number
        of_group = self._is_one_unit()
        try:
            decision = await self._decide(ended, is_needed=is_needed, of_group=of_group)
        except StrataError as error:
            await self._give_up(str(error), of_group=False)
            return False
        match decision:
            case None:
                return number != gate.number
            case Finished():
                if not await self._recall.rest():
                    return False
                return number != gate.number or await self._goes_on(member, ended, is_needed=True)
            case Preempted() | LeaveOut():
                self._go_on_without(member, ended, of_group=of_group)
                return False
            case Restart(after_s=after_s, number=restart):
                needed = ", and the others cannot go on without it" if is_needed else ""
                whole = f" of the whole group: {self._why_whole()}" if of_group else ""
                self._say(f"{ended}{needed}; restart {restart} in {after_s:.1f} s{whole}")
                if of_group:
                    self._end_round()
                try:
                    async with asyncio.timeout(after_s):
                        await self._stopping.wait()
                except TimeoutError:
                    return True
                return False
            case GiveUp(reason=reason):
                cause, group = self._restarts.first_cause, self._group
                left = len(self._workers) + (0 if group is None else group.workers_elsewhere)
                is_short = left < self._plan.least(self._world_size)
                await self._give_up(reason, code=(cause and cause.exit_code) or 1, of_group=is_short)
                return False

    async def _decide(self, ended: Exit, *, is_needed: bool, of_group: bool) -> Decision | None:
        """Decide about a worker that ended, for all machines if it is of a group; None if its round is over."""
        running, group = len(self._workers), self._group
        if group is None or not of_group or (ended.code == 0 and not is_needed):
            return self._restarts.decide(
                ended, running=running, now_s=time.monotonic(), chance=_chance(), is_needed=is_needed, of_group=of_group
            )
        number = self._round
        async with self._agreeing:
            with self._telling("the coordinator, to agree on what follows", GATHER_S):
                await self._insist(group.look, timeout_s=GATHER_S)
                self._adopt(group.agreement)
                if number != self._round or self._stopping.is_set():
                    return None
                decision = self._restarts.decide(
                    ended,
                    running=running + group.workers_elsewhere,
                    now_s=time.monotonic(),
                    chance=_chance(),
                    is_needed=is_needed,
                    of_group=True,
                    min_workers=self._plan.least(self._world_size),
                )
                await self._insist(lambda: self._tell(group, number, ended, decision), timeout_s=GATHER_S)
                self._round, self._restarts_known = group.agreement.number, group.agreement.restarts
        return decision

    def _tell(self, group: LauncherGroup, number: int, ended: Exit, decision: Decision) -> None:
        """Let the launchers of the other machines do the same as this one."""
        cause = f"node rank {group.node_rank}: {ended}"
        match decision:
            case Restart():
                restarts = self._restarts
                group.end_round(number, cause=cause, recent_restarts=restarts.recent, signature=restarts.last_of_group)
            case Preempted() | LeaveOut():
                group.end_round(number, cause=f"{cause}, and the job goes on without it")
            case GiveUp(reason=reason):
                first = self._restarts.first_cause or ended
                group.give_up(number, code=first.exit_code or 1, reason=f"{reason}\n  first cause: {first}")
            case Finished():
                pass

    def _is_one_unit(self) -> bool:
        """Whether all workers are started again if one dies, as their script notes; a script of torch alone is."""
        noted = {self._folder.read_restart_unit(worker_id=f"{self._plan.name}-{each}") for each in self._gate.members}
        for unit in (RestartUnit.GROUP, RestartUnit.WORKER):
            if unit in noted:
                self._unit = unit
                break
        is_alone = len(self._gate.members) == 1 and self._plan.nnodes == 1
        return self._unit is not RestartUnit.WORKER and not is_alone

    def _why_whole(self) -> str:
        if self._unit is RestartUnit.GROUP:
            return "its process group cannot change its members"
        return "the script has not joined the job with strata.join, so the others cannot recover from this"

    def _go_on_without(self, member: int, ended: Exit, *, of_group: bool) -> None:
        again = "; they start again, because they cannot recover from this" if of_group else ""
        count = len(self._workers)
        self._say(f"{ended}; the job goes on with {count} worker{'s' * (count != 1)} here{again}")
        self._gate.leave(member)
        if of_group:
            self._end_round()

    def _end_round(self) -> None:
        """End the workers of the present round, so that all start again together."""
        self._gate.end_round()
        self._recall.call()
        if self._ending_group is None or self._ending_group.done():
            self._ending_group = asyncio.get_running_loop().create_task(self._end_workers(), name="end of a round")

    async def _end_workers(self) -> None:
        """End the workers that run now. Those of Strata end by themselves when they learn of the new membership."""
        left = list(self._workers.values())
        if self._unit is None:
            self._signal_all(signal.SIGTERM)
        with self._telling(lambda: f"{len(self._workers)} workers to end ({self._name_running()})", TERM_S):
            with suppress(TimeoutError):
                async with asyncio.timeout(TERM_S):
                    await asyncio.gather(*(worker.ended.wait() for worker in left))
            for worker in left:
                worker.send_signal(signal.SIGKILL)

    async def _end_when_told(self) -> None:
        await self._stopping.wait()
        self._gate.close()
        for number, wait_s in self._stages:
            self._signal_all(number)
            self._impatience.clear()
            with self._telling(lambda: f"{len(self._workers)} workers to end ({self._name_running()})", wait_s):
                try:
                    async with asyncio.timeout(wait_s):
                        await self._impatience.wait()
                except TimeoutError:
                    pass
            await self._spare_finished()

    async def _spare_finished(self) -> None:
        """Wait while only workers run whose training is over: an export may take longer than the last save."""
        is_told = False
        while self._given_up is None and not self._impatience.is_set() and self._workers:
            if not all(worker.is_over for worker in self._workers.values()):
                return
            if not is_told:
                is_told = True
                self._say(
                    f"the training is over, and {self._name_running()} may end their work; signal again to kill them"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._impatience.wait()

    def _name_running(self) -> str:
        return "ranks " + ", ".join(str(worker.rank) for worker in list(self._workers.values())[:5])

    def _signal_all(self, number: int) -> None:
        for worker in self._workers.values():
            worker.send_signal(number)

    def _conclude(self) -> int:
        if self._given_up is not None:
            cause = None if self._given_up_elsewhere else self._restarts.first_cause
            first = "" if cause is None else f"\n  first cause: {cause}{_tail_of(cause)}"
            self._say(f"failed: {self._given_up}{first}\n  logs: {self._folder.logs}")
            return self._given_up_code or 1
        if self._stopped_by is not None:
            name = signal.Signals(self._stopped_by).name
            if len(self._finished) == self._plan.nproc:
                self._say(f"{name} came when the training was over: {self._saved}")
                return 0
            self._say(f"stopped by {name}: {self._saved}; start it again to go on")
            return 128 + self._stopped_by
        return 0

    def _say(self, text: str) -> None:
        self._print_line("stderr", f"strata run: {text}".encode())


def _chance() -> float:
    return random.random()  # noqa: S311 - jitter, not a secret


def _leave(group: LauncherGroup) -> None:
    with suppress(StrataError):  # without a coordinator the others find out by themselves
        group.leave()


def _release(claim: JobClaim) -> None:
    with suppress(StrataError):  # without a coordinator the claim ends by itself
        claim.release()


def _tail_of(cause: Exit) -> str:
    """Return the end of its stderr, unless the exception says enough: it came after a step, and not from the start."""
    if cause.crash is not None and cause.did_step:
        return ""
    lines = "\n".join(f"    {line}" for line in cause.last_lines) or "    (it wrote nothing to stderr)"
    return f"\n  the end of its stderr:\n{lines}"


def _describe_saved(url: str, job_id: str) -> str:
    try:
        latest = ask_latest_checkpoint(url, job_id)
    except StrataError:
        return "the coordinator cannot be asked what is saved"
    return NOTHING_SAVED if latest is None else f"the job is saved up to step {latest.step}"


def _absent(own: LauncherRecord, here: Sequence[LauncherRecord], nnodes: int) -> list[int]:
    known = {own.node_rank, *(record.node_rank for record in here)}
    return [rank for rank in range(nnodes) if rank not in known]


def _name_machines(absent: Sequence[int], nnodes: int) -> str:
    """Return for which machines the launcher waits."""
    if not absent:
        return f"the launchers of all {nnodes} machines to agree on the start"
    return f"the launchers of {len(absent)} of {nnodes} machines ({name_ranks(absent)})"
