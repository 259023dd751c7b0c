"""What ended a Python program, read from the traceback on its stderr: the exception, and the user's own line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from strata.run.watchdog.stacks import is_users

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_ERROR = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_MISSING = re.compile(r".*python[\d.]*: (?P<message>No module named .+|Error while finding module specification .+)")
# What Python says of a script that it cannot compile: without a traceback, as nothing has run yet.
_SYNTAX = re.compile(r"(?P<name>SyntaxError|IndentationError|TabError): (?P<message>.*)")
_RANK = re.compile(r"^\[rank\d+\]: ?")
# An address in memory, a random part of a name, or a number: they differ each time, or for each rank.
_RANDOM = re.compile(r"0x[0-9a-fA-F]+|(?<![0-9a-zA-Z])[0-9a-f]{8,}(?![0-9a-zA-Z])|\d+")

# To try these again changes nothing: what is missing stays missing.
FATAL = frozenset(
    {
        "ImportError",
        "ModuleNotFoundError",
        "SyntaxError",
        "IndentationError",
        "TabError",
        "ConfigError",
        "DuplicateWorkerError",
        "InvalidIdError",
        "MissingExtraError",
        "ProtocolMismatchError",
        "RewindError",
        "UnfinishedRewindError",
        "UnsafeStoreError",
        "WorldSizeError",
    }
)
# These come from others, or from the network: the same one twice proves nothing.
PASSING = frozenset(
    {
        "BarrierTimeoutError",
        "BrokenPipeError",
        "CheckpointAbortedError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "CoordinatorLostError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "JobWaitingError",
        "JournalUnavailableError",
        "Reconfigure",
        "StorageUnavailableError",
        "TimeoutError",
    }
)
# The same of errors whose class says nothing: a peer in the process group died, a port was taken, or a service is away.
_PASSING_MESSAGE = re.compile(
    r"(?i)connection (was )?(closed|reset|refused)|broken pipe|EADDRINUSE|address already in use|timed? ?out|"
    r"temporar(y|il)|unavailable|unreachable|try again"
)


@dataclass(frozen=True, slots=True)
class Crash:
    """The exception that ended a program: its class, its message, and where the user's code was."""

    exception: str
    message: str
    place: str
    """File, line and function of the innermost frame of the user's own code."""
    code: str = ""
    """The source of that line."""

    @property
    def name(self) -> str:
        """The name of the class without its module."""
        return self.exception.rpartition(".")[2]

    @property
    def is_fatal(self) -> bool:
        """Whether to start the program again is pointless."""
        return self.name in FATAL

    @property
    def signature(self) -> str:
        """What is the same when the same error comes at the same place; empty if that would prove nothing."""
        words = signature_of(self.message)
        return "" if self.name in PASSING or (self.message and not words) else f"{self.exception}: {words} {self.place}"

    def __str__(self) -> str:
        error = f"{self.name}: {self.message}" if self.message else self.name
        code = f": {self.code}" if self.code else ""
        return f"{error} (at {self.place}{code})" if self.place else error


def signature_of(words: str) -> str:
    """Return what is the same when a program says the same again; empty if the cause may pass by itself."""
    return "" if _PASSING_MESSAGE.search(words) else _RANDOM.sub("0", words)


def find_crash(lines: Sequence[str]) -> Crash | None:
    """Return the exception of the last traceback in what a program wrote to stderr; None if there is none."""
    # torch puts the rank before every line.
    lines = [_RANK.sub("", line) for line in lines]
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last):")]
    for start in reversed(starts):
        if (crash := _read(lines[start + 1 :])) is not None:
            return crash
    if lines and (syntax := _SYNTAX.fullmatch(lines[-1])) is not None:
        place, code = _find_place(lines)
        return Crash(syntax["name"], syntax["message"][:300], place, code)
    # What `python -m` says of a module that is not there, without a traceback.
    missing = _MISSING.fullmatch(lines[-1]) if lines else None
    return None if missing is None else Crash("ModuleNotFoundError", missing["message"][:300], "")


def _read(lines: Sequence[str]) -> Crash | None:
    frames: list[tuple[str, str, str]] = []
    for index, line in enumerate(lines):
        if (frame := _FRAME.match(line)) is not None:
            name = frame["file"].rpartition("/")[2]
            where = f"{name}:{frame['line']}" + (f" in {frame['function']}" if frame["function"] else "")
            frames.append((frame["file"], where, _source(lines[index + 1 : index + 2])))
        elif line and not line.startswith(" "):
            found = _ERROR.match(line)
            if found is None or not frames:
                return None
            own = [frame for frame in frames if is_users(frame[0])] or frames[-1:]
            _, where, code = own[-1]
            return Crash(found["name"], (found["message"] or "").strip()[:300], where, code[:120])
    return None


def _find_place(lines: Sequence[str]) -> tuple[str, str]:
    """Return file and line of the last frame, and its source."""
    for index in reversed(range(len(lines))):
        if (frame := _FRAME.match(lines[index])) is not None:
            return f"{frame['file'].rpartition('/')[2]}:{frame['line']}", _source(lines[index + 1 : index + 2])[:120]
    return "", ""


def _source(following: Sequence[str]) -> str:
    """Return the line of source that follows a frame, where the file could be read."""
    return following[0].strip() if following and following[0].startswith("    ") else ""
