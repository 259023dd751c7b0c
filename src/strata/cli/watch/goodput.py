"""``strata goodput``: where the wall time of a job went."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata.cli.output import AsJson, escape, print_json
from strata.cli.watch.status import DEFAULT_URL, Url
from strata.config import load_settings


def show_goodput(
    *,
    job: Annotated[str | None, typer.Argument(help="The job.", show_default="the busiest one")] = None,
    coordinator: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show where the wall time of a job went: the share spent on steps that were kept, and the causes of the rest.

    The seconds add up to the wall time, from the start of the first worker to the last report.
    """
    from strata.client.http_reader import HttpReader
    from strata.run.launch.goodput_report import describe_goodput

    url = load_settings(coordinator_url=coordinator).coordinator_url or DEFAULT_URL
    answer = HttpReader.of_leader(url).get("/api/goodput", job=job)
    if as_json:
        print_json(answer)
    else:
        sys.stdout.write("\n".join(escape(line) for line in describe_goodput(answer)) + "\n")
