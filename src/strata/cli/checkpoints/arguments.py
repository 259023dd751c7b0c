"""What the commands of ``strata ckpt`` share: their arguments, and how they open a storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from strata.checkpoint.keep.archive import Archive
    from strata.checkpoint.manager import CheckpointManager
    from strata.storage import Storage

Where = Annotated[str, typer.Argument(help="A directory, or a URL such as s3://bucket/prefix.", metavar="WHERE")]
Step = Annotated[int, typer.Argument(help="The step of the checkpoint.", min=0)]
Job = Annotated[str, typer.Option("--job", help="The job that the checkpoints belong to.")]
# Someone waits at a terminal: a store that is away is reported sooner than to a training run.
PATIENCE_S = 20.0


# The engine needs NumPy, which takes longer to import than `strata version` to run.
def open_where(where: str) -> Storage:
    """Open the storage that an argument names."""
    from strata.storage import RetryPolicy, open_storage

    is_remote = "://" in where and not where.startswith(("file://", "memory://"))
    return open_storage(where, **({"retry": RetryPolicy(max_elapsed_s=PATIENCE_S)} if is_remote else {}))


def open_archive(where: str, job: str) -> Archive:
    """Open a job's checkpoints to look at them."""
    from strata.checkpoint.keep.archive import Archive
    from strata.errors import InvalidIdError

    return Archive(open_where(where), InvalidIdError.check("job id", job))


def open_manager(where: str, job: str, **options: Any) -> CheckpointManager:
    """Open a job's checkpoints to change them."""
    from strata.checkpoint.manager import CheckpointManager

    return CheckpointManager(storage=open_where(where), job_id=job, **options)


def show_size(count: float) -> str:
    """Show a number of bytes to people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
