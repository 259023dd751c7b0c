"""What the worker's protocol asks of its driver, as values, in the order in which it is to be done."""

from __future__ import annotations

from dataclasses import dataclass

from strata.cluster.commands import JobCommand
from strata.cluster.events import Effect, ManifestWanted, RepairWanted
from strata.cluster.replies import Registered, Reply
from strata.errors import StrataError


@dataclass(frozen=True, slots=True)
class Connect:
    """Try an address after a pause; report it with ``connected``, ``redirected``, ``resolved`` or ``lost``.

    ``name`` is the address that was configured: it stands on the certificate, also where ``address`` is one of its
    records.
    """

    delay_s: float
    address: str
    name: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Drop the connection: nothing that comes on it counts any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send a command; its reply carries the number. One that is lost is sent again by the protocol."""

    number: int
    command: JobCommand


@dataclass(frozen=True, slots=True)
class Joined:
    """The worker is in the job, for the first time or again."""

    registered: Registered


@dataclass(frozen=True, slots=True)
class Answer:
    """Give the reply or error to whoever asked under this number."""

    number: int
    reply: Reply | Effect | StrataError


@dataclass(frozen=True, slots=True)
class Waiting:
    """Tell whoever commits a part under this number which workers the checkpoint waits for."""

    number: int
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Write a manifest with put-if-absent, and report it with ``manifest_written`` or ``manifest_failed``."""

    wanted: ManifestWanted


@dataclass(frozen=True, slots=True)
class WriteRepair:
    """Write the blocks of which this worker keeps a right copy, and report it with ``repair_written``."""

    wanted: RepairWanted


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Delete what a commit that this worker made and confirmed leaves behind."""

    wanted: ManifestWanted


@dataclass(frozen=True, slots=True)
class Deliver:
    """Tell whoever listens what the coordinator said by itself."""

    effect: Effect


@dataclass(frozen=True, slots=True)
class Refuse:
    """The coordinator does not take this worker, for good; everything that was asked fails with this error."""

    error: StrataError


Action = (
    Connect | Disconnect | Send | Joined | Answer | Waiting | WriteManifest | WriteRepair | CleanUp | Deliver | Refuse
)
