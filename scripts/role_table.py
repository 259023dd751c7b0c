"""The table of roles in docs/security.md, from the code that decides."""

from __future__ import annotations

from collections.abc import Mapping

from strata.cluster.access import Role
from strata.coordinator.entry import roles

BEGIN = "<!-- roles: written by `make generate` from src/strata/coordinator/entry/roles.py -->"
END = "<!-- end of roles -->"


def security_page(page: str) -> str:
    """Return docs/security.md as it is, with a new table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{_draw()}\n{END}{rest.partition(END)[2]}"


def _draw() -> str:
    commands = {kind.__name__: role for kind, role in roles.COMMANDS.items()}
    calls = {name: role for name, role in roles.CALLS.items() if name not in commands}
    rows = ["| from this role on | commands | other calls of gRPC | HTTP |", "|---|---|---|---|"]
    for role in (None, *Role):
        found = (_named(table, role) for table in (commands, calls, roles.ROUTES))
        rows.append(f"| {role or 'everyone'} | {' | '.join(found)} |")
    return "\n".join(rows)


def _named(table: Mapping[str, Role | None], role: Role | None) -> str:
    return ", ".join(f"`{name}`" for name, least in table.items() if least is role)
