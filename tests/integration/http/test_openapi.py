"""The OpenAPI document holds for a real coordinator, whatever is sent to it, and the file of it is not stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.client.client import Client
from strata.coordinator.http.http_api import describe_api
from tests.testbed.coordinator import CoordinatorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "dashboard" / "openapi.json").read_text())
OPERATIONS = [result.ok() for result in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]
CASES = [
    pytest.param(operation, mode, id=f"{operation.label}-{mode.value}")
    for operation in OPERATIONS
    for mode in schemathesis.GenerationMode
    # What takes no parameters cannot be sent wrong ones.
    if mode.is_positive or operation.query or operation.path_parameters
]


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    coordinator = CoordinatorProcess(tmp_path_factory.mktemp("openapi"))
    with coordinator.serving(), Client(coordinator.url, "a", keep_alive_s=0) as client:
        client.wait_registered()
        yield coordinator.http_url


def test_the_document_is_the_one_that_is_served_in_the_file() -> None:
    assert describe_api() == DOCUMENT


def test_every_route_of_the_api_is_described() -> None:
    assert set(DOCUMENT["paths"]) == {
        "/api/barriers",
        "/api/checkpoints",
        "/api/checkpoints/{step}",
        "/api/dashboard",
        "/api/datasets",
        "/api/datasets/{dataset_id}",
        "/api/events",
        "/api/goodput",
        "/api/health",
        "/api/jobs",
        "/api/ready",
        "/api/series",
        "/api/series/step-times",
        "/api/status",
        "/api/workers",
        "/api/workers/{worker_id}",
        "/metrics",
    }


# Not schema.parametrize(): its tests all have one name in pytest 9.2, and xdist runs one of each name.
@pytest.mark.parametrize(("operation", "mode"), CASES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_every_answer_is_as_the_document_says(
    operation: Any, mode: schemathesis.GenerationMode, base_url: str, data: st.DataObject
) -> None:
    case = data.draw(operation.as_strategy(generation_mode=mode))
    # A stream never ends, and has a test of its own.
    headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "accept"}
    case.headers = {**headers, "Accept": "application/json"}
    # A leader that is asked whether it is a standby says no with 503, as probes expect; the document says so.
    says_no = case.path == "/api/ready"
    case.call_and_validate(
        base_url=base_url, excluded_checks=[schemathesis.checks.not_a_server_error] if says_no else []
    )
