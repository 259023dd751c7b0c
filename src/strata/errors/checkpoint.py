"""Errors of checkpoints, and what they warn of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY

from strata.errors.base import Recovery, StrataError, StrataWarning, choices, shorten, with_fields


class CheckpointError(StrataError):
    """A checkpoint cannot be saved, found or restored; earlier checkpoints are not affected."""


@with_fields
class UnsavableStateError(CheckpointError, TypeError):
    """The state contains a value that cannot be saved; nothing was written."""

    path: str
    kind: str
    problem: str

    def message(self) -> str:
        """Return which leaf of the state, and what it may be instead."""
        return (
            f"{_where(self.path)} is of type {self.kind}, which {self.problem}; nothing was written: remove it from "
            "the state, or turn it into tensors, numbers, strings, bytes, None, or dicts, lists and tuples of these"
        )


@with_fields
class CheckpointExistsError(CheckpointError):
    """The step is already committed; that checkpoint was not changed."""

    step: int
    _: KW_ONLY
    path: str

    template = (
        "step {step} is already committed ({path!p}) and was not changed; "
        "save another step, or use another job id for another run"
    )


@with_fields
class CheckpointNotFoundError(CheckpointError, LookupError):
    """There is no such committed checkpoint, or none at all."""

    step: int | None
    _: KW_ONLY
    path: str
    known: Collection[int] = ()
    problem: str | None = None
    is_deleted: bool = False
    """It was there when this process began to read it."""

    def __post_init__(self) -> None:
        self.known = sorted(self.known)
        super().__post_init__()

    def message(self) -> str:
        """Return which step, and the newest ones that there are, or what is wrong with the place itself."""
        if self.problem is not None:
            return f"{shorten(self.path)}: {self.problem}"
        wanted = "no checkpoint" if self.step is None else f"no checkpoint of step {self.step}"
        newest = [str(each) for each in sorted(self.known, reverse=True)]
        if self.is_deleted:
            others = f"load another one, or without a step; {choices(newest)}" if newest else "no other one is there"
            return f"{shorten(self.path)}: step {self.step} was deleted or replaced while it was read; {others}"
        return f"{shorten(self.path)}: there is {wanted}; {choices(newest) if newest else 'none was committed yet'}"


@with_fields
class CheckpointPinnedError(CheckpointError, ValueError):
    """The checkpoint is pinned, so it was not deleted."""

    step: int

    template = "step {step} is pinned; unpin it first (`strata ckpt pin WHERE {step} --remove`)"


@with_fields
class RewindError(CheckpointError, ValueError):
    """The job cannot be rewound as asked, or not exactly; nothing was changed."""

    job_id: str
    problem: str

    template = "job {job_id!r} was not rewound: {problem}"


@with_fields
class UnfinishedRewindError(CheckpointError):
    """A rewind of the job was interrupted, so it is not certain which checkpoints are valid."""

    job_id: str
    _: KW_ONLY
    to_step: int

    template = (
        "a rewind of job {job_id!r} to step {to_step} was interrupted; finish it before the job goes on: "
        "`strata rewind {job_id} --to-step {to_step}`"
    )


@with_fields
class DamagedCheckpointError(CheckpointError):
    """The stored bytes are not those that were saved; nothing of them was returned."""

    step: int
    problem: str
    _: KW_ONLY
    part: str
    tensor: str | None = None
    start: int | None = None
    end: int | None = None

    def message(self) -> str:
        """Return which bytes of which part, as far as it is known."""
        where = shorten(self.part)
        if self.start is not None and self.end is not None:
            where += f", bytes {self.start} to {self.end}"
        if self.tensor is not None:
            where += f", tensor {shorten(self.tensor)}"
        return f"step {self.step} is damaged: {where}: {self.problem}; load an older step, or without a step"


@with_fields
class SuspectCheckpointError(CheckpointError):
    """Replicas differed, and what was saved is not what a majority of the ranks held; an older one is restored."""

    step: int
    _: KW_ONLY
    ranks: Collection[int]
    tensor: str
    tensors: int = 1

    def __post_init__(self) -> None:
        self.ranks = list(self.ranks)
        super().__post_init__()

    def message(self) -> str:
        """Return which ranks differ from the others, and how to load it all the same."""
        return (
            f"step {self.step} is suspect: {_describe_divergence(self.ranks, self.tensor, self.tensors)}; "
            f"load(step={self.step}) or allow_suspect=True restores it all the same"
        )


@with_fields
class UnknownFormatError(CheckpointError):
    """The manifest has a version or kind that this version of Strata cannot read."""

    step: int
    _: KW_ONLY
    found: str
    known: str

    template = "step {step} has a manifest of {found}, and this version of Strata reads {known}; update Strata"


@with_fields
class ForeignFormatError(CheckpointError):
    """A file or folder of another tool is damaged, or cannot be read or written safely."""

    path: str
    problem: str

    template = "{path!p}: {problem}; docs/checkpoints.md lists what can be imported and exported"


@with_fields
class StateMismatchError(CheckpointError):
    """The checkpoint does not fit the state that it is loaded into."""

    step: int
    path: str
    problem: str

    def message(self) -> str:
        """Return which leaf of the state."""
        return (
            f"step {self.step} does not fit `like`: {_where(self.path)}: {self.problem}; "
            "see `strata ckpt show` for what the checkpoint holds"
        )


@with_fields
class ForeignCheckpointError(CheckpointError):
    """The checkpoint was saved by another job, so its data position is not valid for this one."""

    step: int
    _: KW_ONLY
    found: str
    expected: str

    template = (
        "step {step} was saved by job {found!r}, and this is job {expected!r}; run with JOB_ID={found} to continue "
        "that job, or load the checkpoint with CheckpointManager and start a new job"
    )


@with_fields
class CheckpointBusyError(CheckpointError):
    """The maximum number of saves is pending, so this one was not started."""

    step: int
    _: KW_ONLY
    pending: Collection[str]
    waited_s: float

    recovery = Recovery.RETRY

    def __post_init__(self) -> None:
        self.pending = list(self.pending)
        super().__post_init__()

    def message(self) -> str:
        """Return what is under way."""
        return (
            f"step {self.step} was not saved: {', '.join(self.pending) or 'another save'} was still under way "
            f"after {self.waited_s:.1f} s; save less often, or raise max_pending if there is memory for it"
        )


@with_fields
class CheckpointTimeoutError(CheckpointError, TimeoutError):
    """A save or restore did not finish within the timeout; it continues in the background."""

    what: str
    _: KW_ONLY
    phase: str
    timeout_s: float
    waits_for: Collection[str] = ()

    # What was waited for goes on, so a longer wait may see its end.
    recovery = Recovery.RETRY

    def __post_init__(self) -> None:
        self.waits_for = list(self.waits_for)
        super().__post_init__()

    def message(self) -> str:
        """Return whom it waits for, if that is known."""
        whom = f", waiting for {', '.join(list(self.waits_for)[:5])}" if self.waits_for else ""
        return (
            f"{self.what} is still {self.phase}{whom} after {self.timeout_s:g} s; it continues: wait longer, "
            f"or check the {'workers' if whom else 'store'}"
        )


@with_fields
class ManagerClosedError(CheckpointError, RuntimeError):
    """The CheckpointManager was closed, by another thread or at the end of the program, before the call had ended."""

    what: str = "this call"

    template = "{what} was stopped by close() of its CheckpointManager; make a new one"


@with_fields
class CheckpointAbortedError(CheckpointError):
    """A checkpoint of several workers was aborted; it is not listed, and older ones are kept."""

    step: int
    reason: str

    template = "the checkpoint of step {step} was aborted: {reason}; training continues, and a later step can be saved"


@with_fields
class IncompleteCheckpointError(CheckpointError):
    """Parts are missing, so the checkpoint cannot be committed yet."""

    step: int
    problem: str
    _: KW_ONLY
    missing: Collection[int] = ()

    # The missing parts may be under way: the same commit succeeds when they are there.
    recovery = Recovery.RETRY
    template = "step {step} cannot be committed: {problem}; save the missing parts, then commit again"

    def __post_init__(self) -> None:
        self.missing = list(self.missing)
        super().__post_init__()


@with_fields
class ConflictingPartsError(CheckpointError):
    """Two parts have different values for one leaf or tensor, so they do not belong to one state."""

    step: int
    path: str
    problem: str

    def message(self) -> str:
        """Return which leaf of the state."""
        return (
            f"step {self.step} cannot be committed: {_where(self.path)}: {self.problem}; "
            "save values that differ between workers under separate keys, such as the rank"
        )


@with_fields
class ReplicasDivergedError(CheckpointError):
    """Workers hold different values of a tensor that should be the same on all; nothing was committed."""

    step: int
    _: KW_ONLY
    ranks: Collection[int]
    tensor: str
    tensors: int = 1

    def __post_init__(self) -> None:
        self.ranks = list(self.ranks)
        super().__post_init__()

    def message(self) -> str:
        """Return which ranks differ from the others, and in what."""
        return f"step {self.step} was not committed: {_describe_divergence(self.ranks, self.tensor, self.tensors)}"


@with_fields
class StateChangedError(CheckpointError):
    """The state was changed before it was staged, so the save was aborted: it would have been inconsistent."""

    step: int
    tensor: str

    template = (
        "step {step} was not saved: {tensor!p} changed before it was staged; call handle.wait_staged() before "
        "anything but a torch optimizer's step() changes the state, or save without lazy=True"
    )


class UnchangedStateWarning(StrataWarning):
    """Two checkpoints in a row hold the same bits, which is nearly always a bug in the training loop."""

    def __init__(self, step: int, previous_step: int) -> None:
        self.step = step
        self.previous_step = previous_step
        super().__init__(
            f"every tensor of step {step} is bit-identical to step {previous_step}; "
            "check that the saved state is the one that is trained"
        )


class DivergedReplicasWarning(StrataWarning):
    """Workers hold different values of a tensor that should be the same on all; the checkpoint was committed."""

    def __init__(self, step: int, *, ranks: Collection[int], tensor: str, tensors: int = 1) -> None:
        self.step = step
        self.ranks = list(ranks)
        self.tensor = tensor
        self.tensors = tensors
        super().__init__(f"step {step}: {_describe_divergence(self.ranks, tensor, tensors)}")


def _describe_divergence(ranks: Collection[int], tensor: str, tensors: int) -> str:
    more = f" and {tensors - 1} more tensors" if tensors > 1 else ""
    return (
        f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))} held other values of "
        f"{shorten(tensor)}{more} "
        "than the other ranks; replicas must be the same: look for a missing synchronization, or for hardware that "
        "corrupts data, and save values that may differ under separate keys, such as the rank"
    )


def _where(path: str) -> str:
    return shorten(path) if path else "the state itself"
