"""How results are printed: tables for people, JSON for programs.

Colour is on only at a terminal and when NO_COLOR is unset; rich decides both.
"""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PIPE_WIDTH = 10_000
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def print_json(data: Any) -> None:
    """Print ``data`` as one JSON document."""
    sys.stdout.write(json.dumps(_without_nonfinite(data), indent=2, allow_nan=False) + "\n")


def print_json_line(data: Any) -> None:
    """Print ``data`` as one JSON document on one line, for streams of them."""
    sys.stdout.write(json.dumps(_without_nonfinite(data), allow_nan=False) + "\n")


def _without_nonfinite(data: Any) -> Any:
    """Return a copy with text for NaN and infinity, which JSON lacks and most readers of it refuse."""
    if isinstance(data, dict):
        return {key: _without_nonfinite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_without_nonfinite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def escape(text: str) -> str:
    """Return text of other people so that it cannot move the cursor or change colours."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under bold headings, without borders, so that it can be cut and pasted."""
    # Rich is slow to import, and a command that prints JSON or one line does not need it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape(cell)) for cell in row))
    # In a pipe nothing is folded: a row is a line, for grep and awk.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(width=width, highlight=False).print(table)
