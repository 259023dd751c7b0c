"""The worker's half of the protocol: a pure state machine, the counterpart of :class:`strata.cluster.Cluster`.

Inputs are method calls with the time: a connection opened or lost, a reply or effect received, a question, a tick. Each
returns the actions that a driver is to carry out, in their order. No socket, thread, clock or chance is used here:
the same code runs in a training process, behind :mod:`strata.client.driver`, and in the simulator.

Its states, and what it does about an error, are two tables in :mod:`strata.client.worker.states`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from strata.client.worker.actions import Action, Answer, Deliver, Disconnect, Joined, Refuse, Send
from strata.client.worker.commits import PartCommits
from strata.client.worker.heartbeats import Heartbeats
from strata.client.worker.identity import Identity, W
from strata.client.worker.leader_search import LeaderSearch
from strata.client.worker.meetings import Meetings
from strata.client.worker.requests import FIRST_RETRY_S, MAX_RETRY_S, Requests, Timers
from strata.client.worker.states import NOT_A_MEMBER, State
from strata.clock import backoff_s
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.replies import Done, HeartbeatReply, Registered, Reply
from strata.cluster.values import CommitRecord, PartReport, RankInfo
from strata.errors import (
    DuplicateWorkerError,
    NotLeaderError,
    Recovery,
    StaleGenerationError,
    StaleIncarnationError,
    StrataError,
    WorkerActiveError,
)

# Shorter than a lease: a coordinator that was frozen meanwhile must not cost the worker its place.
JOIN_TIMEOUT_S = 5.0


class WorkerProtocol:
    """One worker of one job. ``chance`` gives numbers from 0 to 1, to spread those that come back together.

    ``addresses`` are those of all replicas of its coordinator, of which one leads.
    """

    def __init__(self, worker: c.RegisterWorker, *, addresses: tuple[str, ...], chance: Callable[[], float]) -> None:
        self._identity = Identity(worker)
        self._chance = chance
        self._actions: list[Action] = []
        self._timers = Timers()
        self._search = LeaderSearch(addresses, chance)
        self._requests = Requests(str(self._search), self._timers, self._actions, chance)
        self.meetings = Meetings(self.worker_command, self._requests, self._timers, self._actions)
        self._commits = PartCommits(
            self.worker_command, self._requests, self._timers, self._actions, self.meetings.offer
        )
        self._failures = 0
        self._attempt = 0
        self._registration = 0
        self.heartbeats = Heartbeats(
            self.worker_command(c.Heartbeat), self._requests, self._timers, self._actions, self._drop
        )
        self._goodbye: int | None = None
        self.state = State.DISCONNECTED
        self.refusal: StrataError | None = None
        self.registered: Registered | None = None
        self.rank_info = RankInfo(rank=0, world_size=0, generation=0)
        self.generation = 0
        """The newest generation that the worker knows of; its rank in it may not be known yet."""
        self.cause_changed: e.Cause | None = None
        """What ended the generation before this one, as far as the coordinator said."""

    # Who the worker is.

    @property
    def worker(self) -> c.RegisterWorker:
        """What the worker registers as; in its next life after it was declared dead."""
        return self._identity.worker

    @property
    def why_changed(self) -> str:
        """Why the generation before this one ended, as far as the coordinator said."""
        return self._commits.why_changed

    def worker_command(self, kind: type[W], **fields: Any) -> W:
        """Return a command of this worker in its present incarnation."""
        return self._identity.make(kind, **fields)

    def generation_command(self, kind: type[W], **fields: Any) -> W:
        """Return a command of this worker in the generation that it knows of."""
        return self.worker_command(kind, generation=self.generation, **fields)

    def check(self, generation: int) -> StrataError | None:
        """Return why this worker must not go on training in a generation; None while it may.

        A worker that the coordinator has refused is no member of any, whatever it was told before: another process has
        its name. While the coordinator is away, it goes on.
        """
        if self.refusal is not None:
            return self.refusal
        if generation != self.generation:
            return StaleGenerationError(self.worker.worker_id, sent=generation, current=self.generation)
        return None

    # What happens to the connection.

    def start(self, now_s: float) -> list[Action]:
        """Begin to connect."""
        self._timers.now_s = now_s
        self._actions.append(self._search.start())
        return self._take_actions()

    def connected(self, now_s: float) -> list[Action]:
        """A connection is open: register on it. What comes on an earlier one does not count any more."""
        self._timers.now_s = now_s
        if self.state not in (State.REFUSED, State.CLOSED):
            self._fall_silent()
            self.state = State.JOINING
            self._register()
        return self._take_actions()

    def lost(self, now_s: float) -> list[Action]:
        """The connection is gone, or could not be opened: try the next address, or the only one after a pause."""
        self._timers.now_s = now_s
        if self.state not in (State.REFUSED, State.CLOSED):
            self._leave_connection()
        return self._take_actions()

    def redirected(self, leader: str, term: int, now_s: float) -> list[Action]:
        """The coordinator that was tried does not lead, and says who does, if it knows."""
        self._search.hear(leader, term)
        return self.lost(now_s)

    def resolved(self, name: str, addresses: tuple[str, ...], now_s: float) -> list[Action]:
        """The address that was tried is a name of several replicas: try them."""
        self._search.resolve(name, addresses)
        return self.lost(now_s)

    def refuse(self, error: StrataError, now_s: float) -> list[Action]:
        """The coordinator does not let this worker in: connecting again does not help."""
        self._timers.now_s = now_s
        if self.state not in (State.REFUSED, State.CLOSED):
            self._fall_silent()
            self._refuse(error)
        return self._take_actions()

    def receive(self, number: int, reply: Reply | StrataError, now_s: float) -> list[Action]:
        """Take a reply; one that nobody waits for any more is ignored."""
        self._timers.now_s = now_s
        if self.state not in (State.REFUSED, State.CLOSED):
            if isinstance(reply, NotLeaderError):
                self._leave_standby(reply)
            elif number == self._registration:
                self._take_registration(reply)
            else:
                if isinstance(reply, StaleGenerationError):
                    # Before whoever asked gets the error: it is no failure, for another generation has begun.
                    self._take_generation(reply.current)
                self.heartbeats.answered(number)
                self._take_answer(number, reply)
        return self._take_actions()

    def receive_effect(self, effect: e.Effect, now_s: float) -> list[Action]:
        """Take what the coordinator says by itself."""
        self._timers.now_s = now_s
        if self.state is State.JOINED:
            match effect:
                case e.GenerationChanged():
                    self._take_generation(effect.generation, effect.reason, effect.cause)
                case e.BarrierReleased() | e.BarrierFailed():
                    self.meetings.take(effect)
                case e.ReleaseWanted():
                    self.meetings.bring(effect)
                case e.ManifestWanted() | e.RepairWanted() | e.CheckpointCommitted() | e.CheckpointAborted():
                    self._commits.take(effect)
            self._actions.append(Deliver(effect))
        return self._take_actions()

    def tick(self, now_s: float) -> list[Action]:
        """Do what is due."""
        self._timers.now_s = now_s
        self._timers.run()
        return self._take_actions()

    def next_tick_s(self) -> float | None:
        """Return when a tick is needed next."""
        return self._timers.next_s()

    def close(self) -> None:
        """Say nothing more, and take nothing more."""
        self.state = State.CLOSED

    # What the worker asks. Each returns a number; the answer comes under it as an Answer.

    def ask(self, command: c.JobCommand, now_s: float, *, timeout_s: float | None = None) -> tuple[int, list[Action]]:
        """Ask something until it is answered, also after an outage."""
        self._timers.now_s = now_s
        return self._ask(lambda: command, timeout_s)

    def heartbeat(self, now_s: float, *, timeout_s: float | None = None) -> tuple[int, list[Action]]:
        """Ask for the reply to a heartbeat; the heartbeats that are sent by themselves go on."""
        self._timers.now_s = now_s
        return self._ask(lambda: self.heartbeats.beat, timeout_s)

    def leave(
        self, reason: str, now_s: float, *, timeout_s: float, cause: e.Cause = e.Cause.FINISHED
    ) -> tuple[int, list[Action]]:
        """Say goodbye: from now on the worker does not beat, and does not join again."""
        self._timers.now_s = now_s
        if self.state is State.JOINED:
            # What the worker did last, and where its time went; nobody waits for the reply.
            self.heartbeats.send()
        self.heartbeats.stop()
        number, actions = self._ask(lambda: self.worker_command(c.Goodbye, reason=reason, cause=cause), timeout_s)
        self._goodbye = number
        return number, actions

    def report(self, now_s: float, *, generation: int, **fields: Any) -> tuple[int, list[Action]]:
        """Say what the model has seen, in the fields of a ReportProgress.

        Reports are numbered here, and arrive in the order in which they are made.
        """
        self._timers.now_s = now_s
        before, last = self._commits.progress
        sequence = last + 1 if before == generation else 1
        self._commits.progress = generation, sequence
        command = self.worker_command(c.ReportProgress, generation=generation, sequence=sequence, **fields)
        return self._ask(lambda: command, None)

    def meet(
        self, name: str, now_s: float, *, generation: int | None = None, **fields: Any
    ) -> tuple[int, list[Action]]:
        """Arrive at a barrier of a generation, by default the present one; the answer is its release, or why not."""
        self._timers.now_s = now_s
        if self.refusal is not None:
            return self._answer_refused(self._requests.next_number(), self.refusal)
        number = self.meetings.meet(name, generation=self.generation if generation is None else generation, **fields)
        return number, self._take_actions()

    def begin_part(self, step: int, generation: int) -> int:
        """Note that a save has begun; its part is committed or dropped under the number returned."""
        return self._commits.begin_part(step, generation)

    def commit_part(
        self, number: int, now_s: float, *, epoch: int, report: PartReport, timeout_s: float
    ) -> list[Action]:
        """Report a durable part; the answer comes when its checkpoint is committed, or will not be."""
        self._timers.now_s = now_s
        if self.refusal is not None:
            return self._answer_refused(number, self.refusal)[1]
        self._commits.commit_part(number, epoch, report, timeout_s=timeout_s)
        return self._take_actions()

    def drop_part(self, number: int, reason: str, now_s: float) -> list[Action]:
        """Say that a save failed, so that nobody waits for its part."""
        self._timers.now_s = now_s
        self._commits.drop_part(number, reason)
        return self._take_actions()

    def serve_manifests(self, now_s: float, *, is_serving: bool) -> list[Action]:
        """Say whether this worker can write manifests now."""
        self._timers.now_s = now_s
        self._commits.serve_manifests(is_serving=is_serving)
        return self._take_actions()

    def manifest_written(self, step: int, record: CommitRecord, now_s: float) -> list[Action]:
        """A manifest that was wanted is in storage."""
        self._timers.now_s = now_s
        self._commits.manifest_written(step, record)
        return self._take_actions()

    def manifest_failed(self, step: int, reason: str | None, now_s: float) -> list[Action]:
        """A manifest could not be written; with a reason nobody can, without one another worker may."""
        self._timers.now_s = now_s
        self._commits.manifest_failed(step, reason)
        return self._take_actions()

    def repair_written(self, step: int, generation: int, repair: PartReport | None, now_s: float) -> list[Action]:
        """The blocks that this worker repairs are in storage; None if there are none, or that failed."""
        self._timers.now_s = now_s
        self._commits.repair_written(step, generation, repair)
        return self._take_actions()

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._requests.forget(number)
        self.meetings.cancel(number)

    # Joining.

    def _register(self) -> None:
        self._attempt += 1
        attempt = self._attempt
        self._registration = self._requests.next_number()
        self._actions.append(Send(self._registration, self.worker))

        def give_up() -> None:
            if attempt == self._attempt and self.state is State.JOINING:
                self._drop(f"no answer to a registration in {JOIN_TIMEOUT_S:g} s")

        self._timers.after(JOIN_TIMEOUT_S, give_up)

    def _take_registration(self, reply: Reply | StrataError) -> None:
        self._registration = 0
        match reply:
            case Registered():
                self._join(reply)
            case StrataError() if reply.recovery is Recovery.REJOIN and self._goodbye is not None:
                # The goodbye arrived before the connection was lost: the coordinator counts this worker as gone.
                self._requests.receive(self._goodbye, Done())
            case StrataError() if reply.recovery is Recovery.REJOIN:
                self._next_life()
                self._register()
            case WorkerActiveError() if self.registered is not None:
                # It was a member, and a process that was started later has its name: it will not give it back.
                self._refuse(DuplicateWorkerError(self.worker.job_id, self.worker.worker_id))
            case StrataError() if reply.recovery is Recovery.RETRY:
                attempt = self._attempt
                self._timers.after(self._pause_s(), lambda: self._register() if attempt == self._attempt else None)
            case StrataError():
                self._refuse(reply)

    def _join(self, registered: Registered) -> None:
        """The worker is in: ask what was not answered, and begin to beat."""
        self.state = State.JOINED
        self.registered = registered
        self._failures = 0
        self._search.found()
        # As the coordinator says now: after it lost its journal, generations begin anew.
        self.rank_info, self.generation = registered.rank_info, registered.generation
        self.meetings.enter_generation(registered.generation)
        self._actions.append(Joined(registered))
        self.meetings.offer()
        self._requests.open()
        self.meetings.arrive_again()
        if self._goodbye is None:
            self.heartbeats.start(registered.lease_s)

    def _next_life(self) -> None:
        """Become a new incarnation of the same process: the one before was declared dead."""
        self._identity.next_life()
        self.heartbeats.beat = replace(self.heartbeats.beat, incarnation=self.worker.incarnation)

    def _rejoin(self, error: StrataError) -> None:
        """Register again on the same connection, unless that is under way, or the error is of an earlier life."""
        if self.state is not State.JOINED or self._goodbye is not None:
            return
        if isinstance(error, StaleIncarnationError):
            if error.incarnation != self.worker.incarnation:
                return
            self._next_life()
        self._requests.close()
        self.heartbeats.stop()
        self.state = State.JOINING
        self._register()

    def _refuse(self, error: StrataError) -> None:
        self.state = State.REFUSED
        self.refusal = error
        self._actions.append(Refuse(error))
        self._requests.fail_all(error)
        self.meetings.fail_all(error)
        self._commits.fail_all(error)

    # What replies and effects tell.

    def _take_answer(self, number: int, reply: Reply | StrataError) -> None:
        if isinstance(reply, StaleIncarnationError):
            self._rejoin(reply)
            if self.state is State.JOINING:
                # Declared dead or replaced: the registration that is under way tells which. Whoever asked learns it
                # then, for one that was replaced must not be started again.
                return
        self._requests.receive(number, reply)
        self._take_news(reply)

    def _take_news(self, reply: Reply | StrataError) -> None:
        """Learn from any reply which generation it is, and whether this worker is in it."""
        if isinstance(reply, HeartbeatReply):
            if reply.generation >= self.generation and reply.rank_info != self.rank_info:
                self.rank_info, self.generation = reply.rank_info, reply.generation
                self.meetings.enter_generation(reply.generation)
        elif isinstance(reply, NOT_A_MEMBER):
            self._rejoin(reply)

    def _take_generation(self, generation: int, reason: str = "", cause: e.Cause | None = None) -> None:
        """Learn of a generation; an error that names a newer one does not say why it began."""
        if reason or generation > self.generation:
            self._commits.why_changed, self.cause_changed = reason, cause
        if generation > self.generation:
            self.generation = generation
            self.meetings.enter_generation(generation)
            if self.state is State.JOINED:
                # It may have given this worker another rank: the reply to a heartbeat says so.
                self.heartbeats.send()

    # Small pieces.

    def _ask(self, make: Callable[[], c.JobCommand], timeout_s: float | None) -> tuple[int, list[Action]]:
        if self.refusal is not None:
            return self._answer_refused(self._requests.next_number(), self.refusal)
        answered: list[int] = []
        number = self._requests.ask(
            make, lambda reply: self._actions.append(Answer(answered[0], reply)), timeout_s=timeout_s
        )
        answered.append(number)
        return number, self._take_actions()

    def _answer_refused(self, number: int, refusal: StrataError) -> tuple[int, list[Action]]:
        """Answer at once: nothing is sent any more, and nobody would end the wait."""
        return number, [Answer(number, refusal)]

    def _drop(self, reason: str) -> None:
        self._search.suspect()
        self._actions.append(Disconnect(reason))
        self._leave_connection()

    def _leave_standby(self, error: NotLeaderError) -> None:
        if self.state is not State.DISCONNECTED:
            self._search.hear(error.leader, error.term)
            self._drop(str(error))

    def _leave_connection(self) -> None:
        self._fall_silent()
        self.state = State.DISCONNECTED
        self._actions.append(self._search.next())

    def _fall_silent(self) -> None:
        self._requests.close()
        self._registration = 0
        self.heartbeats.stop()

    def _pause_s(self) -> float:
        self._failures += 1
        return backoff_s(self._failures, first_s=FIRST_RETRY_S, max_s=MAX_RETRY_S, chance=self._chance())

    def _take_actions(self) -> list[Action]:
        actions = self._actions[:]
        self._actions.clear()
        return actions
