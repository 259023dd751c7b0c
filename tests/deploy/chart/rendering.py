"""The chart as Helm renders it, as objects."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from scripts.chart import CHART
from scripts.parts import find_program
from tests.testbed.pace import stretch

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / CHART
VALUES: dict[str, Any] = yaml.safe_load((FOLDER / "values.yaml").read_text())

ETCD = {
    "coordinator": {
        "replicaCount": 3,
        "journal": {"backend": "etcd", "etcd": {"endpoints": ["a:2379", "b:2379", "c:2379"]}},
    }
}
SCALED = {"workers": {"resources": {"requests": {"cpu": 2}}, "autoscaling": {"enabled": True}}}
# Nothing in it is random, so that two renderings differ by their values alone.
STEADY = {"security": {"tls": {"source": "certManager"}, "tokens": {"existingSecret": "mine"}}}


def helm(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program = find_program("helm")
    assert program is not None
    return subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, text=True, timeout=stretch(60), check=False
    )


def merge(*layers: dict[str, Any]) -> dict[str, Any]:
    """Return the values of all layers; the last one that has a key wins."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = merge(merged[key], value) if both else copy.deepcopy(value)
    return merged


def at(path: str, value: Any) -> dict[str, Any]:
    """Return values that hold this one alone, at a dotted path."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def render(*layers: dict[str, Any], folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return the objects of the chart with these values, for a release named strata."""
    return [each for each in yaml.load_all(_render(merge(*layers), folder), yaml.CSafeLoader) if each]


def sources(*layers: dict[str, Any]) -> set[str]:
    """Return the templates that make an object with these values."""
    marked = (line for line in _render(merge(*layers), FOLDER).splitlines() if line.startswith("# Source: "))
    return {line.removeprefix("# Source: strata/") for line in marked}


def _render(values: dict[str, Any], folder: Path) -> str:
    return _render_text(json.dumps(values, sort_keys=True), folder)


@functools.lru_cache(maxsize=256)
def _render_text(values: str, folder: Path) -> str:
    done = helm("template", "strata", str(folder), "--namespace", "ml-training", "--values", "-", stdin=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(*layers: dict[str, Any]) -> str:
    """Return what Helm says to values that the chart refuses."""
    done = helm("template", "strata", str(FOLDER), "--values", "-", stdin=json.dumps(merge(*layers)))
    assert done.returncode != 0, "they were taken"
    return done.stderr


def find(objects: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    """Return the one object of this kind, and name."""
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    """Return the pod's spec of a workload of any kind."""
    if workload["kind"] == "Pod":
        return workload["spec"]
    if workload["kind"] == "JobSet":
        workload = workload["spec"]["replicatedJobs"][0]["template"]
    return workload["spec"]["template"]["spec"]


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the specs of all pods."""
    kinds = {"Deployment", "StatefulSet", "Job", "JobSet", "Pod"}
    return [pod_of(each) for each in objects if each["kind"] in kinds]


def environ(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of a pod's only container; each may be there once."""
    entries = pod["containers"][0]["env"]
    names = [entry["name"] for entry in entries]
    assert len(names) == len(set(names)), names
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}
