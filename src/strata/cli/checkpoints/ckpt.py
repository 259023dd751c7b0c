"""``strata ckpt``: list, show, verify, pin, delete, prune and compare checkpoints, on local paths and URLs."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.checkpoints import exchange
from strata.cli.checkpoints.arguments import Job, Step, Where, open_archive, open_manager, show_size
from strata.cli.output import AsJson, print_json, print_table
from strata.cli.progress import show_bytes
from strata.errors import CheckpointNotFoundError, DamagedCheckpointError, UnknownFormatError

if TYPE_CHECKING:
    from strata.checkpoint.format.manifest import Manifest
    from strata.checkpoint.keep.archive import Archive, Deep
    from strata.checkpoint.save.handle import CheckpointInfo
    from strata.cluster.values import Divergence

app = typer.Typer(
    help="List, show, verify, compare, pin, delete, prune, import and export checkpoints.", no_args_is_help=True
)


@app.command("ls", epilog="Example: strata ckpt ls s3://bucket/llm --job llm-7b")
def list_all(where: Where, *, job: Job = "default", as_json: AsJson = False) -> None:
    """List the checkpoints of a job, oldest first. Damaged ones are listed too, and those that a rewind set aside."""
    scan = asyncio.run(open_archive(where, job).scan())
    infos = [entry.info for entry in (*scan.entries.values(), *scan.rewound)]
    if as_json:
        broken = [{"step": step, "error": str(error)} for step, error in sorted(scan.unreadable.items())]
        print_json({"checkpoints": [asdict(info) for info in infos], "unreadable": broken})
        return
    rows = [(info.step, _row(info)) for info in infos]
    rows += [(step, (str(step), "-", "-", "-", "-", str(error))) for step, error in scan.unreadable.items()]
    print_table(("step", "epoch", "created", "size", "parts", "kind"), (row for _, row in sorted(rows)))


@app.command("show", epilog="Example: strata ckpt show checkpoints/ 1000 --json")
def show_one(where: Where, step: Step, *, job: Job = "default", as_json: AsJson = False) -> None:
    """Show what a checkpoint contains: its tensors, its metadata and the data position."""
    manifest = asyncio.run(open_archive(where, job).read(step))
    described = _describe(manifest)
    if as_json:
        print_json(described)
        return
    tensors = described.pop("tensors")
    for name, value in described.items():
        sys.stdout.write(f"{name}: {value}\n")
    if tensors:
        sys.stdout.write("\n")
        rows = ((name, each["dtype"], str(each["shape"]), str(each["slices"])) for name, each in tensors.items())
        print_table(("tensor", "type", "shape", "slices"), rows)


@app.command("verify", epilog="Example: strata ckpt verify s3://bucket/llm 1000")
def verify(
    where: Where,
    step: Annotated[int | None, typer.Argument(help="The step. Default: every step.", min=0)] = None,
    *,
    job: Job = "default",
    deep: Annotated[bool, typer.Option("--deep", help="Also read every tensor, and count NaN and infinity.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read every byte and check it against its digest. Exit with 1 if anything is damaged.

    Replicas that differed when a checkpoint was saved are listed too; they do not count as damage.
    """
    checked = asyncio.run(_verify(open_archive(where, job), step, deep=deep))
    if as_json:
        print_json([_result(each) for each in checked])
    else:
        for each in checked:
            sys.stdout.write(f"step {each.step}: {_words(each)}\n")
    if any(each.error is not None for each in checked):
        raise typer.Exit(1)


@app.command("pin", epilog="Example: strata ckpt pin checkpoints/ 1000 --reason 'release 2'")
def pin(
    where: Where,
    step: Step,
    *,
    job: Job = "default",
    reason: Annotated[str, typer.Option("--reason", help="Why the checkpoint is kept; shown by ls.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pin.")] = False,
) -> None:
    """Pin a checkpoint, so that no retention policy deletes it, or remove the pin."""
    with open_manager(where, job) as manager:
        if remove:
            manager.unpin(step)
        else:
            manager.pin(step, reason)
    sys.stdout.write(f"step {step} is {'left to retention' if remove else 'pinned'}\n")


@app.command("delete", epilog="Example: strata ckpt delete checkpoints/ 1000 --yes")
def delete(
    where: Where,
    step: Step,
    *,
    job: Job = "default",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
) -> None:
    """Delete one checkpoint. A damaged one can be deleted too; its step can then be saved again."""
    if not yes:
        typer.confirm(f"delete step {step} of job {job} in {where}?", abort=True)
    with open_manager(where, job) as manager:
        manager.delete(step)
    sys.stdout.write(f"deleted step {step}\n")


