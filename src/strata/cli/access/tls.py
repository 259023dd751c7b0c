"""``strata tls``: a private certificate authority and certificates for a small cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Create certificates for a coordinator and its clients.", no_args_is_help=True)


@app.command("init", epilog="Example: strata tls init tls --host coordinator.cluster --host 10.0.0.5")
def init(
    *,
    directory: Annotated[Path, typer.Argument(help="The directory for the files; created if missing.")],
    host: Annotated[list[str], typer.Option(help="A name or address under which clients reach the coordinator.")],
    days: Annotated[int, typer.Option(min=1, max=3_650, help="For how many days the certificates are valid.")] = 365,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers", help="Make the server's certificate valid for outgoing connections too, as etcd nodes need it."
        ),
    ] = False,
) -> None:
    """Create a private certificate authority, the coordinator's certificate, and one for clients with mutual TLS.

    Run it again to renew the certificates; it keeps the authority, and a running coordinator loads the new files.
    """
    from strata.address import DEFAULT_PORT, join_address
    from strata.coordinator.entry.certificates import make_certificates

    try:
        files = make_certificates(directory, hosts=host, days=days, are_peers=peers)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    address = join_address(host[0].strip("[]"), DEFAULT_PORT)
    sys.stdout.write(
        f"{files.ca} is the authority; keep {files.ca_key} where only administrators reach it.\n\n"
        "On the coordinator's machine:\n"
        f"  strata coordinator --listen 0.0.0.0 --tls-cert {files.cert} --tls-key {files.key} "
        "--admin-token-file admin-token\n\n"
        "On every other machine, with a copy of the authority's certificate:\n"
        f"  export COORDINATOR_URL=grpcs://{address} STRATA_TLS_CA={files.ca}\n\n"
        "For mutual TLS, start the coordinator with --tls-client-ca "
        f"{files.ca}, and set on clients STRATA_TLS_CERT={files.client_cert} STRATA_TLS_KEY={files.client_key}\n"
    )
