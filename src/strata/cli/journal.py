"""``strata journal``: the coordinator's journal as a file, for backups and for moving between SQLite and etcd."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.output import AsJson, print_json

app = typer.Typer(
    help="Export, import and verify the coordinator's journal.", no_args_is_help=True, rich_markup_mode="rich"
)
State = Annotated[
    str, typer.Option("--state", help="The journal: sqlite:///path or etcd://host:2379,host:2379/prefix.")
]


@app.command("export", epilog="Example: strata journal export --state etcd://10.0.0.5:2379/strata backup.jsonl")
def export(
    file: Annotated[Path, typer.Argument(help="The file to write; one of that name is replaced.")], *, state: State
) -> None:
    """Export a journal to a file, as a backup.

    A journal in etcd may be in use during the export. Stop the coordinator before you export one in SQLite.
    """
    from strata.coordinator.journal.transfer import export_journal

    _check(state)
    content = export_journal(state, file)
    sys.stdout.write(f"wrote {file}: {_describe(content.state, len(content.entries))}\n")


@app.command("import", epilog="Example: strata journal import --state sqlite:///var/lib/strata/journal.db backup.jsonl")
def import_(file: Annotated[Path, typer.Argument(help="An export.")], *, state: State) -> None:
    """Import an export into an empty journal, to restore a backup or to move to etcd and back.

    The import is refused if the journal is not empty, or if a coordinator leads it.
    """
    from strata.coordinator.journal.transfer import import_journal

    _check(state)
    content = import_journal(file, state)
    sys.stdout.write(f"imported {_describe(content.state, len(content.entries))}\n")


@app.command("verify", epilog="Example: strata journal verify backup.jsonl; strata journal verify --state etcd://...")
def verify(
    file: Annotated[Path | None, typer.Argument(help="An export.")] = None,
    *,
    state: Annotated[str | None, typer.Option("--state", help="A journal instead of an export.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read all of an export or of a journal, check every digest, and replay it as a coordinator would.

    Exits with 1 if anything is missing or damaged.
    """
    from strata.coordinator.journal.transfer import load_journal, read_file

    if (file is None) == (state is None):
        raise typer.BadParameter("name an export, or a journal with --state")
    if state is not None:
        _check(state)
        content, where = load_journal(state), state
    else:
        assert file is not None
        content, where = read_file(file), str(file)
    jobs = content.check(where)
    if as_json:
        snapshot_bytes = None if content.state is None else len(content.state)
        print_json({"snapshot_bytes": snapshot_bytes, "entries": len(content.entries), "jobs": jobs})
    else:
        named = f"; jobs: {', '.join(jobs)}" if jobs else "; no jobs"
        sys.stdout.write(f"{where} is whole: {_describe(content.state, len(content.entries))}{named}\n")


def _check(state: str) -> None:
    from strata.coordinator.etcd.target import is_etcd, parse_target
    from strata.coordinator.journal import check_state

    try:
        check_state(state)
        if state == "memory://":
            raise ValueError("memory:// keeps nothing; use sqlite:///path/to/file or etcd://host:2379/prefix")  # noqa: TRY301 - reported below
        if is_etcd(state):
            parse_target(state, os.environ)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _describe(state: bytes | None, entries: int) -> str:
    snapshot = "no snapshot" if state is None else f"a snapshot of {len(state):,} bytes"
    return f"{snapshot} and {entries:,} entries"
