"""The table of roles covers the whole contract, and is what docs/security.md shows."""

from __future__ import annotations

import pytest

from strata.cluster import commands as c
from strata.cluster.access import Principal, Role
from strata.cluster.access.administration import TENANT_COMMANDS, ForgetTokens
from strata.coordinator.entry import roles
from strata.coordinator.http.http_api import describe_api
from strata.coordinator.http.http_gate import role_of_path
from strata.coordinator.sessions import check_command
from strata.errors import AccessDeniedError, BadCommandError
from strata.wire._generated import coordinator_pb2 as pb

INTERNAL = {
    c.FailWorkers,
    c.ForgetWorkers,
    c.ChannelLost,
    c.AskForManifest,
    c.EndRepair,
    c.AssignShards,
    c.ExpireBarrier,
    ForgetTokens,
}


def test_every_call_of_the_contract_has_a_row() -> None:
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name["Coordinator"].methods}
    assert calls <= set(roles.CALLS)
    assert set(roles.CALLS) - calls <= {kind.__name__ for kind in roles.COMMANDS}


def test_every_command_has_a_row_or_is_the_coordinators_own() -> None:
    assert {*c.COMMANDS, *TENANT_COMMANDS} - set(roles.COMMANDS) == INTERNAL


def test_every_route_of_http_has_a_row() -> None:
    assert set(describe_api()["paths"]) | {"/api/openapi.json"} == set(roles.ROUTES)


@pytest.mark.parametrize("role", Role)
def test_a_role_may_do_what_the_roles_before_it_may(role: Role) -> None:
    for lower in roles.ORDER[: roles.ORDER.index(role)]:
        assert roles.MAY_COMMAND[lower] <= roles.MAY_COMMAND[role]
        assert roles.MAY_CALL[lower] <= roles.MAY_CALL[role]


@pytest.mark.parametrize(
    "path", ["/api/health/", "/api/HEALTH", "/api/health/../jobs", "/api//jobs", "/api/x", "/metrics/"]
)
def test_a_path_that_is_nearly_an_open_one_is_not_open(path: str) -> None:
    assert role_of_path(path) is Role.VIEWER


@pytest.mark.parametrize("path", ["/", "/assets/index.js", "/jobs", "/api/health", "/api/ready"])
def test_the_page_and_the_probes_are_for_everyone(path: str) -> None:
    assert role_of_path(path) is None


@pytest.mark.parametrize("kind", sorted(INTERNAL - {ForgetTokens}, key=lambda each: each.__name__))
@pytest.mark.parametrize("role", Role)
def test_what_the_coordinator_says_itself_is_for_no_role(kind: type[c.Command], role: Role) -> None:
    with pytest.raises(BadCommandError, match="for the coordinator alone"):
        check_command(kind.__new__(kind), Principal("token", "default", role))


def test_a_refusal_says_which_role_it_takes() -> None:
    with pytest.raises(AccessDeniedError, match="RemoveJob; it takes the role operator"):
        roles.check_call(Principal("ci", "team", Role.VIEWER), "RemoveJob")
    with pytest.raises(AccessDeniedError, match="no role may"):
        roles.check_call(Principal("ci", "team", Role.ADMIN), "Unheard")
