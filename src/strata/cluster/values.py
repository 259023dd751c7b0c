"""Small records that commands, replies and effects are made of; each is one message on the wire."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

# So much of a divergence is told to the coordinator, and so many ranks are shown in a line.
MAX_RANKS = 1_024
MAX_TENSOR = 512
# A report has the digests of so much text: those of 30 groups of ranks.
MAX_REPLICAS = 1_024
SHOWN_RANKS = 16


class Span(NamedTuple):
    """Samples [start, stop) of one shard, counted in the epoch's order of that shard."""

    shard: int
    start: int
    stop: int


class Incarnation(NamedTuple):
    """One process of a worker."""

    worker_id: str
    incarnation: str


class BootTime(NamedTuple):
    """A moment on one machine: which of its boots, and how long after it. Nothing sets this clock; it never goes back.

    Moments of different boots have no order.
    """

    boot: str
    elapsed_ms: int


class Meeting(NamedTuple):
    """One use of a barrier: workers that meet twice under one name meet in round 1 and in round 2."""

    name: str
    round: int = 1


class PartReport(NamedTuple):
    """What a worker tells of its part of a checkpoint: where the report is in storage, and size and digest of the part.

    No other part ever has the same path, so the path stands for the part. ``replicas`` has the digests of what the
    worker holds alike with others, "GROUP:DIGEST" for each group of ranks, with commas between them.
    """

    path: str
    size_bytes: int
    digest: str
    replicas: str = ""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Which ranks held other values than most in tensors that should be the same on all, and the first such tensor.

    A ``suspect`` checkpoint has values that the majority did not hold, or there was no majority.
    """

    ranks: tuple[int, ...]
    tensor: str
    tensors: int
    suspect: bool = False

    def __str__(self) -> str:
        ranks = f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks[:SHOWN_RANKS]))}"
        if len(self.ranks) > SHOWN_RANKS:
            ranks += f" and {len(self.ranks) - SHOWN_RANKS} more"
        more = f" and {self.tensors - 1} more" if self.tensors > 1 else ""
        suspect = "; suspect: what was saved is not what a majority held" if self.suspect else ""
        return f"{ranks} held other values of {self.tensor}{more}{suspect}"

    def shorten(self) -> Divergence:
        """The same as a command may carry it: a name of a tensor is the user's, and may be anything."""
        printable = "".join(letter if letter.isprintable() else "?" for letter in self.tensor)
        cut = printable if len(printable) <= MAX_TENSOR else printable[: MAX_TENSOR - 1] + "…"
        return replace(self, ranks=self.ranks[:MAX_RANKS], tensor=cut)


class CommitRecord(NamedTuple):
    """A committed checkpoint: where its manifest is, and the data position that it holds, as JSON.

    ``diverged`` says that workers held different values of what should be the same on all, which the manifest says too.
    """

    step: int
    epoch: int
    manifest: str
    cursors: str
    diverged: Divergence | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether it has values that a majority of the ranks did not hold."""
        return self.diverged is not None and self.diverged.suspect


class RankInfo(NamedTuple):
    """A worker's place in one generation of its job; it ends with that generation."""

    rank: int
    world_size: int
    generation: int


class SaveNote(NamedTuple):
    """How one save of a worker went: seconds by phase, and the bytes of its state, of which a delta writes fewer."""

    step: int
    blocked_s: float
    stage_s: float
    write_s: float
    commit_s: float
    full_bytes: int
    is_failed: bool
    is_diverged: bool


class WorkerAccount(NamedTuple):
    """Where a worker's time went since it joined: totals that only grow, so that a lost heartbeat loses nothing.

    The parts add up to ``elapsed_s``. ``steps`` counts all that were done, and ``repeated_steps`` those among them that
    this process had done before.
    """

    elapsed_s: float
    compute_s: float
    data_s: float
    save_s: float
    restore_s: float
    wait_s: float
    repeated_s: float
    other_s: float
    steps: int
    repeated_steps: int
    samples: int
    generation: int
    rank: int
    saves: tuple[SaveNote, ...] = ()

    @property
    def parts(self) -> tuple[float, ...]:
        """The seconds by part, in the order of :data:`PARTS`."""
        return self[1:8]


PARTS = ("compute", "data", "save", "restore", "wait", "repeated", "other")
"""What a worker spends its time on: kept steps, waiting for a batch, held up by a save, restoring, waiting for other
workers, steps that were lost or done again, and the rest."""


def snake_case(kind: type[Any]) -> str:
    """Return the name by which a kind of command, reply or effect is known on the wire, and as a method of a job."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
