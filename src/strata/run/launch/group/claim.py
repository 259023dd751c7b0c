"""Which launcher a job belongs to: two with one name would start the same workers twice, and fight.

A standalone job is claimed by a lock file that ends with its process. With a coordinator the claim is a key of the job,
renewed every few seconds; with several machines each claims its own node rank, and tells the others how many workers it
starts, so that machines may start different numbers of them, in any order.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from strata.client.unary import get_key, set_key
from strata.errors import ClusterError

RENEW_S = 2.0
# A claim that was not renewed for this long is nobody's.
STALE_S = 12.0
TAKEOVER_S = 90.0
POLL_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherRecord:
    """A launcher: what its workers are called, where it runs, since when, and how many workers it starts."""

    name: str
    nproc: int
    node_rank: int = 0
    host: str = ""
    pid: int = 0
    started: str = ""
    """What tells its process from a later one with the same number."""
    since_s: float = 0.0
    beat: int = 0

    @classmethod
    def of_this_process(cls, name: str, *, nproc: int, node_rank: int) -> LauncherRecord:
        """Return the record of the calling process."""
        pid = os.getpid()
        return cls(
            name=name,
            nproc=nproc,
            node_rank=node_rank,
            host=socket.gethostname(),
            pid=pid,
            started=_start_of(pid),
            since_s=time.time(),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> LauncherRecord | None:
        """Return what :meth:`to_bytes` wrote; None if it is something else."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        """Return it as a key or a file holds it."""
        return json.dumps(asdict(self)).encode()

    @property
    def process(self) -> str:
        """What tells its process from all others."""
        return f"{self.host}/{self.pid}/{self.started}"

    def is_process(self, other: LauncherRecord) -> bool:
        """Whether both are of one process."""
        return self.process == other.process

    def runs_here(self) -> bool:
        """Whether its process is seen to run on this machine."""
        return bool(self.started) and self.host == socket.gethostname() and _start_of(self.pid) == self.started

    def is_gone(self) -> bool:
        """Whether its process ended, as far as this machine can tell."""
        return self.host == socket.gethostname() and _start_of(self.pid) != self.started

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        return f"launcher {self.name!r} on {self.host}, process {self.pid}, since {since}"


class JobTakenError(ClusterError):
    """Another launcher runs this job, or this node of it."""

    def __init__(self, job_id: str, holder: LauncherRecord) -> None:
        self.job_id = job_id
        self.holder = holder
        super().__init__(
            f"job {job_id!r} is run already by {holder}; give this one another name (--job), end the other one, or "
            "take the job over from it (--takeover)"
        )


class StandaloneClaim:
    """The lock of a standalone job on this machine; it ends with the process, however that ends."""

    def __init__(self, home: Path, job_id: str, record: LauncherRecord) -> None:
        self._path = home / "launcher.lock"
        self._job_id = job_id
        self._record = record
        self._file: IO[bytes] | None = None

    def take(self, *, takeover: bool) -> None:
        """Take the job, or raise JobTakenError; with ``takeover`` the other launcher is told to end first."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a+b")
        deadline_s = time.monotonic() + (TAKEOVER_S if takeover else 0.0)
        is_told = False
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                self._file.seek(0)
                holder = LauncherRecord.from_bytes(self._file.read()) or replace(self._record, name="unknown", pid=0)
                if time.monotonic() >= deadline_s:
                    self.release()
                    raise JobTakenError(self._job_id, holder) from None
                if not is_told and holder.pid:
                    is_told = True
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(holder.pid, signal.SIGTERM)
                time.sleep(POLL_S)
        self._file.truncate(0)
        self._file.write(self._record.to_bytes())
        self._file.flush()

    def release(self) -> None:
        """Let others have the job."""
        if self._file is not None:
            self._file.close()
            self._file = None


class JobClaim:
    """The key of a launcher at the coordinator: of its name, or with several machines of its node rank."""

    def __init__(self, url: str, job_id: str, record: LauncherRecord, *, nnodes: int) -> None:
        self.url = url
        self.job_id = job_id
        self._nnodes = nnodes
        self._token = 0
        self.record = record

    def take(self, *, takeover: bool) -> None:
        """Take it, or raise JobTakenError as soon as the other launcher is seen to live."""
        deadline_s = time.monotonic() + STALE_S
        seen: LauncherRecord | None = None
        while True:
            found = get_key(self.url, self.job_id, self._key(self.record.node_rank))
            holder = LauncherRecord.from_bytes(found.value)
            is_free = holder is None or holder.is_gone() or holder.is_process(self.record)
            if is_free or takeover or time.monotonic() > deadline_s:
                taken = set_key(
                    self.url, self.job_id, self._key(self.record.node_rank), self.record.to_bytes(), token=found.token
                )
                if taken.is_set:
                    self._token = taken.token
                    return
                continue
            assert holder is not None
            if holder.runs_here() or (seen is not None and holder != seen):
                raise JobTakenError(self.job_id, holder)
            seen = holder
            time.sleep(POLL_S)

    def renew(self) -> LauncherRecord | None:
        """Say that this launcher lives; return who has taken the job over, if someone has."""
        self.record = replace(self.record, beat=self.record.beat + 1)
        key = self._key(self.record.node_rank)
        taken = set_key(self.url, self.job_id, key, self.record.to_bytes(), token=self._token)
        if taken.is_set:
            self._token = taken.token
            return None
        holder = LauncherRecord.from_bytes(taken.value)
        if holder is None or holder.is_process(self.record):
            # The coordinator lost its journal, or a reply was lost: the claim is made anew.
            self._token = taken.token
            return None
        return holder

    def find_others(self, seen: dict[int, LauncherRecord]) -> list[LauncherRecord]:
        """Return the launchers of all machines that live, this one included, by node rank.

        ``seen`` is what the last call found: a record counts when it is renewed, because one may be of an older run.
        """
        living = []
        for node_rank in range(self._nnodes):
            if node_rank == self.record.node_rank:
                living.append(self.record)
                continue
            record = self.read(node_rank)
            if record is None:
                seen.pop(node_rank, None)
            elif node_rank not in seen:
                seen[node_rank] = record
            elif record.beat != seen[node_rank].beat or record.started != seen[node_rank].started:
                living.append(record)
        return living

    def read(self, node_rank: int) -> LauncherRecord | None:
        """Return the launcher that has the claim of a machine, if there is one."""
        return LauncherRecord.from_bytes(get_key(self.url, self.job_id, self._key(node_rank)).value)

    def release(self) -> None:
        """Let others have it."""
        key = self._key(self.record.node_rank)
        left = set_key(self.url, self.job_id, key, b"", token=self._token)
        holder = None if left.is_set else LauncherRecord.from_bytes(left.value)
        if holder is not None and holder.is_process(self.record):
            # A renewal that was under way in another thread came first.
            set_key(self.url, self.job_id, key, b"", token=left.token)

    def _key(self, node_rank: int) -> str:
        return f"launcher/{self.record.name}" if self._nnodes == 1 else f"launcher/node/{node_rank}"


def _start_of(pid: int) -> str:
    """Return when a process was started, in the kernel's count; empty if there is none, or no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
