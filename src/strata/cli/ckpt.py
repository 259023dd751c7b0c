"""``strata ckpt``: list, show, verify, export, pin, delete, prune and compare checkpoints, on local paths and URLs."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.output import AsJson, print_json, print_table
from strata.cli.progress import show_bytes
from strata.errors import DamagedCheckpointError

if TYPE_CHECKING:
    from strata.checkpoint.archive import Archive
    from strata.checkpoint.handle import CheckpointInfo
    from strata.checkpoint.manager import CheckpointManager
    from strata.checkpoint.manifest import Manifest

app = typer.Typer(help="List, show, verify, export, pin, delete, prune and compare checkpoints.", no_args_is_help=True)

Where = Annotated[str, typer.Argument(help="A directory, or a URL such as s3://bucket/prefix.", metavar="WHERE")]
Step = Annotated[int, typer.Argument(help="The step of the checkpoint.", min=0)]
Job = Annotated[str, typer.Option("--job", help="The job whose checkpoints are meant.")]


# The engine needs NumPy, which takes longer to import than `strata version` to run.
def _open(where: str, job: str) -> Archive:
    from strata.checkpoint.archive import Archive
    from strata.ids import job_id
    from strata.storage import open_storage

    return Archive(open_storage(where), job_id(job))


def _manage(where: str, job: str, **options: Any) -> CheckpointManager:
    from strata.checkpoint.manager import CheckpointManager

    return CheckpointManager(where, job_id=job, **options)


@app.command("ls")
def list_all(where: Where, *, job: Job = "default", as_json: AsJson = False) -> None:
    """List the checkpoints of a job, oldest first; damaged ones are named too."""
    scan = asyncio.run(_open(where, job).scan())
    infos = [entry.info for entry in scan.entries.values()]
    if as_json:
        broken = [{"step": step, "error": str(error)} for step, error in sorted(scan.unreadable.items())]
        print_json({"checkpoints": [asdict(info) for info in infos], "unreadable": broken})
        return
    rows = [(info.step, _row(info)) for info in infos]
    rows += [(step, (str(step), "-", "-", "-", "-", str(error))) for step, error in scan.unreadable.items()]
    print_table(("step", "epoch", "created", "size", "parts", "kind"), (row for _, row in sorted(rows)))


@app.command("show")
def show_one(where: Where, step: Step, *, job: Job = "default", as_json: AsJson = False) -> None:
    """Show what a checkpoint holds: its tensors, and what was said about it."""
    manifest = asyncio.run(_open(where, job).read(step))
    if as_json:
        print_json(_describe(manifest))
        return
    for name, value in _describe(manifest).items():
        if name != "tensors":
            sys.stdout.write(f"{name}: {value}\n")
    if manifest.tensors:
        sys.stdout.write("\n")
        rows = (
            (name, each.dtype, str(list(each.shape)), str(len(each.slices))) for name, each in manifest.tensors.items()
        )
        print_table(("tensor", "type", "shape", "slices"), rows)


@app.command("verify")
def verify(
    where: Where,
    step: Annotated[int | None, typer.Argument(help="The step; without it, all.", min=0)] = None,
    *,
    job: Job = "default",
    as_json: AsJson = False,
) -> None:
    """Read every byte and check it against its digest; exit with 1 if anything is damaged."""
    results = asyncio.run(_verify(_open(where, job), step))
    if as_json:
        print_json([{"step": step, "good": error is None, "error": error} for step, error in results])
    else:
        for each, error in results:
            sys.stdout.write(f"step {each}: {'good' if error is None else error}\n")
    if any(error is not None for _, error in results):
        raise typer.Exit(1)


@app.command("export")
def export(
    where: Where,
    step: Step,
    target: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE")],
    *,
    job: Job = "default",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write one safetensors file with every tensor whole, whatever the number of parts; bytes as they were."""
    if target.exists() and not force:
        raise typer.BadParameter(f"{target} is there already; use --force to replace it")

    async def run() -> int:
        archive = _open(where, job)
        manifest = await archive.read(step)
        with show_bytes(f"step {step}", manifest.size_bytes) as on_bytes:
            await archive.export(manifest, target, on_bytes)
        return len(manifest.tensors)

    count = asyncio.run(run())
    sys.stdout.write(f"wrote step {step} to {target} ({count} tensors, {_size(target.stat().st_size)})\n")


