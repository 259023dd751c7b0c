"""How results are printed: tables for people, JSON for programs.

Colour is on only at a terminal and when NO_COLOR is unset; rich decides both.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


def print_json(data: Any) -> None:
    """Print ``data`` as one JSON document."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under bold headings, without borders, so that it can be cut and pasted."""
    # Rich is slow to import, and a command that prints JSON or one line does not need it.
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=not sys.stdout.isatty(), highlight=False).print(table)
