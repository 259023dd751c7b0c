"""``strata data audit``: proof that the model has seen every sample of an epoch exactly once, or where it has not."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.output import AsJson, print_json
from strata.cli.watch.status import DEFAULT_URL, Url
from strata.config import Settings, load_settings
from strata.errors import CoordinatorLostError, UnknownJobError

if TYPE_CHECKING:
    from strata.wire._generated import coordinator_pb2 as pb

# More lines than this help nobody; --json has them all.
SHOWN = 20


def audit_data(
    job: Annotated[str, typer.Argument(help="The job's id.", show_default=False)],
    dataset: Annotated[str, typer.Argument(help="The dataset's id.", show_default=False)],
    *,
    epoch: Annotated[int, typer.Option(min=0, help="The epoch.")] = 0,
    coordinator: Url = None,
    as_json: AsJson = False,
) -> None:
    """Prove that each sample of an epoch was seen exactly once, or list those that were not and exit with 1.

    The audit covers the current model: samples seen after the restored checkpoint do not count. If no coordinator
    knows the job, the audit uses the journal of its last standalone run on this machine.
    """
    audit, left_out = _ask(load_settings(coordinator_url=coordinator, job_id=job), dataset, epoch)
    exact = not audit.missing.samples and not audit.repeated.samples
    if as_json:
        from google.protobuf.json_format import MessageToDict

        found = MessageToDict(audit, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        print_json({"exactly_once": exact, **found, "left_out": left_out})
    else:
        _print(audit, f"epoch {epoch} of dataset {dataset}", exact=exact)
        for file in left_out:
            sys.stdout.write(f"  left out  {file}: it could not be understood, so its samples are not counted\n")
    if not exact:
        raise typer.Exit(1)


def _ask(settings: Settings, dataset: str, epoch: int) -> tuple[pb.DataAudit, list[str]]:
    """Return the audit, and the files that are no part of the dataset because they could not be understood."""
    from strata.client.unary import ask_audit, get_key
    from strata.run.job_folder import find_latest
    from strata.run.launch.finished_job import ask_finished

    def ask(url: str) -> tuple[pb.DataAudit, list[str]]:
        audit = ask_audit(url, settings.job_id, dataset, epoch=epoch)
        # What the first worker registered; a dataset that was registered by other means has no such key.
        registered = get_key(url, settings.job_id, f"dataset/{dataset}").value
        left_out: list[str] = json.loads(registered)["options"].get("left_out", []) if registered else []
        return audit, left_out

    folder = find_latest(settings)
    try:
        return ask(settings.coordinator_url or DEFAULT_URL)
    except (CoordinatorLostError, UnknownJobError):
        if settings.coordinator_url is not None or folder is None or not folder.journal.is_file():
            raise
    running = folder.path / "coordinator.url"
    try:
        return ask(running.read_text())
    except (CoordinatorLostError, FileNotFoundError):
        return ask_finished(folder, ask)


def _print(audit: pb.DataAudit, what: str, *, exact: bool) -> None:
    total = audit.total_samples
    if exact:
        but = [
            *([f"{audit.skipped.samples:,} that could not be read"] if audit.skipped.samples else []),
            *([f"{audit.passed_over.samples:,} that a rewind skipped"] if audit.passed_over.samples else []),
        ]
        apart = f", but for {' and '.join(but)}" if but else ""
        sys.stdout.write(f"{what}: each of its {total:,} samples was seen exactly once{apart}\n")
    else:
        seen = total - audit.missing.samples - audit.passed_over.samples
        sys.stdout.write(
            f"{what}: {seen:,} of {total:,} samples were seen, {audit.repeated.samples:,} of them more than once\n"
        )
    kinds = (
        ("missing", audit.missing),
        ("repeated", audit.repeated),
        ("skipped", audit.skipped),
        ("rewound", audit.passed_over),
    )
    for kind, found in kinds:
        for row in found.ranges[:SHOWN]:
            sys.stdout.write(f"  {kind:8}  {row.start:,} to {row.stop - 1:,}\n")
        listed = sum(row.stop - row.start for row in found.ranges[:SHOWN])
        if listed < found.samples:
            sys.stdout.write(f"  {kind:8}  and {found.samples - listed:,} more samples\n")
