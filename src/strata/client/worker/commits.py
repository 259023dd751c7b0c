"""Commits: a worker's parts of checkpoints from the save to the announcement, and manifests it is asked for. Pure.

An announcement may get lost with a connection, so nothing rests on it: it only makes the worker ask at once what it
asks every few seconds anyway, what became of its part. Parts are reported in the order in which their saves began, so
that the coordinator may conclude from a later part that an earlier one never comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from strata.client.worker.actions import Action, Answer, CleanUp, Waiting, WriteManifest, WriteRepair
from strata.client.worker.meetings import MakeCommand
from strata.client.worker.requests import Requests, Timers, ignore
from strata.cluster import commands as c
from strata.cluster.commits import CommitProgress
from strata.cluster.events import CheckpointAborted, CheckpointCommitted, ManifestWanted, RepairWanted
from strata.cluster.replies import Done, Reply
from strata.cluster.values import CommitRecord, PartReport
from strata.errors import CheckpointAbortedError, CheckpointTimeoutError, MembershipError, StrataError

ASK_AGAIN_S = 2.0
_NO_REPORT = PartReport("", 0, "")


class Phase(Enum):
    """Where a part is on its way into a checkpoint."""

    SAVING = auto()
    """It is being written; its turn to be reported is kept."""
    QUEUED = auto()
    """It is durable, and an earlier part is not reported yet."""
    REPORTING = auto()
    """The coordinator is being told of it."""
    COMMITTING = auto()
    """The coordinator knows it, and the checkpoint is not committed yet."""


@dataclass(slots=True)
class Part:
    """One part of one save."""

    step: int
    generation: int
    phase: Phase = Phase.SAVING
    epoch: int = 0
    report: PartReport = _NO_REPORT
    waits_for: tuple[str, ...] = ()


class PartCommits:
    """The parts and manifests of one worker.

    ``own`` makes a command of the worker in its present incarnation; ``offer_releases`` offers those that it knows.
    """

    def __init__(
        self,
        own: MakeCommand,
        requests: Requests,
        timers: Timers,
        actions: list[Action],
        offer_releases: Callable[[], None],
    ) -> None:
        self._offer_releases = offer_releases
        self._own = own
        self._requests = requests
        self._timers = timers
        self._actions = actions
        self.progress: tuple[int, int] = (0, 0)
        """The generation of the last progress report, and its sequence."""
        self._parts: dict[int, Part] = {}
        self._serves_manifests = False
        self._wanted: dict[int, ManifestWanted] = {}
        self._writing: dict[int, ManifestWanted] = {}
        # The generation in which a step was repaired, until its checkpoint has ended.
        self._repaired: dict[int, int] = {}
        self.why_changed = ""
        """Why the generation before this one ended, as far as the coordinator said."""

    # Parts.

    def begin_part(self, step: int, generation: int) -> int:
        """Note that a save has begun; what it comes to is told under the number returned."""
        number = self._requests.next_number()
        self._parts[number] = Part(step, generation)
        return number

    def commit_part(self, number: int, epoch: int, report: PartReport, *, timeout_s: float) -> None:
        """The part is durable: report it in its turn, and answer when its checkpoint is committed, or why not."""
        part = self._parts[number]
        part.phase, part.epoch, part.report = Phase.QUEUED, epoch, report
        self._timers.after(timeout_s, lambda: self._expire(number, part, timeout_s))
        self._report_next()

    def drop_part(self, number: int, reason: str) -> None:
        """The save failed, so this worker has no part of that step: nobody need wait for it."""
        part = self._parts.pop(number)
        fields = {"step": part.step, "generation": part.generation, "reason": reason}
        self._requests.ask(lambda: self._own(c.GiveUpCheckpoint, **fields), ignore)
        self._report_next()

    def _report_next(self) -> None:
        """Report what is durable, up to the first part that is still being written or reported."""
        for number, part in list(self._parts.items()):
            if part.phase is Phase.QUEUED:
                part.phase = Phase.REPORTING
                self._report(number, part)
            if part.phase in (Phase.SAVING, Phase.REPORTING):
                return

    def _report(self, number: int, part: Part) -> None:
        progress = self.progress[1] if self.progress[0] == part.generation else 0
        fields = {"step": part.step, "epoch": part.epoch, "report": part.report, "progress": progress}

        def make() -> c.WorkerCommand:
            return self._own(c.ReportPart, generation=part.generation, **fields)

        def on_answer(reply: Reply | StrataError) -> None:
            if self._parts.get(number) is not part:
                return
            if isinstance(reply, MembershipError):
                self._end(number, CheckpointAbortedError(part.step, self.why_changed or str(reply)))
            elif isinstance(reply, StrataError):
                self._end(number, reply)
            else:
                part.phase = Phase.COMMITTING
                self._ask_progress(number, part)
            self._report_next()

        self._requests.ask(make, on_answer)

    def _ask_progress(self, number: int, part: Part) -> None:
        def on_answer(reply: Reply | StrataError) -> None:
            if self._parts.get(number) is part:
                self._take_progress(number, part, reply)

        fields = {"step": part.step, "path": part.report.path}
        asked = self._requests.ask(lambda: self._own(c.AskCommit, **fields), on_answer)

        def again() -> None:
            if self._parts.get(number) is part and part.phase is Phase.COMMITTING:
                self._requests.forget(asked)
                self._ask_progress(number, part)

        self._timers.after(ASK_AGAIN_S, again)

    def _take_progress(self, number: int, part: Part, reply: Reply | StrataError) -> None:
        match reply:
            case CommitProgress(phase="committed"):
                self._end(number, Done())
            case CommitProgress(phase="aborted", reason=reason):
                self._end(number, CheckpointAbortedError(part.step, reason))
            case CommitProgress(phase="unknown"):
                # The coordinator lost its journal, or so much has happened since that it forgot: its answer decides.
                part.phase = Phase.REPORTING
                self._report(number, part)
            case CommitProgress(missing=missing):
                part.waits_for = missing
                self._actions.append(Waiting(number, missing))
                if missing:
                    # They may still wait for the release of a barrier before this save, see Meetings._arrive.
                    self._offer_releases()

    def _expire(self, number: int, part: Part, timeout_s: float) -> None:
        if self._parts.get(number) is part:
            what, missing = f"the save of step {part.step}", part.waits_for or ("the coordinator",)
            self._end(
                number, CheckpointTimeoutError(what, phase="committing", timeout_s=timeout_s, waits_for=list(missing))
            )

    def _end(self, number: int, answer: Reply | StrataError) -> None:
        del self._parts[number]
        self._actions.append(Answer(number, answer))

    def fail_all(self, error: StrataError) -> None:
        """End every wait for a commit with an error."""
        for number, part in list(self._parts.items()):
            if part.phase is not Phase.SAVING:
                self._end(number, error)

    # Announcements and manifests.

    def take(self, effect: ManifestWanted | RepairWanted | CheckpointCommitted | CheckpointAborted) -> None:
        """Take what the coordinator says of checkpoints by itself."""
        if isinstance(effect, RepairWanted):
            # It may come again, and what this worker keeps in memory can be written once.
            if self._repaired.get(effect.step) != effect.generation:
                self._repaired[effect.step] = effect.generation
                self._actions.append(WriteRepair(effect))
            return
        if isinstance(effect, ManifestWanted):
            self._wanted[effect.step] = effect
            self._write_wanted()
            return
        self._wanted.pop(effect.step, None)
        self._repaired.pop(effect.step, None)
        for number, part in list(self._parts.items()):
            if part.step == effect.step and part.phase is Phase.COMMITTING:
                self._ask_progress(number, part)

    def serve_manifests(self, *, is_serving: bool) -> None:
        """Say whether someone here can write manifests; what was wanted before is kept until then."""
        self._serves_manifests = is_serving
        self._write_wanted()

    def manifest_written(self, step: int, record: CommitRecord) -> None:
        """The manifest is in storage: make it known."""
        wanted = self._writing.pop(step)
        fields = {**record._asdict(), "generation": wanted.generation}

        def on_answer(reply: Reply | StrataError) -> None:
            if not isinstance(reply, StrataError):
                self._actions.append(CleanUp(wanted))

        self._requests.ask(lambda: self._own(c.ConfirmCommit, **fields), on_answer)
        self._write_wanted()

    def manifest_failed(self, step: int, reason: str | None) -> None:
        """The manifest could not be written; with a reason nobody can, without one another worker may."""
        wanted = self._writing.pop(step)
        if reason is not None:
            fields = {"step": step, "generation": wanted.generation, "reason": reason}
            self._requests.ask(lambda: self._own(c.GiveUpCheckpoint, **fields), ignore)
        self._write_wanted()

    def repair_written(self, step: int, generation: int, repair: PartReport | None) -> None:
        """Say what this worker repaired, or that it has nothing to repair with."""
        fields = {"step": step, "generation": generation, "repair": repair}
        self._requests.ask(lambda: self._own(c.ReportRepair, **fields), ignore)

    def _write_wanted(self) -> None:
        if not self._serves_manifests:
            return
        for step in [step for step in self._wanted if step not in self._writing]:
            self._writing[step] = self._wanted.pop(step)
            self._actions.append(WriteManifest(self._writing[step]))
