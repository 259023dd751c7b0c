"""Errors of the coordinator and its clients, except those of membership."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass

from strata.errors.base import Recovery, StrataError, with_fields


class ClusterError(StrataError):
    """The coordinator refused a command, or a wait ended without success; nothing was changed."""


@with_fields
class JournalUnavailableError(ClusterError):
    """The coordinator cannot write its journal; it accepts no durable command until it can."""

    path: str
    problem: str
    _: KW_ONLY
    failure: str = "cannot be written"
    hint: str = (
        "nothing was changed, and training may go on. "
        "Free space or repair the disk; the coordinator then accepts commands again by itself"
    )

    recovery = Recovery.RETRY
    template = "the journal {path} {failure}: {problem}; {hint}"


@with_fields
class JournalDamagedError(ClusterError):
    """The journal was damaged or changed by another program; the coordinator does not guess its content."""

    path: str
    problem: str

    def message(self) -> str:
        """Return what to do, which depends on where the journal is."""
        if self.path.startswith("etcd"):
            return (
                f"the journal {self.path} is damaged: {self.problem}. Import a backup under a new prefix "
                "('strata journal import'), or start with an empty journal under a new prefix: committed checkpoints "
                "are in storage and are found there"
            )
        return (
            f"the journal {self.path} is damaged: {self.problem}. Restore the file from a backup, or move it and its "
            "-mark away to start with an empty journal: committed checkpoints are in storage and are found there. To "
            "keep the entries before the damage, start 'strata coordinator --accept-journal-loss' once"
        )


@with_fields
class JournalBrokenError(ClusterError):
    """The journal failed in a way that does not pass by itself; the coordinator ends and has to be started again."""

    path: str
    problem: str
    _: KW_ONLY
    hint: str = (
        "check its disk, file system and permissions, and start the coordinator again: all that was acknowledged is in "
        "the journal"
    )

    template = "the journal {path} cannot be trusted: {problem}; {hint}"


@with_fields
class JournalVersionError(ClusterError):
    """The journal was written by a newer version of Strata, and this one cannot read it; nothing was changed."""

    journal: str
    _: KW_ONLY
    found: str
    known: str

    template = (
        "the journal {journal} was written by a newer version of Strata: it has {found}, and this version reads "
        "{known}; nothing was changed. Use the version of Strata that wrote it, or a newer one"
    )


@with_fields
class JournalNotEmptyError(ClusterError):
    """The journal is not empty, so nothing was imported into it."""

    path: str

    template = (
        "the journal {path} is not empty, or a coordinator leads it; import into a new file or under a new prefix, "
        "and stop the coordinators that use it"
    )


@with_fields
class UnusableJournalError(ClusterError):
    """A file that should hold a journal, or an export of one, is another file, is not there, or cannot be made."""

    path: str
    problem: str

    template = "{path} cannot be used: {problem}; nothing was changed"


@with_fields
class CoordinatorLostError(ClusterError, TimeoutError):
    """No reply came in time; the coordinator may be down, and the command may or may not have been applied."""

    address: str
    _: KW_ONLY
    waited_s: float

    # Every command may be sent twice, so it does no harm that the first one may have been carried out.
    recovery = Recovery.RETRY

    def message(self) -> str:
        """Return how long was waited, if anything was."""
        problem = f"has not answered for {self.waited_s:.3g} s" if self.waited_s >= 1 else "cannot be reached"
        return f"the coordinator at {self.address} {problem}; check that it runs there. Retrying is safe"


@with_fields
class ClientClosedError(ClusterError, RuntimeError):
    """The Client was closed, by another thread or at the end of the program, before the call had ended."""

    worker_id: str

    template = (
        "this call was not answered, because the Client of worker {worker_id!r} was closed; the coordinator may or "
        "may not have carried it out. Make a new Client"
    )


@with_fields
class NotLeaderError(ClusterError):
    """This coordinator is a standby, or its leadership may have ended; nothing was changed."""

    leader: str
    _: KW_ONLY
    term: int

    recovery = Recovery.RETRY

    def message(self) -> str:
        """Return where the leader is, if that is known."""
        if not self.leader:
            return "this coordinator is not the leader, and no leader is known; retry soon, or try another coordinator"
        return f"this coordinator is not the leader; the leader of term {self.term} is at {self.leader}"


@with_fields
class OutboxFullError(ClusterError):
    """The client's queue is full, because the coordinator does not answer."""

    _: KW_ONLY
    limit: int

    recovery = Recovery.RETRY
    template = "{limit} commands are queued for a coordinator that does not answer; restart it, or report less often"


