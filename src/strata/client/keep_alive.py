"""KeepAliveProcess: a small process keeps a worker's lease while the training thread holds the interpreter's lock.

A thread cannot: a call into a library that keeps the lock for seconds silences every thread of the process. The
keep-alive process (:mod:`strata.client.keep_alive_process`) hears from this one as long as its threads run, and sends
keep-alives when it does not.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from strata.client import keep_alive_process
from strata.client.local_tokens import find_local_token
from strata.client.worker.heartbeats import BEATS_PER_LEASE
from strata.cluster import commands as c
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb

if TYPE_CHECKING:
    from strata.client.credentials import Credentials
    from strata.client.description import TrustedUrl
    from strata.client.dial import Dial

log = logging.getLogger(__name__)


class KeepAliveProcess:
    """The small process of one client. It costs about 12 MB, and no processor while the worker beats by itself."""

    def __init__(self, *, bound_s: float) -> None:
        self._bound_s = bound_s
        self._process: subprocess.Popen[bytes] | None = None
        self._told: tuple[str, tuple[TrustedUrl, ...]] | None = None

    def speak_for(self, worker: c.RegisterWorker, channels: tuple[TrustedUrl, ...], dial: Dial, lease_s: float) -> None:
        """Say for whom and where to speak when this process cannot; the process is started with the first one.

        With several coordinators it speaks to all of them, for another one may lead by then.
        """
        if self._told != (worker.incarnation, channels):
            self._told = worker.incarnation, channels
            self._tell(worker, channels, dial, lease_s)

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

    def _tell(self, worker: c.RegisterWorker, channels: tuple[TrustedUrl, ...], dial: Dial, lease_s: float) -> None:
        if self._process is None:
            try:
                self._process = _start()
            except OSError as error:
                log.warning(
                    "no keep-alive process, so a library that holds the GIL may cost this worker its lease: %s",
                    error,
                )
                return
        places, credentials = [urlsplit(channel.url) for channel in channels], dial.credentials
        told: dict[str, Any] = {
            "places": [
                (place.hostname, place.port, channel.host) for place, channel in zip(places, channels, strict=True)
            ],
            "frame": _frame(worker).hex(),
            "interval_s": lease_s / BEATS_PER_LEASE,
            "bound_s": self._bound_s,
            # Through the pipe, and never as an argument, which every user of the machine can read.
            "token": _secret_for(places[0].netloc, credentials),
            "token_file": None if credentials.token_file is None else str(credentials.token_file.expanduser()),
            "tls": None,
        }
        if places[0].scheme == "wss":
            files = (credentials.ca, credentials.cert, credentials.key)
            told["tls"] = [None if file is None else str(file) for file in files]
        self._write(json.dumps(told).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
        except BrokenPipeError:
            log.warning("the keep-alive process of this worker has exited; starting another one")
            self.close()


def _secret_for(address: str, credentials: Credentials) -> str | None:
    """Return a token that does not change; one in a file is read by the process itself, each time that it connects."""
    secret = credentials.secret
    return find_local_token(address) or (None if secret is None else secret.get_secret_value())


def _start() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603 - our own program
        # Isolated and without site: it needs the standard library and nothing else.
        [sys.executable, "-I", "-S", str(Path(keep_alive_process.__file__)), str(os.getpid())],
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
    """Return the keep_alive as one whole WebSocket frame, so that the process need know neither protocol."""
    keep_alive = c.KeepAlive(job_id=worker.job_id, worker_id=worker.worker_id, incarnation=worker.incarnation)
    data = pb.ClientFrame(id=1, command=convert.command_to_message(keep_alive)).SerializeToString()
    length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
    # Final, binary, masked as a client must; a mask of zeros leaves the bytes as they are.
    return b"\x82" + length + bytes(4) + data
