"""The replicas of a coordinator in ``strata status``: who leads, in which term, and how far the others are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strata.cli.output import print_table

if TYPE_CHECKING:
    from strata.wire._generated import coordinator_pb2 as pb

TIMEOUT_S = 2.0


def ask_replicas(url: str, leader: pb.Description) -> list[dict[str, Any]]:
    """Ask each replica that the leader knows; one that does not answer has the role ``away``."""
    from strata.client.description import describe
    from strata.client.dial import Dial
    from strata.errors import CoordinatorLostError

    dial = Dial.to(url)
    rows: list[dict[str, Any]] = []
    for address in leader.replicas:
        row: dict[str, Any] = {"address": address, "role": "away", "term": None, "entries": None, "lag": None}
        try:
            told = describe(dial, address, name=address, timeout_s=TIMEOUT_S)
        except CoordinatorLostError:
            rows.append(row)
            continue
        row["role"] = "leader" if told.is_leader else "standby"
        row["term"], row["entries"] = told.term, told.applied
        rows.append(row)
    newest = max((row["entries"] for row in rows if row["entries"] is not None), default=0)
    for row in rows:
        row["lag"] = None if row["entries"] is None else newest - row["entries"]
    return rows


def print_replicas(rows: list[dict[str, Any]]) -> None:
    """Print a table; nothing for a coordinator without replicas."""
    columns = ("address", "role", "term", "entries", "lag")
    if rows:
        names = ("replica", *columns[1:])
        print_table(names, [tuple("" if row[each] is None else str(row[each]) for each in columns) for row in rows])