@with_fields
class PortTakenError(ClusterError):
    """The coordinator cannot listen on the configured address."""

    what: str
    address: str
    problem: str

    template = "{what} cannot listen on {address}: {problem}; stop the process that uses it, or choose another port"


@with_fields
class BadCommandError(ClusterError, ValueError):
    """The command is invalid; nothing was changed."""

    problem: str

    template = "the coordinator refuses a command: {problem}"


@with_fields
class DuplicateWorkerError(ClusterError):
    """Another process has joined under this worker's name, and the newest process wins."""

    # If it joined again, the two would take the name from each other for ever.
    job_id: str
    worker_id: str

    template = (
        "another process has joined job {job_id!r} as worker {worker_id!r}; the newest process wins, and this one "
        "stops. Give each worker its own WORKER_ID (strata run: --name), or stop the older process"
    )


@with_fields
class WorkerActiveError(ClusterError):
    """A process that was started later uses this worker's name; this one may join after that one's lease has ended."""

    job_id: str
    worker_id: str

    # The other one may be dead and its lease not over yet.
    recovery = Recovery.RETRY
    template = (
        "a process that was started later is worker {worker_id!r} of job {job_id!r}; this one waits until that one's "
        "lease has ended. If both should run, give each its own WORKER_ID"
    )


@with_fields
class ProtocolMismatchError(ClusterError):
    """The coordinator uses another version of the protocol."""

    address: str
    _: KW_ONLY
    theirs: int
    ours: int

    def message(self) -> str:
        """Return both versions, and which side to update."""
        older = "coordinator" if self.theirs < self.ours else "worker"
        return (
            f"the coordinator at {self.address} uses version {self.theirs} of the protocol and this worker uses "
            f"version {self.ours}; update Strata on the {older}"
        )


@with_fields
class IllegalTransitionError(ClusterError):
    """A worker cannot go from one state to the other."""

    worker_id: str
    _: KW_ONLY
    current: str
    wanted: str

    template = "worker {worker_id!r} is {current} and cannot become {wanted}; docs/cluster.md lists the allowed states"


@with_fields
class JobFullError(ClusterError):
    """The job already has its maximum number of workers."""

    # A worker may leave, but nobody knows when: whoever starts workers decides, and not the one that is too many.
    job_id: str
    worker_id: str
    _: KW_ONLY
    max_workers: int

    template = (
        "worker {worker_id!r} cannot join job {job_id!r}, which has its maximum of {max_workers} workers; "
        "wait for one to leave, or raise the maximum"
    )


@with_fields
class JobWaitingError(ClusterError):
    """The job has fewer workers than it needs to run."""

    job_id: str
    _: KW_ONLY
    missing: int
    min_workers: int

    recovery = Recovery.RETRY
    template = (
        "job {job_id!r} waits for {missing} more of the {min_workers} workers that it needs; "
        "ask again when the generation changes"
    )


@with_fields
class JobBusyError(ClusterError):
    """The job has workers, so it cannot be removed."""

    job_id: str
    _: KW_ONLY
    workers: Collection[str]

    def __post_init__(self) -> None:
        self.workers = list(self.workers)
        super().__post_init__()

    def message(self) -> str:
        """Return how many workers, and some of them."""
        shown = ", ".join(list(self.workers)[:5])
        return f"job {self.job_id!r} has {len(self.workers)} workers ({shown}); stop them first, then remove the job"


