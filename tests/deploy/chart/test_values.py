"""Every value of the chart reaches its place; probes.yaml says which that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart.rendering import STEADY, VALUES, at, environ, find, pod_of, render

pytestmark = [pytest.mark.part("helm"), pytest.mark.timeout(300), pytest.mark.xdist_group("chart")]

TABLE = yaml.safe_load((Path(__file__).parent / "probes.yaml").read_text())
CONTEXTS: dict[str, dict[str, Any]] = TABLE["contexts"]
PROBES: dict[str, dict[str, Any]] = TABLE["probes"]
# They decide whether values are refused, and how long a random certificate is valid: test_behaviour.py has them.
ELSEWHERE = {"persistence.enabled", "security.tls.generatedDays"}


def leaves(values: dict[str, Any], path: str = "") -> list[str]:
    """Return the paths of all values; an empty dict is a value, and so are labels and resources."""
    found = []
    for key, value in values.items():
        name = f"{path}.{key}".lstrip(".")
        is_branch = isinstance(value, dict) and value and key not in ("resources", "labels")
        found += leaves(value, name) if is_branch else [name]
    return found


def default_of(path: str) -> Any:
    value: Any = VALUES
    for name in path.split("."):
        value = value[name]
    return value


def shown(where: str, *layers: dict[str, Any]) -> str:
    """Return the object as JSON, or an empty text if there is none."""
    kind, name = where.split("/")
    found = [each for each in render(STEADY, *layers) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    assert len(found) <= 1
    return json.dumps(found[0]) if found else ""


def test_every_value_has_a_probe() -> None:
    assert sorted([*PROBES, *ELSEWHERE]) == sorted(leaves(VALUES))


@pytest.mark.parametrize("path", PROBES)
def test_the_value_reaches_its_place(path: str) -> None:
    probe = PROBES[path]
    value, given = probe["value"], probe.get("given", {})
    given = CONTEXTS[given] if isinstance(given, str) else given
    assert value != default_of(path)
    without = at(path, default_of(path)) if probe.get("without_it") else {}
    before, after = shown(probe["where"], given, without), shown(probe["where"], given, at(path, value))
    if "text" in probe or not isinstance(value, bool):
        text = probe.get("text", json.dumps(value).strip("{}[]"))
        assert text in after
        assert text not in before
    else:
        assert before != after


@pytest.mark.parametrize("name", ["COORDINATOR_URL", "STRATA_TLS_CA", "HOME"])
def test_a_variable_that_the_user_sets_is_there_once(name: str) -> None:
    values = {"env": [{"name": name, "value": "mine"}]}
    objects = render(STEADY, {"workers": values, "coordinator": values})
    assert environ(pod_of(find(objects, "Deployment", "strata-worker")))[name] == "mine"
    assert environ(pod_of(find(objects, "StatefulSet")))[name] == "mine"


def test_a_worker_of_a_job_has_its_rank_and_its_name_from_its_index() -> None:
    variables = environ(pod_of(find(render(STEADY, CONTEXTS["job"]), "Job")))
    assert "job-completion-index" in variables["RANK"]["fieldRef"]["fieldPath"]
    assert (variables["WORKER_ID"], variables["WORLD_SIZE"]) == ("worker-$(RANK)", "4")
