"""``strata data audit``: proof that the model has seen every sample of an epoch exactly once, or where it has not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.output import AsJson, print_json
from strata.cli.status import DEFAULT_URL, Url
from strata.config import load_settings

if TYPE_CHECKING:
    from strata.wire._generated import coordinator_pb2 as pb

# More lines than this help nobody; --json has them all.
SHOWN = 20


def audit_data(
    job: Annotated[str, typer.Argument(help="The job.", show_default=False)],
    dataset: Annotated[str, typer.Argument(help="The dataset's id.", show_default=False)],
    *,
    epoch: Annotated[int, typer.Option(min=0, help="The epoch.")] = 0,
    coordinator: Url = None,
    as_json: AsJson = False,
) -> None:
    """Prove that each sample of an epoch was seen exactly once, or list those that were not; then exit with 1.

    It is about the model as it is now: what was seen after a checkpoint that was restored does not count.
    """
    from strata.client.questions import ask_audit

    url = load_settings(coordinator_url=coordinator).coordinator_url or DEFAULT_URL
    audit = ask_audit(url, job, dataset, epoch=epoch)
    exact = not audit.missing.samples and not audit.repeated.samples
    if as_json:
        from google.protobuf.json_format import MessageToDict

        found = MessageToDict(audit, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        print_json({"exactly_once": exact, **found})
    else:
        _print(audit, f"epoch {epoch} of dataset {dataset}", exact=exact)
    if not exact:
        raise typer.Exit(1)


def _print(audit: pb.DataAudit, what: str, *, exact: bool) -> None:
    total = audit.total_samples
    if exact:
        unread = f", but for {audit.skipped.samples:,} that could not be read" if audit.skipped.samples else ""
        sys.stdout.write(f"{what}: each of its {total:,} samples was seen exactly once{unread}\n")
    else:
        seen = total - audit.missing.samples
        sys.stdout.write(
            f"{what}: {seen:,} of {total:,} samples were seen, {audit.repeated.samples:,} of them more than once\n"
        )
    for kind, found in (("missing", audit.missing), ("repeated", audit.repeated), ("skipped", audit.skipped)):
        for row in found.ranges[:SHOWN]:
            sys.stdout.write(f"  {kind:8}  {row.start:,} to {row.stop - 1:,}\n")
        listed = sum(row.stop - row.start for row in found.ranges[:SHOWN])
        if listed < found.samples:
            sys.stdout.write(f"  {kind:8}  and {found.samples - listed:,} more samples\n")
