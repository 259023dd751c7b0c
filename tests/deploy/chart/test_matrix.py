"""The chart with many values: Helm takes them, and Kubernetes takes what Helm makes of them."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from tests.deploy.chart.rendering import ETCD, FOLDER, SCALED, STEADY, at, helm, merge, pods, render, sources

pytestmark = [
    pytest.mark.part("helm"),
    pytest.mark.part("manifests"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("chart"),  # what is rendered once serves all of them
]

ALL_MONITORING = {
    "monitoring": {name: {"enabled": True} for name in ("serviceMonitor", "rules", "grafanaDashboard")},
}
S3 = {"storage": {"backend": "s3", "s3": {"bucket": "my-ml-checkpoints", "region": "us-east-1"}}}
# The values.yaml of the first description of this chart, as it stands there.
FIRST = {
    "coordinator": {
        "replicaCount": 1,
        "service": {"type": "ClusterIP", "grpcPort": 50051, "httpPort": 8080},
        "resources": {"limits": {"cpu": 2, "memory": "4Gi"}},
    },
    "workers": {
        "replicaCount": 4,
        "image": "syrilj/strata-worker:latest",
        "env": [{"name": "COORDINATOR_URL", "value": "strata-coordinator:50051"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    },
    "persistence": {"enabled": True, "storageClass": "fast-nvme", "accessMode": "ReadWriteMany", "size": "500Gi"},
    **S3,
}
GENERATED: dict[str, dict[str, Any]] = {"as it comes": {}, "the first values": FIRST}
OTHERS: dict[str, dict[str, Any]] = {
    "insecure": {"security": {"insecure": True}},
    "etcd": merge(ETCD, at("coordinator.journal.etcd.tlsSecret", "etcd-client")),
    "etcd, insecure": merge(ETCD, {"security": {"insecure": True}}),
    "a job": {"workers": {"kind": "Job", "job": {"activeDeadlineSeconds": 2_000_000}}},
    "a job set": {"workers": {"kind": "JobSet"}},
    "a job set that restarts pods": {"workers": {"kind": "JobSet", "jobSet": {"inPlaceExitCodes": []}}},
    "scaled": SCALED,
    "scaled by steps": merge(SCALED, {"workers": {"autoscaling": {"stepDuration": {"enabled": True}}}}),
    "everything seen": merge(ALL_MONITORING, {"security": {"tls": {"mutual": True}}}),
    "an issuer": {"security": {"tls": {"certManager": {"issuerName": "ca", "issuerKind": "ClusterIssuer"}}}},
    "projected tokens": {"security": {"tokens": {"workers": "projected"}}},
    "an ingress": {"dashboard": {"ingress": {"enabled": True, "className": "nginx", "tlsSecretName": "page"}}},
    "open to other networks": {
        "coordinator": {"service": {"type": "LoadBalancer"}, "preStopSeconds": 0},
        "dashboard": {"service": {"type": "NodePort"}},
        "security": {"tokens": {"dashboardKey": ""}},
    },
    "etcd on IPv6": merge(ETCD, at("coordinator.listen", "::")),
    "no workers": {"workers": {"kind": "Job", "replicaCount": 0}},
    "placed": {
        "imagePullSecrets": [{"name": "registry"}],
        "workers": {
            "nodeSelector": {"gpu": "a100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        },
        "storage": {"backend": "azure", "azure": {"container": "c", "account": "a"}},
    },
    "no dashboard": {"dashboard": {"enabled": False}, "tests": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "classes": {"priorityClasses": {"create": True}, "podSecurity": {"runAsUser": None, "fsGroup": 1_000_680_000}},
    "identities": merge(
        S3,
        {
            "identity": {
                "aws": {"roleArn": "arn:aws:iam::123456789012:role/strata"},
                "gcp": {"serviceAccount": "a@b.iam.gserviceaccount.com"},
                "azure": {"clientId": "00000000-0000-0000-0000-000000000000"},
            },
            "storage": {"credentials": {"values": {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "planted"}}},
        },
    ),
}
# A certificate is made anew with each rendering, which takes long; two rows show it.
MATRIX = GENERATED | {name: merge(STEADY, values) for name, values in OTHERS.items()}
# They come with their operators; the Job inside of a JobSet is validated all the same.
CUSTOM = {"JobSet", "ServiceMonitor", "PrometheusRule", "Certificate", "Issuer"}


@functools.lru_cache(maxsize=512)
def problem(manifest: str, version: str) -> str:
    import kubernetes_validate

    try:
        kubernetes_validate.validate(json.loads(manifest), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{error}"
    return ""


def newest_versions() -> list[str]:
    from kubernetes_validate.utils import all_versions, major_minor

    versions = {major_minor(each) for each in all_versions()}
    return sorted(versions, key=lambda version: [int(number) for number in version.split(".")])[-3:]


def native(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    jobs = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "inside"},
            "spec": replicated["template"]["spec"],
        }
        for each in objects
        if each["kind"] == "JobSet"
        for replicated in each["spec"]["replicatedJobs"]
    ]
    return [each for each in objects if each["kind"] not in CUSTOM] + jobs


@pytest.mark.parametrize("name", MATRIX)
def test_the_three_newest_kubernetes_versions_take_every_object(name: str) -> None:
    versions = newest_versions()
    assert len(versions) == 3
    objects = native(render(MATRIX[name]))
    assert objects
    for each in objects:
        manifest = json.dumps(each)
        for version in versions:
            assert problem(manifest, version) == "", f"{each['kind']} in {version}"


def test_the_validation_refuses_a_field_that_there_is_not() -> None:
    (service, *_) = (each for each in render(MATRIX["as it comes"]) if each["kind"] == "Service")
    service["spec"]["portz"] = []
    assert problem(json.dumps(service), newest_versions()[-1]) != ""


@pytest.mark.parametrize("name", ["as it comes", "etcd", "a job set", "everything seen", "identities"])
def test_helm_lints_the_chart(name: str) -> None:
    done = helm("lint", "--strict", str(FOLDER), "--values", "-", stdin=json.dumps(MATRIX[name]))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", MATRIX)
def test_no_pod_may_more_than_it_needs(name: str) -> None:
    found = pods(render(MATRIX[name]))
    assert found
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize("name", MATRIX)
def test_every_mounted_volume_is_there_and_used(name: str) -> None:
    objects = render(MATRIX[name])
    assert pods(objects)
    for each in objects:
        claims = [claim["metadata"]["name"] for claim in each.get("spec", {}).get("volumeClaimTemplates", [])]
        for pod in pods([each]):
            mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["volumes"]} | set(claims), each["kind"]


@pytest.mark.parametrize("name", MATRIX)
def test_no_secret_is_in_any_object_but_secrets(name: str) -> None:
    objects = render(MATRIX[name])
    secrets = [each for each in objects if each["kind"] == "Secret"]
    words = {
        word
        for each in secrets
        for key, word in (each.get("data", {}) | each.get("stringData", {})).items()
        if not key.endswith((".crt", "_ID"))
    }
    rest = json.dumps([each for each in objects if each["kind"] != "Secret"])
    assert {word for word in words if word in rest} == set()
    if name in ("as it comes", "identities"):
        assert words
    assert "BEGIN" not in rest


def test_every_template_is_rendered_by_some_row() -> None:
    whole = {str(path.relative_to(FOLDER)) for path in (FOLDER / "templates").rglob("*.yaml")}
    assert set().union(*(sources(values) for values in MATRIX.values())) == whole
