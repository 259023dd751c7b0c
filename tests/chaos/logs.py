"""What the logs of a job say: who lived, which steps were done when, and which waits nobody explained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

# A worker says for what it waits after 3 s; on a busy machine the line may come a little later.
SILENT_S = 6.0
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) (.*)")
_EXPLAINS = ("waiting", "stands still", "over after", "told to stop", "stopped after", "all save after")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a rank's log, and when the launcher got it."""

    at_s: float
    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A rank that was stopped from outside, and could say nothing meanwhile."""

    rank: int
    began_s: float
    ended_s: float


def read_lines(home: Path) -> dict[tuple[str, int], list[Line]]:
    """Return the lines of each rank, by run and rank."""
    found: dict[tuple[str, int], list[Line]] = {}
    for path in sorted(home.glob("runs/*/logs/rank-*.log")):
        rank = int(path.stem.removeprefix("rank-"))
        found[path.parts[-3], rank] = [
            Line(datetime.fromisoformat(match[1]).timestamp() + int(match[2]) / 1e3, rank, match[3])
            for text in path.read_text(errors="replace").splitlines()
            if (match := _LINE.fullmatch(text)) is not None
        ]
    return found


def count_lives(lines: Iterable[Line]) -> int:
    """Return how many processes of a rank have joined."""
    return sum(line.text.startswith("life ") for line in lines)


def find_silences(lines: Sequence[Line], pauses: Sequence[Pause], *, silent_s: float = SILENT_S) -> Iterator[str]:
    """Yield the stretches without a step that the rank itself does not explain."""
    begin: Line | None = None
    said: list[str] = []
    for line in lines:
        is_step = line.text.startswith("step ")
        is_life = line.text.startswith("life ")
        if begin is not None and is_step:
            waited_s = line.at_s - begin.at_s
            is_told = any(word in each for each in said for word in _EXPLAINS)
            is_paused = any(
                pause.rank == line.rank and pause.began_s < line.at_s and pause.ended_s > begin.at_s for pause in pauses
            )
            if waited_s > silent_s and not is_told and not is_paused:
                yield f"rank {line.rank}: {waited_s:.1f} s between {begin.text!r} and {line.text!r}, and it said {said}"
        if is_step or is_life:
            # A process that ended is the launcher's to explain; the next one begins with its own life.
            begin, said = line, []
        else:
            said.append(line.text)
