"""Calls: what a client asked, when, and what it was answered; and their file, which survives a killed client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOREVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one client on one object. Times are of one clock; ``outcome`` is None where it is not known."""

    client: str
    what: str
    """The object that it is about: calls on different objects are checked apart, for linearizability is local."""
    operation: tuple[Any, ...]
    invoked_ns: int
    returned_ns: int = FOREVER_NS
    outcome: tuple[Any, ...] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the client was answered."""
        return self.outcome is not None


class Answered:
    """What a recorded call came to; without one its outcome stays unknown."""

    def __init__(self) -> None:
        self.outcome: tuple[Any, ...] | None = None


class Recorder:
    """The file of one client: a line before each call, and one after it."""

    def __init__(self, folder: Path, client: str) -> None:
        self._client = client
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{client}.jsonl").open("a")
        # The last line of a process that was killed may be cut off.
        self._file.write("\n")

    @contextmanager
    def call(self, what: str, *operation: Any) -> Iterator[Answered]:
        """Record a call: the block sets ``outcome`` to what was answered."""
        self._number += 1
        answered = Answered()
        self._write(n=self._number, client=self._client, what=what, operation=operation, at=time.monotonic_ns())
        yield answered
        if answered.outcome is not None:
            self._write(n=self._number, outcome=answered.outcome, at=time.monotonic_ns())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _write(self, **fields: Any) -> None:
        # A whole line at once, so that a kill leaves at most one that is cut off.
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


def read_history(folder: Path) -> list[Call]:
    """Return the calls of all clients of a folder, by the time of their invocation."""
    return sorted((call for path in folder.glob("*.jsonl") for call in _read(path)), key=lambda call: call.invoked_ns)


def _read(path: Path) -> Iterable[Call]:
    calls: dict[int, Call] = {}
    for line in filter(None, path.read_text().splitlines()):
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # cut off by a kill: its call has no response, or was never made
        number = fields["n"]
        if "operation" in fields:
            # A process that was started again numbers anew; what was not answered before stays unknown.
            if number in calls:
                yield calls.pop(number)
            calls[number] = Call(fields["client"], fields["what"], tuple(fields["operation"]), fields["at"])
        else:
            asked = calls.pop(number)
            yield Call(
                asked.client, asked.what, asked.operation, asked.invoked_ns, fields["at"], tuple(fields["outcome"])
            )
    yield from calls.values()
