"""Clients beside the training, whose every call is recorded: some set keys, one commits steps, one reads the newest."""

from __future__ import annotations

import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

from strata import CheckpointManager
from strata.client.client import Client
from strata.client.unary import ask_latest_checkpoint, get_key, set_key
from strata.errors import StrataError
from tests.history.calls import Recorder, read_history
from tests.history.checker import Refutation, check
from tests.history.models import Commits, Key
from tests.testbed.pace import stretch

WRITERS = 3
KEYS = ("first", "second")
JOB = "history"
PAUSE_S = 0.3


class RecordedClients:
    """Threads that ask until they are stopped. Of a call without an answer it is recorded that nobody knows its end."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._stopping = threading.Event()
        works = [(self._write, f"writer-{number}") for number in range(WRITERS)]
        works += [(self._commit, "committer"), (self._read_newest, "reader")]
        self._threads = [threading.Thread(target=work, args=(name,), name=name, daemon=True) for work, name in works]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all calls."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(stretch(120))

    def check(self) -> tuple[int, list[Refutation]]:
        """Return how many calls were answered, and what is not linearizable."""
        calls = read_history(self._folder / "calls")
        return sum(call.is_known for call in calls), check(
            calls, lambda what: Commits() if what == "commits" else Key()
        )

    def _write(self, name: str) -> None:
        recorder = Recorder(self._folder / "calls", name)
        number = 0
        while not self._stopping.wait(PAUSE_S):
            key = KEYS[number % len(KEYS)]
            number += 1
            try:
                with recorder.call(key, "get") as answered:
                    found = get_key(self._url, JOB, key)
                    answered.outcome = (found.value.decode(), found.token)
                # Now and then it is removed: what is set afterwards has a token of its own.
                value = "" if number % 5 == 0 else f"{name}/{number}"
                with recorder.call(key, "set", value, found.token) as answered:
                    now = set_key(self._url, JOB, key, value.encode(), token=found.token)
                    answered.outcome = (now.is_set, now.value.decode(), now.token)
            except StrataError:
                continue  # nobody answered in time: the outcome stays unknown
        recorder.close()

    def _commit(self, name: str) -> None:
        recorder = Recorder(self._folder / "calls", name)
        with (
            Client(self._url, "committer", job_id=JOB) as client,
            CheckpointManager(self._folder / "history-checkpoints", job_id=JOB, coordinator=client) as manager,
        ):
            client.wait_registered(stretch(60))
            step = 0
            while not self._stopping.wait(5 * PAUSE_S):
                step += 1
                try:
                    with recorder.call("commits", "commit", step) as answered:
                        manager.save_background(b"%d" % step, step).result(stretch(60))
                        answered.outcome = ("ok",)
                except (StrataError, FutureTimeoutError, TimeoutError):
                    continue
        recorder.close()

    def _read_newest(self, name: str) -> None:
        recorder = Recorder(self._folder / "calls", name)
        while not self._stopping.wait(PAUSE_S):
            try:
                with recorder.call("commits", "latest") as answered:
                    newest = ask_latest_checkpoint(self._url, JOB)
                    answered.outcome = (0 if newest is None else newest.step,)
            except StrataError:
                continue
        recorder.close()
