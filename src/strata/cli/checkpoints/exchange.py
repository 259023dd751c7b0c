"""``strata ckpt export`` and ``import``: checkpoints to and from the files of other tools."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.checkpoints.arguments import Job, Step, Where, open_archive, open_manager, show_size
from strata.cli.progress import show_bytes

if TYPE_CHECKING:
    from strata.checkpoint.exchange.formats import Written


class FormatName(StrEnum):
    """The formats that are spoken."""

    safetensors = "safetensors"
    hf = "hf"
    dcp = "dcp"
    torch = "torch"


def export_checkpoint(
    where: Where,
    step: Step,
    target: Annotated[Path, typer.Argument(help="The file, or for hf and dcp the folder, to write.", metavar="TARGET")],
    *,
    job: Job = "default",
    form: Annotated[
        FormatName, typer.Option("--to", help="safetensors file, hf folder, dcp folder or torch file.")
    ] = FormatName.safetensors,
    under: Annotated[str, typer.Option("--under", help="Export only the subtree at this dotted path.")] = "",
    shard_bytes: Annotated[
        int, typer.Option("--shard-bytes", min=1, help="Size of a file of --to hf.")
    ] = 5_000_000_000,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write a checkpoint in the format of another tool, with every tensor whole, however many parts it has."""
    target = _check_target(target, force=force)

    async def run() -> Written:
        from strata.checkpoint.exchange.formats import write_state

        archive = open_archive(where, job)
        async with archive.reading(step) as manifest:
            with show_bytes(f"step {step}", manifest.size_bytes) as on_bytes:
                return await write_state(
                    archive, manifest, target, form.value, on_bytes, under=under, shard_bytes=shard_bytes
                )

    written = asyncio.run(run())
    files = [each for each in target.rglob("*") if each.is_file()] if target.is_dir() else [target]
    size = show_size(sum(each.stat().st_size for each in files))
    sys.stdout.write(f"wrote step {step} to {target} ({written.tensors} tensors, {size})\n")
    if written.unnamed:
        kind = "as raw bytes, or as int64 if they are times"
        sys.stdout.write(f"safetensors has no type for these; they are in it {kind}: {', '.join(written.unnamed)}\n")


def import_checkpoint(
    source: Annotated[Path, typer.Argument(help="A file, or a folder of DCP or Hugging Face.", metavar="SOURCE")],
    where: Where,
    step: Step,
    *,
    job: Job = "default",
    form: Annotated[
        FormatName | None, typer.Option("--format", help="The format of SOURCE, if it cannot be guessed.")
    ] = None,
    under: Annotated[str, typer.Option("--under", help="The key to import under, such as model.")] = "",
) -> None:
    """Create a checkpoint from a file or folder of another tool, without running any code in it."""
    from strata.checkpoint.exchange.formats import read_state

    state, found = read_state(source.expanduser(), form.value if form is not None else None)
    state = {under: state} if under else state
    metadata: dict[str, Any] = {"imported_from": source.name, "format": found}
    with open_manager(where, job, keep_count=None) as manager:
        info = manager.save(state, step, metadata=metadata)
    sys.stdout.write(f"imported {source} as step {step} of job {job} ({show_size(info.size_bytes)})\n")


def _check_target(target: Path, *, force: bool) -> Path:
    target = target.expanduser()
    if target.is_dir():
        raise typer.BadParameter(f"{target} is a folder that is there already; remove it first")
    if target.exists() and not force:
        raise typer.BadParameter(f"{target} is there already; use --force to replace it")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"the folder {target.parent} does not exist; make it first")
    return target
