"""``strata tenant``: who shares a coordinator, and how much of it each may use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.output import AsJson, print_json, print_table
from strata.cli.watch.status import DEFAULT_URL, Url
from strata.config import load_settings

if TYPE_CHECKING:
    from strata.wire._generated import coordinator_pb2 as pb

TIMEOUT_S = 10.0
NONE = "none"
app = typer.Typer(help="Create, change, show and remove the tenants of a coordinator.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The tenant.", show_default=False)]


def _option(text: str) -> Any:
    return typer.Option(help=f"{text}; 'none' for no quota.", show_default=False, metavar="N")


Jobs = Annotated[str | None, _option("Jobs that may have workers at once")]
Workers = Annotated[str | None, _option("Workers in all jobs together")]
Datasets = Annotated[str | None, _option("Datasets in all jobs together")]
Keys = Annotated[str | None, _option("Keys in all jobs together")]
Barriers = Annotated[str | None, _option("Barriers that may be open at once")]
Channels = Annotated[str | None, _option("Connections that may be open")]
Requests = Annotated[str | None, _option("Sustained requests per second; more are slowed down")]
JournalBytes = Annotated[str | None, _option("Bytes of the journal")]
SoftBytes = Annotated[str | None, _option("Bytes of committed checkpoints above which an event warns")]
HardBytes = Annotated[str | None, _option("Bytes of committed checkpoints above which a save is refused")]


@app.command("create", epilog="Example: strata tenant create vision --workers 64 --requests-per-s 2000")
def create(
    tenant: Name,
    *,
    jobs: Jobs = None,
    workers: Workers = None,
    datasets: Datasets = None,
    keys: Keys = None,
    barriers: Barriers = None,
    channels: Channels = None,
    requests_per_s: Requests = None,
    journal_bytes: JournalBytes = None,
    checkpoint_soft_bytes: SoftBytes = None,
    checkpoint_bytes: HardBytes = None,
    coordinator: Url = None,
) -> None:
    """Create a tenant; without quotas, only the coordinator's own limits apply."""
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    request = pb.CreateTenant(tenant=tenant)
    _change(request.quotas, _given(locals()))
    ask(_url(coordinator), lambda stub: stub.CreateTenant(request, timeout=TIMEOUT_S))
    sys.stdout.write(
        f"tenant {tenant} is there; give it a token: strata token create --tenant {tenant} --role worker\n"
    )


@app.command("set", epilog="Example: strata tenant set vision --workers 128 --keys none")
def change(
    tenant: Name,
    *,
    jobs: Jobs = None,
    workers: Workers = None,
    datasets: Datasets = None,
    keys: Keys = None,
    barriers: Barriers = None,
    channels: Channels = None,
    requests_per_s: Requests = None,
    journal_bytes: JournalBytes = None,
    checkpoint_soft_bytes: SoftBytes = None,
    checkpoint_bytes: HardBytes = None,
    coordinator: Url = None,
) -> None:
    """Change the given quotas and keep the others; a lower quota removes nothing that the tenant already has."""
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    changes = _given(locals())
    (found,) = _list(coordinator, tenant)
    request = pb.SetTenant(tenant=tenant, quotas=found.quotas)
    request.quotas.SetInParent()
    _change(request.quotas, changes)
    ask(_url(coordinator), lambda stub: stub.SetTenant(request, timeout=TIMEOUT_S))
    sys.stdout.write(f"the quotas of tenant {tenant} are changed\n")


@app.command("show", epilog="Example: strata tenant show vision --json")
def show(tenant: Name, *, coordinator: Url = None, as_json: AsJson = False) -> None:
    """Show the quotas of a tenant, and what it uses of them."""
    (found,) = _list(coordinator, tenant)
    quotas, use = _quotas(found), dict(found.use)
    if as_json:
        print_json({"tenant": found.tenant, "quotas": quotas, "use": use})
        return
    names = [name for name in found.quotas.DESCRIPTOR.fields_by_name if name in quotas or name in use]
    print_table(
        ("quota", "limit", "use"),
        ([name, _shown(quotas.get(name), NONE), _shown(use.get(name), "-")] for name in names),
    )


@app.command("ls", epilog="Example: strata tenant ls --coordinator 10.0.0.5:50051")
def list_tenants(*, coordinator: Url = None, as_json: AsJson = False) -> None:
    """List all tenants."""
    found = _list(coordinator, "")
    if as_json:
        print_json([{"tenant": each.tenant, "quotas": _quotas(each), "use": dict(each.use)} for each in found])
        return
    rows = []
    for each in found:
        quotas = ", ".join(f"{name}={_shown(value, NONE)}" for name, value in _quotas(each).items())
        rows.append([each.tenant, _shown(each.use["jobs"], "0"), _shown(each.use["workers"], "0"), quotas or NONE])
    print_table(("tenant", "jobs", "workers", "quotas"), rows)


@app.command("rm", epilog="Example: strata tenant rm vision")
def remove(tenant: Name, *, coordinator: Url = None) -> None:
    """Remove a tenant whose jobs have no workers, with its tokens and jobs; checkpoints stay in storage."""
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    ask(_url(coordinator), lambda stub: stub.RemoveTenant(pb.RemoveTenant(tenant=tenant), timeout=TIMEOUT_S))
    sys.stdout.write(f"tenant {tenant} is removed; its checkpoints are where they were\n")


def _given(options: dict[str, Any]) -> dict[str, str]:
    """Return the quotas that were named, as they were written."""
    return {
        name: value for name, value in options.items() if value is not None and name not in ("tenant", "coordinator")
    }


def _change(quotas: pb.Quotas, changes: dict[str, str]) -> None:
    for name, text in changes.items():
        if name not in quotas.DESCRIPTOR.fields_by_name:
            continue  # what the function holds beside its options
        if text == NONE:
            quotas.ClearField(name)
            continue
        try:
            setattr(quotas, name, float(text) if name == "requests_per_s" else int(text))
        except ValueError as error:
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{text!r}; use a number above 0, or {NONE!r}", param_hint=option) from error


def _list(coordinator: str | None, tenant: str) -> list[pb.TenantStatus]:
    from strata.client.unary import ask
    from strata.wire._generated import coordinator_pb2 as pb

    request = pb.ListTenants(tenant=tenant)
    return list(ask(_url(coordinator), lambda stub: stub.ListTenants(request, timeout=TIMEOUT_S)).tenants)


def _quotas(tenant: pb.TenantStatus) -> dict[str, float]:
    return {field.name: value for field, value in tenant.quotas.ListFields()}


def _shown(value: float | None, missing: str) -> str:
    return missing if value is None else f"{value:.12g}"


def _url(coordinator: str | None) -> str:
    return load_settings(coordinator_url=coordinator).coordinator_url or DEFAULT_URL