@with_fields
class QuotaExceededError(ClusterError):
    """A quota of a tenant is used up if ``tenant`` is set, otherwise a limit of the coordinator."""

    what: str
    _: KW_ONLY
    limit: float
    use: float | None = None
    tenant: str = ""
    raised_by: str = ""

    def message(self) -> str:
        """Return the quota, the limit, the use, and who can raise it."""
        if not self.tenant:
            return f"no more than {self.limit:.12g} {self.what} are allowed; remove some, or raise the limit"
        used = "" if self.use is None else f" and has {self.use:.12g}"
        return (
            f"tenant {self.tenant!r} may have {self.limit:.12g} {self.what}{used}; remove some, "
            f"or ask {self.raised_by} to raise the quota"
        )


@with_fields
class RestoreTooLateError(ClusterError):
    """A worker asked for the restore point after data of this generation was already handed out."""

    worker_id: str
    _: KW_ONLY
    generation: int

    # In this generation it stays too late; in the next one the worker can ask first.
    recovery = Recovery.REJOIN
    template = (
        "worker {worker_id!r} asked for the restore point of generation {generation} after data was handed out; "
        "ask before the first worker leases shards"
    )


@with_fields
class CommitPendingError(ClusterError):
    """All parts of a checkpoint are durable and its manifest is being written; a restore waits for it."""

    job_id: str
    step: int

    recovery = Recovery.RETRY
    template = "step {step} of job {job_id!r} is about to be committed, and the job continues from it; retry soon"


@with_fields
class StepTakenError(ClusterError):
    """The step is already committed, or all its parts are reported."""

    job_id: str
    step: int

    template = "step {step} of job {job_id!r} already has a checkpoint; save at another step"


@with_fields
class CommitRefusedError(ClusterError):
    """A worker confirmed a commit that the coordinator does not wait for."""

    # Whoever wrote the manifest of a checkpoint that is still wanted is asked for it again.
    job_id: str
    step: int
    _: KW_ONLY
    generation: int
    problem: str

    template = (
        "step {step} of job {job_id!r} is not committed by the manifest of generation {generation}: {problem}; "
        "older checkpoints are kept, and a later step can be saved"
    )


@with_fields
class LastCheckpointError(ClusterError):
    """The only checkpoint of the job cannot be restored."""

    job_id: str
    step: int

    template = (
        "step {step} is the only checkpoint of job {job_id!r}, so there is none to go back to; "
        "restore its files from a backup, or start a new job"
    )


@with_fields
class PayloadTooLargeError(ClusterError):
    """The payload is larger than an exchange allows."""

    barrier: str
    _: KW_ONLY
    size_bytes: int
    limit_bytes: int
    share: str = "from each"

    template = (
        "{size_bytes} bytes are too many for exchange {barrier!r}, which allows {limit_bytes} {share}; "
        "put large data into storage and exchange its path"
    )


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """A worker that did not arrive at a barrier, with its last known state."""

    worker_id: str
    rank: int
    state: str
    step: int
    silent_s: float

    def __str__(self) -> str:
        return f"{self.worker_id} (rank {self.rank}, {self.state}, step {self.step}, silent for {self.silent_s:.1f} s)"


@with_fields
class BarrierTimeoutError(ClusterError, TimeoutError):
    """Not all workers arrived at the barrier in time."""

    barrier: str
    arrived: int
    expected: int
    missing: list[MissingWorker]

    # Whoever was late may come to the next attempt.
    recovery = Recovery.RETRY

    def message(self) -> str:
        """Return who is missing, some of them by name."""
        names = ", ".join(map(str, self.missing[:5])) or "workers that never registered"
        more = f" and {len(self.missing) - 5} more" if len(self.missing) > 5 else ""
        return (
            f"barrier {self.barrier!r} timed out with {self.arrived} of {self.expected}: missing {names}{more}; "
            "look at their logs"
        )


@with_fields
class BarrierCancelledError(ClusterError):
    """A worker cancelled the barrier."""

    barrier: str
    reason: str

    template = "barrier {barrier!r} was cancelled: {reason}"
