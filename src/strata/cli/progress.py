"""Progress bars: on stderr, at a terminal that can redraw only, so that output can be piped and logs stay readable."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import ProgressColumn


def can_redraw(stream: TextIO) -> bool:
    """Whether lines can be drawn again in their place: at a terminal, unless it is as simple as that of an editor."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


@contextmanager
def show_bytes(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show how many of these bytes are done; yields what to call with each further number of them."""
    if not can_redraw(sys.stderr):
        yield lambda count: None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _show(what, total_bytes, DownloadColumn(binary_units=True), TransferSpeedColumn()) as advance:
        yield advance


@contextmanager
def show_rows(what: str, total_rows: int) -> Iterator[Callable[[int], None]]:
    """Show how many of these rows are done; yields what to call with each further number of them."""
    if not can_redraw(sys.stderr):
        yield lambda count: None
        return
    from rich.progress import MofNCompleteColumn, TextColumn

    with _show(what, total_rows, MofNCompleteColumn(), TextColumn("rows")) as advance:
        yield advance


@contextmanager
def show_tokens(what: str, total_documents: int) -> Iterator[Callable[[int, int], None]]:
    """Show how many of these documents are done, and tokens a second; yields what to call with further ones of both."""
    if not can_redraw(sys.stderr):
        yield lambda documents, tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    speed = TextColumn("documents, {task.fields[speed]:,.0f} tokens/s")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
    started_s, total = time.monotonic(), 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total_documents, speed=0.0)

        def advance(documents: int, tokens: int) -> None:
            nonlocal total
            total += tokens
            progress.update(task, advance=documents, speed=total / max(1e-9, time.monotonic() - started_s))

        yield advance


@contextmanager
def _show(what: str, total: int, *details: ProgressColumn) -> Iterator[Callable[[int], None]]:
    # Rich is slow to import, and a command whose output is piped does not need it.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), *details, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
