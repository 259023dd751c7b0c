"""Vouching: a small process keeps a worker's lease while the training thread holds the interpreter's lock.

A thread cannot: a call into a library that keeps the lock for seconds silences every thread of the process. The
process (:mod:`strata.client.voucher`) hears from this one as long as its threads run, and speaks when it does not.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from strata.client import voucher
from strata.cluster import commands as c
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb

log = logging.getLogger(__name__)

# The worker itself beats this often in a lease, and after as long a silence it is vouched for.
BEATS_PER_LEASE = 4


class Vouching:
    """The small process of one client. It costs about 12 MB, and no processor while the worker beats by itself."""

    def __init__(self, *, bound_s: float) -> None:
        self._bound_s = bound_s
        self._process: subprocess.Popen[bytes] | None = None
        self._told: tuple[str, str] | None = None

    def speak_for(self, worker: c.RegisterWorker, channel_url: str, lease_s: float) -> None:
        """Say for whom and where to speak when this process cannot; the process is started with the first one."""
        if self._told != (worker.incarnation, channel_url):
            self._told = worker.incarnation, channel_url
            self._tell(worker, channel_url, lease_s)

    def tick(self) -> None:
        """Say that the threads of this process run, so that nobody need speak for it."""
        if self._process is not None:
            self._write(b"\n")

    def close(self) -> None:
        """End the process."""
        process, self._process, self._told = self._process, None, None
        if process is None:
            return
        # Not by the end of its input, which a forked child of this process may still hold open.
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def _tell(self, worker: c.RegisterWorker, channel_url: str, lease_s: float) -> None:
        if self._process is None:
            try:
                self._process = _start()
            except OSError as error:
                log.warning("no process vouches for this worker while the interpreter is held: %s", error)
                return
        where = urlsplit(channel_url)
        told = {
            "host": where.hostname,
            "port": where.port,
            "frame": _frame(worker).hex(),
            "interval_s": lease_s / BEATS_PER_LEASE,
            "bound_s": self._bound_s,
        }
        self._write(json.dumps(told).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
        except BrokenPipeError:
            log.warning("the process that vouches for this worker is gone; another one is started")
            self.close()


def _start() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603 - our own program
        # Isolated and without site: it needs the standard library and nothing else.
        [sys.executable, "-I", "-S", str(Path(voucher.__file__)), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        bufsize=0,
        # Ctrl-C is for the training process, which says goodbye; this one ends with it.
        start_new_session=True,
    )
    assert process.stdin is not None
    # A process that does not read must not hold up the one that it serves.
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _frame(worker: c.RegisterWorker) -> bytes:
    """Return the vouch as one whole WebSocket frame, so that the process need know neither protocol."""
    vouch = c.Vouch(job_id=worker.job_id, worker_id=worker.worker_id, incarnation=worker.incarnation)
    data = pb.ClientFrame(id=1, command=convert.command_to_message(vouch)).SerializeToString()
    length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
    # Final, binary, masked as a client must; a mask of zeros leaves the bytes as they are.
    return b"\x82" + length + bytes(4) + data