@app.command("prune", epilog="Example: strata ckpt prune s3://bucket/llm --keep-count 3 --keep-every 10000 --dry-run")
def prune(
    where: Where,
    *,
    job: Job = "default",
    keep_count: Annotated[int, typer.Option("--keep-count", min=1, help="How many of the newest to keep.")] = 5,
    keep_every: Annotated[
        int | None, typer.Option("--keep-every", min=1, help="Also keep every step that is a multiple of this.")
    ] = None,
    ttl_s: Annotated[
        float | None, typer.Option("--ttl", min=0, help="Delete checkpoints that are older than this many seconds.")
    ] = None,
    grace_s: Annotated[
        float,
        typer.Option("--grace", min=0, help="Delete files of interrupted saves that are older than this many seconds."),
    ] = 86400.0,
    rewound: Annotated[
        bool, typer.Option("--rewound", help="Delete only the checkpoints that rewinds set aside.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the checkpoints that the policy does not keep, and the files of interrupted saves.

    The newest checkpoint is always kept. Checkpoints that a rewind set aside are deleted only with --rewound.
    """
    from strata.checkpoint import RetentionPolicy

    retention = RetentionPolicy(keep_count=keep_count, keep_every=keep_every, ttl_s=ttl_s, grace_s=grace_s)
    with open_manager(where, job, retention=retention) as manager:
        asyncio.run(open_archive(where, job).require())
        going = manager.prune_rewound(dry_run=dry_run) if rewound else manager.prune(dry_run=dry_run)
    if as_json:
        print_json([{"step": verdict.step, "reason": verdict.reason} for verdict in going])
        return
    for verdict in going:
        sys.stdout.write(f"{'would delete' if dry_run else 'deleted'} step {verdict.step}: {verdict.reason}\n")
    if not going:
        sys.stdout.write("nothing to delete\n")


@app.command("diff", epilog="Example: strata ckpt diff checkpoints/ 1000 2000")
def diff(
    where: Where,
    left: Annotated[int, typer.Argument(help="The older step.", min=0, metavar="STEP")],
    right: Annotated[int, typer.Argument(help="The newer step.", min=0, metavar="STEP")],
    *,
    job: Job = "default",
    as_json: AsJson = False,
) -> None:
    """Compare two checkpoints: which tensors and values differ, and by how much."""

    async def run() -> list[Any]:
        archive = open_archive(where, job)
        async with archive.reading(left) as older, archive.reading(right) as newer:
            with show_bytes(f"steps {left} and {right}", older.size_bytes) as on_bytes:
                return list(await archive.diff(older, newer, on_bytes))

    found = asyncio.run(run())
    if as_json:
        print_json([asdict(each) for each in found])
    elif found:
        columns = ("name", "change", "detail", "max abs", "cosine")
        print_table(
            columns,
            ((each.name, each.change, each.detail, _number(each.max_abs), _number(each.cosine)) for each in found),
        )
    else:
        sys.stdout.write(f"steps {left} and {right} hold the same state\n")


@dataclass(frozen=True, slots=True)
class _Checked:
    """What a look at every byte of a checkpoint found."""

    step: int
    error: str | None = None
    deep: Deep | None = None
    diverged: Divergence | None = None


async def _verify(archive: Archive, step: int | None, *, deep: bool) -> list[_Checked]:
    """Return what is wrong with each step, or what a deep look found."""
    results: list[_Checked] = []
    if step is None:
        scan = await archive.scan()
        results = [_Checked(each, str(error)) for each, error in scan.unreadable.items()]
        steps = list(scan.entries)
    else:
        steps = [step]
    for each in steps:
        try:
            found = None
            async with archive.reading(each) as manifest:
                with show_bytes(f"step {each}", manifest.size_bytes) as on_bytes:
                    if deep:
                        found = await archive.verify_deeply(manifest, on_bytes)
                    else:
                        await archive.verify(manifest, on_bytes)
            results.append(_Checked(each, None, found, manifest.diverged))
        except CheckpointNotFoundError:
            # Of all steps, one that was deleted since they were listed is not missed.
            if step is not None:
                raise
        except (DamagedCheckpointError, UnknownFormatError) as error:
            results.append(_Checked(each, str(error)))
    return sorted(results, key=lambda result: result.step)


def _result(checked: _Checked) -> dict[str, Any]:
    row: dict[str, Any] = {"step": checked.step, "good": checked.error is None, "error": checked.error}
    row["diverged"] = None if checked.diverged is None else asdict(checked.diverged)
    if checked.deep is not None:
        row |= asdict(checked.deep)
    return row


def _words(checked: _Checked) -> str:
    if checked.error is not None:
        return checked.error
    words = "good"
    if (found := checked.deep) is not None:
        bad = [f"{name} has {count} elements that are NaN or infinite" for name, count in found.nonfinite.items()]
        words = f"good, {found.tensors} tensors{'; ' if bad else ', '}{', '.join(bad) or 'all finite'}"
        if found.unread:
            words += f", but for {', '.join(found.unread)}: install ml_dtypes to look for NaN in them"
    return words if checked.diverged is None else f"{words}; replicas diverged: {checked.diverged}"


def _describe(manifest: Manifest) -> dict[str, Any]:
    from strata.checkpoint.format.random_state import find_random_states, list_state_tensors

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
        "diverged": None if manifest.diverged is None else str(manifest.diverged),
        "suspect": manifest.is_suspect,
        "rewinds": [str(each) for each in manifest.rewinds],
        "random_states": len(find_random_states(manifest.structure)),
        "tensors": {
            name: {"dtype": each.dtype, "shape": list(each.shape), "slices": len(each.slices)}
            for name, each in ((name, manifest.tensors[name]) for name in list_state_tensors(manifest))
        },
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.9g}"


def _row(info: CheckpointInfo) -> tuple[str, ...]:
    kind = "full" if info.parent is None else f"delta of {info.parent}"
    if info.rewound is not None:
        kind += f", set aside by rewind {info.rewound}"
    if info.diverged is not None:
        kind += f", diverged: {info.diverged}"
    return (
        str(info.step),
        str(info.epoch),
        _time(info.created_s),
        show_size(info.size_bytes),
        str(info.parts),
        f"{kind}, pinned" if info.pinned else kind,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


app.command("export", epilog="Example: strata ckpt export checkpoints/ 1000 model.safetensors")(
    exchange.export_checkpoint
)
app.command("import", epilog="Example: strata ckpt import model.pt checkpoints/ 0 --under model")(
    exchange.import_checkpoint
)