@app.command("pin")
def pin(
    where: Where,
    step: Step,
    *,
    job: Job = "default",
    reason: Annotated[str, typer.Option("--reason", help="Why it is kept.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Take the pin away.")] = False,
) -> None:
    """Keep a checkpoint whatever retention thinks, or stop doing so."""
    with _manage(where, job) as manager:
        if remove:
            manager.unpin(step)
        else:
            manager.pin(step, reason)
    sys.stdout.write(f"step {step} is {'left to retention' if remove else 'pinned'}\n")


@app.command("delete")
def delete(
    where: Where,
    step: Step,
    *,
    job: Job = "default",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete one checkpoint, also a damaged one, so that its step can be saved again."""
    if not yes:
        typer.confirm(f"delete step {step} of job {job} in {where}?", abort=True)
    with _manage(where, job) as manager:
        manager.delete(step)
    sys.stdout.write(f"deleted step {step}\n")


@app.command("prune")
def prune(
    where: Where,
    *,
    job: Job = "default",
    keep_count: Annotated[int, typer.Option("--keep-count", min=1, help="How many of the newest to keep.")] = 5,
    keep_every: Annotated[int | None, typer.Option("--keep-every", min=1, help="Keep multiples of this.")] = None,
    ttl_s: Annotated[float | None, typer.Option("--ttl", min=0, help="Delete what is older, in seconds.")] = None,
    grace_s: Annotated[float, typer.Option("--grace", min=0, help="Age of debris to sweep, in seconds.")] = 86400.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete what a policy does not keep, and what dead saves left; the newest checkpoint always stays."""
    with _manage(where, job, keep_count=keep_count, keep_every=keep_every, ttl_s=ttl_s, grace_s=grace_s) as manager:
        going = manager.prune(dry_run=dry_run)
    if as_json:
        print_json([{"step": verdict.step, "reason": verdict.reason} for verdict in going])
        return
    for verdict in going:
        sys.stdout.write(f"{'would delete' if dry_run else 'deleted'} step {verdict.step}: {verdict.reason}\n")
    if not going:
        sys.stdout.write("nothing to delete\n")


@app.command("diff")
def diff(
    where: Where,
    left: Annotated[int, typer.Argument(help="The older step.", min=0, metavar="STEP")],
    right: Annotated[int, typer.Argument(help="The newer step.", min=0, metavar="STEP")],
    *,
    job: Job = "default",
    as_json: AsJson = False,
) -> None:
    """Say which tensors and plain values differ between two steps."""

    async def run() -> list[Any]:
        archive = _open(where, job)
        manifests = [await archive.read(step) for step in (left, right)]
        with show_bytes(f"steps {left} and {right}", manifests[0].size_bytes) as on_bytes:
            return list(await archive.diff(manifests[0], manifests[1], on_bytes))

    found = asyncio.run(run())
    if as_json:
        print_json([asdict(each) for each in found])
    elif found:
        print_table(("name", "change", "detail"), ((each.name, each.change, each.detail) for each in found))
    else:
        sys.stdout.write(f"steps {left} and {right} hold the same state\n")


async def _verify(archive: Archive, step: int | None) -> list[tuple[int, str | None]]:
    results: dict[int, str | None] = {}
    if step is None:
        scan = await archive.scan()
        results = {each: str(error) for each, error in scan.unreadable.items()}
        steps = list(scan.entries)
    else:
        steps = [step]
    for each in steps:
        try:
            manifest = await archive.read(each)
            with show_bytes(f"step {each}", manifest.size_bytes) as on_bytes:
                await archive.verify(manifest, on_bytes)
            results[each] = None
        except DamagedCheckpointError as error:
            results[each] = str(error)
    return sorted(results.items())


def _describe(manifest: Manifest) -> dict[str, Any]:
    return {
        "job_id": manifest.job_id,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "generation": manifest.generation,
        "created": _time(manifest.created_s),
        "size_bytes": manifest.size_bytes,
        "parts": len(manifest.parts),
        "parent": manifest.parent,
        "objects": sorted(manifest.objects()),
        "metadata": manifest.metadata,
        "cursors": manifest.cursors,
        "tensors": {
            name: {"dtype": each.dtype, "shape": list(each.shape), "slices": len(each.slices)}
            for name, each in manifest.tensors.items()
        },
    }


def _row(info: CheckpointInfo) -> tuple[str, ...]:
    kind = "full" if info.parent is None else f"delta of {info.parent}"
    return (
        str(info.step),
        str(info.epoch),
        _time(info.created_s),
        _size(info.size_bytes),
        str(info.parts),
        f"{kind}, pinned" if info.pinned else kind,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
