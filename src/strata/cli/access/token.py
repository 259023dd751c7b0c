"""``strata token``: who gets in, with which role, to which jobs, and until when."""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.output import AsJson, print_json, print_table
from strata.cli.watch.status import DEFAULT_URL, Url
from strata.config import load_settings

if TYPE_CHECKING:
    from strata.wire._generated import coordinator_pb2 as pb

TIMEOUT_S = 10.0
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
app = typer.Typer(help="Create, list and revoke the tokens of clients.", no_args_is_help=True)
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant that the token belongs to.")]


@app.command("create", epilog="Example: strata token create --tenant team-a --role worker --expires 30d > worker-token")
def create(
    *,
    tenant: Tenant = "default",
    role: Annotated[str, typer.Option(help="viewer, worker, operator or admin.")],
    job: Annotated[str, typer.Option(help="A pattern of the jobs that it is valid for, such as 'llm-*'.")] = "*",
    expires: Annotated[
        str | None, typer.Option(help="When the token expires, such as 12h or 30d.", show_default="never")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The name shown in events and lists.", show_default="the role and the id")
    ] = None,
    coordinator: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it once; the coordinator keeps only a hash of it.

    To rotate, create a second token, give it to the clients, and revoke the first; until then both are valid.
    """
    from strata.client.unary import ask
    from strata.cluster.access import Role
    from strata.coordinator.entry.secret_tokens import make_token
    from strata.wire._generated import coordinator_pb2 as pb

    if role not in tuple(Role):
        raise typer.BadParameter(f"{role!r}; use {', '.join(Role)}", param_hint="--role")
    expires_s = None if expires is None else time.time() + _seconds(expires)
    token = make_token()
    called = name or f"{role}-{token.token_id}"
    request = pb.CreateToken(
        tenant=tenant,
        token_id=token.token_id,
        sha256=token.sha256,
        role=role,
        jobs=job,
        name=called,
        expires_s=expires_s,
    )
    ask(_url(coordinator), lambda stub: stub.CreateToken(request, timeout=TIMEOUT_S))
    if as_json:
        print_json({"token_id": token.token_id, "name": called, "tenant": tenant, "role": role, "token": token.text})
        return
    # The token alone on stdout, so that it can go into a file and nowhere else.
    sys.stdout.write(f"{token.text}\n")
    sys.stderr.write(f"token {called!r} ({token.token_id}) of tenant {tenant!r}; it is not shown again\n")


@app.command("ls", epilog="Example: strata token ls --tenant team-a")
def list_tokens(
    *,
    tenant: Annotated[str, typer.Option("--tenant", help="Only tokens of this tenant.", show_default="all")] = "",
    coordinator: Url = None,
    as_json: AsJson = False,
) -> None:
    """List tokens, never their secrets."""
    from google.protobuf.json_format import MessageToDict

    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    found: pb.Tokens = ask(
        _url(coordinator), lambda stub: stub.ListTokens(pb.ListTokens(tenant=tenant), timeout=TIMEOUT_S)
    )
    if as_json:
        print_json([MessageToDict(each, preserving_proto_field_name=True) for each in found.tokens])
        return
    print_table(("id", "name", "tenant", "role", "jobs", "created", "ends"), map(_row, found.tokens))


@app.command("revoke", epilog="Example: strata token revoke 5f2a91c07d3e --tenant team-a")
def revoke(
    *,
    token_id: Annotated[str, typer.Argument(help="The id of the token, as strata token ls shows it.")],
    tenant: Tenant = "default",
    coordinator: Url = None,
) -> None:
    """Revoke a token; the coordinator closes its connections within a second."""
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    request = pb.RevokeToken(tenant=tenant, token_id=token_id)
    ask(_url(coordinator), lambda stub: stub.RevokeToken(request, timeout=TIMEOUT_S))
    sys.stdout.write(f"token {token_id} is revoked\n")


def _url(coordinator: str | None) -> str:
    return load_settings(coordinator_url=coordinator).coordinator_url or DEFAULT_URL


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([1-9]\d{0,5})([smhdw])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r}; use a number and s, m, h, d or w, such as 30d", param_hint="--expires")
    return float(int(found[1]) * _UNITS_S[found[2]])


def _row(token: pb.TokenStatus) -> tuple[str, ...]:
    ends = "never"
    if token.HasField("revoked_s"):
        ends = f"revoked {_day(token.revoked_s)}"
    elif token.HasField("expires_s"):
        ends = f"{'expired' if token.expires_s <= time.time() else 'expires'} {_day(token.expires_s)}"
    return token.token_id, token.name, token.tenant, token.role, token.jobs, _day(token.created_s), ends


def _day(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # the calendar ends before
        return "after 9999"
