"""A coordinator that cannot trust its journal ends, with one critical line and exit code 70; it never lives on half."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from strata.client.client import Client
from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.coordinator.failing.fail_stop import EXIT_CODE
from strata.coordinator.journal import Entry, SqliteJournal
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import running
from tests.testbed.waiting import wait_until

# Of a process that is the coordinator, with something patched first.
PATCHED = """
import sys
{patch}
from strata.cli.app import main
main(sys.argv[1:])
"""


class PatchedCoordinator(CoordinatorProcess):
    """A coordinator in whose process some lines run first, to plant an error where none can be had for real."""

    patch = ""

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it until the block ends; it may end before it is ready."""
        log = self._folder / "coordinator.log"
        command = [sys.executable, "-c", PATCHED.format(patch=self.patch), "coordinator", "--grpc-address", self.url]
        command += ["--channel-address", f"127.0.0.1:{self.channel_port}", "--state", f"sqlite://{self._folder}/j.db"]
        command += ["--http-port", str(self.http_port), *self._options]
        with running(command, log=log, is_ready=lambda: True) as process:
            yield process


def end_of(service: CoordinatorProcess, process: subprocess.Popen[bytes]) -> str:
    """Wait until it has ended by itself, and return the only critical line; there is no traceback."""
    assert process.wait(stretch(30)) == EXIT_CODE
    text = service.log().decode()
    assert "Traceback" not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    (critical,) = [line["message"] for line in lines if line["level"] == "CRITICAL"]
    return str(critical)


def damage_free_pages(path: Path) -> None:
    """Damage what is read only when the file grows: the list of its free pages."""
    with closing(SqliteJournal(path)) as journal:
        goodbye = c.Goodbye(job_id="j", worker_id="w", incarnation="i", reason="x" * 1_900)
        journal.append([Entry(goodbye, 0.0) for _ in range(200)])
        journal.snapshot(Cluster().freeze()())
    data = bytearray(path.read_bytes())
    trunk = int.from_bytes(data[32:36], "big")
    assert trunk > 1
    data[(trunk - 1) * 4096 : trunk * 4096] = b"\xff" * 4096
    path.write_bytes(data)


def test_a_page_that_is_found_damaged_by_a_write_ends_the_coordinator(tmp_path: Path) -> None:
    damage_free_pages(tmp_path / "j.db")
    service = CoordinatorProcess(tmp_path, "--log-json")
    with service.serving() as process, Client(service.url, "w", job_id="j") as worker:
        for number in range(200):
            worker.tell(c.RegisterDataset(job_id="j", dataset_id=f"d{number}" * 30, total_samples=9, shard_size=1))
        line = end_of(service, process)
    assert "the task 'journal' failed: the journal" in line
    assert "is damaged: database disk image is malformed" in line
    assert "Restore the file from a backup" in line


@pytest.mark.parametrize("change", ["deleted", "replaced", "folder deleted"])
def test_a_journal_that_is_not_where_it_was_ends_the_coordinator(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    service = CoordinatorProcess(tmp_path, "--log-json", "--state", f"sqlite://{folder}/j.db")
    with service.serving() as process:
        if change == "deleted":
            (folder / "j.db").unlink()
        elif change == "replaced":
            copy = folder / "copy"
            shutil.copyfile(folder / "j.db", copy)
            copy.replace(folder / "j.db")
        else:
            shutil.rmtree(folder)
        with Client(service.url, "w", job_id="j"):
            line = end_of(service, process)
    assert "was removed or replaced while the coordinator ran; put it back, and start the coordinator again" in line


INJECTED = {
    "a failed fsync": "sqlite_errorcode = 1034; error.sqlite_errorname = 'SQLITE_IOERR_FSYNC'",
    "a disk that does not answer": "sqlite_errorcode = 778; error.sqlite_errorname = 'SQLITE_IOERR_WRITE'",
    "a disk that became read-only": "sqlite_errorcode = 8; error.sqlite_errorname = 'SQLITE_READONLY'",
    "an error that nobody listed": "sqlite_errorcode = 99; error.sqlite_errorname = 'SQLITE_NEW'",
}
INJECT = """
import sqlite3
from strata.coordinator.journal import sqlite
leave = sqlite._Transaction.__exit__
def fail(transaction, *raised):
    leave(transaction, ValueError, None, None)
    error = sqlite3.OperationalError("injected")
    error.{code}
    raise error
sqlite._Transaction.__exit__ = fail
"""
PLANTED = {
    "a tick": "from strata.cluster import Cluster; Cluster.due = lambda *_: 1 // 0",
    "a command": "from strata.cluster import Cluster; Cluster.apply = lambda *_: [][0]",
    "telemetry": "from strata.coordinator.telemetry.history import History; History.drain = lambda *_, **__: 1 // 0",
    "an effect": "from strata.coordinator.sessions import Sessions; Sessions.deliver = lambda *_: {}['absent']",
    "a thread": (
        "from strata.coordinator.telemetry.history import History; History.note_start = lambda *_: {}['absent']"
    ),
}


@pytest.mark.parametrize("what", [*INJECTED, *PLANTED])
def test_whatever_breaks_the_process_ends_and_says_what_it_was(tmp_path: Path, what: str) -> None:
    service = PatchedCoordinator(tmp_path, "--log-json")
    service.patch = INJECT.format(code=INJECTED[what]) if what in INJECTED else PLANTED[what]
    with service.serving() as process, Client(service.url, "w", job_id="j"):
        line = end_of(service, process)
    assert line.startswith("the coordinator ends, because ")
    assert ("start the coordinator again" if what in INJECTED else "Start it again") in line


VIEW = """
from strata.coordinator.http.snapshot import Snapshots
async def take(self):
    return 1 // 0
Snapshots.take = take
"""


def test_a_view_that_breaks_is_an_error_of_its_caller_and_ends_nothing(tmp_path: Path) -> None:
    service = PatchedCoordinator(tmp_path, "--log-json")
    service.patch = VIEW
    with service.serving() as process, Client(service.url, "w", job_id="j") as worker:
        worker.wait_registered(stretch(40))
        wait_until(lambda: b"ready grpc=" in service.log(), "all of it serves")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{service.http_url}/api/status", timeout=stretch(10))
        with caught.value as answer:
            assert answer.code == 500
        assert worker.heartbeat(timeout_s=stretch(20)).world_size == 1
        assert process.poll() is None
