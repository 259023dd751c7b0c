"""What the chart promises beyond single values: refusals, exit codes, probes, certificates, rules and notes."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from scripts.parts import find_program
from strata.cli.app import app
from strata.config import Settings, load_settings
from strata.run.exits import HUNG, PREEMPTED
from tests.deploy.chart.rendering import (
    ETCD,
    FOLDER,
    ROOT,
    STEADY,
    at,
    environ,
    find,
    helm,
    merge,
    pod_of,
    pods,
    refusal,
    render,
)
from tests.testbed.pace import stretch

pytestmark = [pytest.mark.part("helm"), pytest.mark.timeout(300), pytest.mark.xdist_group("chart")]

INSECURE = {"security": {"insecure": True}}
JOB = {"workers": {"kind": "Job"}}
SCALED = {"workers": {"autoscaling": {"enabled": True}}}

REFUSALS = [
    (at("workers.replicas", 3), "Additional property replicas is not allowed"),
    (at("workers.kind", "Pod"), 'workers.kind must be one of the following: "Deployment", "Job", "JobSet"'),
    (at("workers.replicaCount", "four"), "workers.replicaCount: Invalid type. Expected: integer, given: string"),
    (at("coordinator.replicaCount", 0), "coordinator.replicaCount: Must be greater than or equal to 1"),
    (at("coordinator.service.grpcPort", 70_000), "coordinator.service.grpcPort: Must be less than or equal to 65535"),
    (at("storage.backend", "ftp"), 'storage.backend must be one of the following: "local", "s3", "gcs", "azure"'),
    (at("persistence.size", "lots"), "persistence.size: Does not match pattern"),
    (at("identity.aws.roleArn", "strata"), "identity.aws.roleArn: Does not match pattern"),
    (at("podSecurity.runAsUser", 0), "podSecurity.runAsUser: Must be greater than or equal to 1"),
    (at("coordinator.replicaCount", 3), "two coordinators cannot share a SQLite journal"),
    (at("coordinator.journal.backend", "etcd"), "coordinator.journal.etcd.endpoints is empty"),
    (at("storage.backend", "s3"), "storage.s3.bucket is empty"),
    (at("storage.backend", "azure"), "storage.azure.container is empty"),
    (at("persistence.enabled", False), "checkpoints would be lost with each pod"),
    (at("persistence.accessMode", "ReadWriteOnce"), "4 workers write checkpoints: use ReadWriteMany"),
    (at("storage.credentials", {"existingSecret": "a", "values": {"b": "c"}}), "use one of them"),
    (at("security.tls.source", "secret"), "security.tls.secretName is empty"),
    (at("security.tls.secretName", "mine"), "security.tls.source is generated: set it to secret"),
    (merge(SCALED, JOB), "a Job has a fixed number of workers"),
    (merge(SCALED, at("workers.autoscaling.minReplicas", 200)), "minReplicas (200) is above maxReplicas (100)"),
    (merge(SCALED, at("workers.autoscaling.targetCPUUtilizationPercentage", 0)), "without a metric"),
    (SCALED, "needs workers.resources.requests.cpu"),
    ({"storage": None}, "storage is required"),
    (at("nameOverride", "My_App"), "strata-My_App cannot be part of a Service's name"),
    (merge(at("nameOverride", "-x-"), at("fullnameOverride", "x")), "cannot be the value of a label"),
    (at("fullnameOverride", "1st"), "begins with a letter: set fullnameOverride"),
    (
        {"fullnameOverride": "a" * 40, "workers": {"kind": "JobSet", "replicaCount": 100_000}},
        "which has 64 characters; Kubernetes allows 63",
    ),
    (at("coordinator.grace", 11), "coordinator.grace (11 s) is longer than coordinator.lease (10 s)"),
    (at("coordinator.preStopSeconds", 30), "the coordinator would be killed instead of drained"),
    (at("coordinator.service.httpPort", 50051), "coordinator.service has one port twice"),
    (at("workers.podLabels", {"app.kubernetes.io/component": "x"}), "by which the chart finds its pods"),
    (
        at("workers.env", [{"name": "AWS_SECRET_ACCESS_KEY", "value": "planted"}]),
        "workers.env has the secret AWS_SECRET_ACCESS_KEY in plain text",
    ),
    (at("storage.s3.endpoint", "https://id:planted@host"), "storage.s3.endpoint has credentials"),
    (
        at("coordinator.journal", {"backend": "etcd", "etcd": {"endpoints": ["root:planted@a:2379"]}}),
        "endpoints has a user or password",
    ),
    (at("serviceAccount", {"coordinatorName": "a", "workerName": "a"}), "so give them two names"),
    (
        {"serviceAccount": {"create": False}, "identity": {"aws": {"roleArn": "arn:aws:iam::123456789012:role/x"}}},
        "serviceAccount.create is false: annotate yours",
    ),
    (
        merge(SCALED, at("persistence.accessMode", "ReadWriteOnce"), at("workers.replicaCount", 1)),
        "100 workers write checkpoints: use ReadWriteMany",
    ),
    (at("security.tls.certManager.renewBefore", "2160h"), "must be shorter than its duration (2160h)"),
    (at("security.tokens.workerKey", "worker-token"), "the Secret that the chart makes has only admin-token"),
    (at("security.oidc.audience", ""), "security.oidc.audience: String length must be greater than"),
    (
        at("dashboard.ingress", {"enabled": True, "host": "https://strata.example.com/"}),
        "without scheme, port and path",
    ),
]


@pytest.mark.parametrize(("values", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
def test_values_that_cannot_be_are_refused_in_words(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


def decide(policy: dict[str, Any], code: int) -> str:
    """Return what Kubernetes does with a container that ended so: the first rule that matches."""
    for rule in policy["rules"]:
        if code in rule.get("onExitCodes", {}).get("values", []):
            return str(rule["action"])
    return "Count"


def test_a_job_tells_our_exit_codes_apart() -> None:
    job = find(render(STEADY, JOB), "Job")["spec"]
    policy = job["podFailurePolicy"]
    assert policy["rules"][0] == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert {code: decide(policy, code) for code in (PREEMPTED, HUNG, 1, 2, 127, 137)} == {
        PREEMPTED: "Ignore",
        HUNG: "Count",
        1: "Count",
        2: "FailJob",
        127: "FailJob",
        137: "Count",
    }
    assert (job["maxFailedIndexes"], job["podReplacementPolicy"]) == (0, "Failed")
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # a failure policy needs it


def test_exit_codes_are_in_the_order_that_kubernetes_demands() -> None:
    values = {"workers": {"kind": "JobSet", "job": {"fatalExitCodes": [127, 2, 126, 2]}}}
    (replicated,) = find(render(STEADY, values), "JobSet")["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert [2, 126, 127] in [rule.get("onExitCodes", {}).get("values") for rule in job["podFailurePolicy"]["rules"]]
    (container,) = job["template"]["spec"]["containers"]
    assert container["restartPolicyRules"][0]["exitCodes"]["values"] == [87, 143]


def test_a_job_set_restarts_a_preempted_or_hung_worker_in_its_pod() -> None:
    job_set = find(render(STEADY, {"workers": {"kind": "JobSet"}}), "JobSet")
    (container,) = pod_of(job_set)["containers"]
    assert container["restartPolicyRules"] == [
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [HUNG, PREEMPTED]}}
    ]
    assert job_set["spec"]["failurePolicy"]["rules"] == [
        {"name": "fatal", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]


def test_the_kubelet_asks_in_a_way_that_it_can() -> None:
    def probe(*layers: dict[str, Any]) -> dict[str, Any]:
        (container,) = pod_of(find(render(STEADY, *layers), "StatefulSet"))["containers"]
        return container["readinessProbe"]

    assert probe(INSECURE)["grpc"] == {"port": 50051}
    # The kubelet's gRPC probes know no TLS.
    assert probe()["httpGet"] == {"path": "/api/ready", "port": "http", "scheme": "HTTPS"}
    assert probe(at("security.tls.mutual", True))["tcpSocket"] == {"port": "grpc"}


def test_a_coordinator_that_does_not_wait_before_it_drains_has_no_sleep() -> None:
    """Kubernetes refuses a sleep of 0 seconds before 1.34."""
    coordinator = pod_of(find(render(STEADY, at("coordinator.preStopSeconds", 0)), "StatefulSet"))
    assert "lifecycle" not in coordinator["containers"][0]


def test_replicas_announce_their_ipv6_address_in_brackets() -> None:
    coordinator = pod_of(find(render(STEADY, ETCD, at("coordinator.listen", "::")), "Deployment", "strata-coordinator"))
    assert "--advertise-grpc=[$(POD_IP)]:50051" in coordinator["containers"][0]["args"]


@pytest.mark.parametrize("part", ["coordinator", "dashboard"])
def test_a_service_for_clients_outside_of_the_cluster_is_not_closed_by_the_network_policy(part: str) -> None:
    def open_ports(service: str) -> list[Any]:
        policy = find(render(STEADY, at(f"{part}.service.type", service)), "NetworkPolicy", f"strata-{part}")
        return [rule["ports"] for rule in policy["spec"]["ingress"] if "from" not in rule]

    assert open_ports("ClusterIP") == []
    (ports,) = open_ports("LoadBalancer")
    assert {"port": {"coordinator": "grpc", "dashboard": "page"}[part]} in ports


def test_releases_of_one_name_in_two_namespaces_share_no_object_of_the_cluster() -> None:
    def names(namespace: str, release: str) -> set[str]:
        values = json.dumps(merge(STEADY, at("priorityClasses.create", True)))
        done = helm("template", release, str(FOLDER), "--namespace", namespace, "--values", "-", stdin=values)
        objects = [each for each in yaml.safe_load_all(done.stdout) if each]
        found = {each["metadata"]["name"] for each in objects if each["kind"] == "PriorityClass"}
        assert {pod["priorityClassName"] for pod in pods(objects) if "priorityClassName" in pod} == found
        return found

    every = [names("ml", "strata"), names("vision", "strata"), names("ml-strata", "x"), names("ml", "strata-x")]
    assert sum(map(len, every)) == len(set().union(*every)) == 8


def test_a_dashboard_without_a_key_has_no_token() -> None:
    dashboard = pod_of(find(render(STEADY, at("security.tokens.dashboardKey", "")), "Deployment", "strata-dashboard"))
    assert "STRATA_TOKEN_FILE" not in environ(dashboard)
    assert [volume["name"] for volume in dashboard["volumes"]] == ["tmp", "ca"]


def test_a_coordinator_without_tls_says_that_it_is_meant_so() -> None:
    (open_one,) = pod_of(find(render(STEADY, INSECURE), "StatefulSet"))["containers"]
    (safe_one,) = pod_of(find(render(STEADY), "StatefulSet"))["containers"]
    assert "--insecure" in open_one["args"]
    assert "--insecure" not in safe_one["args"]
    assert environ({"containers": [safe_one]}).keys() >= {"STRATA_TLS_CERT", "STRATA_ADMIN_TOKEN_FILE"}


def test_clients_of_replicas_look_for_the_leader_among_all_of_them() -> None:
    objects = render(STEADY, ETCD)
    url = environ(pod_of(find(objects, "Deployment", "strata-worker")))["COORDINATOR_URL"]
    assert url == "stratas://strata-coordinator-replicas.ml-training.svc:50051"
    assert find(objects, "Service", "strata-coordinator-replicas")["spec"]["clusterIP"] == "None"


def test_the_generated_certificate_has_the_names_under_which_clients_come(tmp_path: Path) -> None:
    secret = find(
        render({"security": {"tls": {"extraNames": ["strata.here"], "generatedDays": 3}}}), "Secret", "strata-tls"
    )
    for name in ("ca.crt", "tls.crt"):
        (tmp_path / name).write_bytes(base64.b64decode(secret["data"][name]))
    verify = ["openssl", "verify", "-CAfile", str(tmp_path / "ca.crt")]
    for host in ("strata-coordinator.ml-training.svc", "strata-coordinator-replicas.ml-training.svc", "strata.here"):
        subprocess.run([*verify, "-verify_hostname", host, str(tmp_path / "tls.crt")], check=True, capture_output=True)
    wrong = subprocess.run([*verify, "-verify_hostname", "other", str(tmp_path / "tls.crt")], capture_output=True)
    assert wrong.returncode != 0
    for days, is_valid in ((2, True), (4, False)):
        ends = ["openssl", "x509", "-noout", "-checkend", str(days * 86_400), "-in", str(tmp_path / "tls.crt")]
        assert (subprocess.run(ends, capture_output=True).returncode == 0) is is_valid


@pytest.mark.part("prometheus")
def test_the_rules_in_the_chart_are_valid_and_fire_when_they_should(tmp_path: Path) -> None:
    rule = find(render(STEADY, at("monitoring.rules.enabled", True)), "PrometheusRule")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule["spec"]))
    shutil.copy(ROOT / "deploy/prometheus/rules.test.yml", tmp_path)
    promtool = find_program("promtool")
    assert promtool is not None
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules.test.yml"]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=stretch(60))
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_in_the_chart_is_that_of_grafana() -> None:
    made = find(render(STEADY, at("monitoring.grafanaDashboard.enabled", True)), "ConfigMap", "strata-grafana")
    assert json.loads(made["data"]["strata.json"]) == json.loads((ROOT / "deploy/grafana/strata.json").read_text())


def notes(folder: Path, *layers: dict[str, Any]) -> str:
    """Return NOTES.txt as an installation prints it: Helm renders it only with a cluster, so an object carries it."""
    chart = folder / "chart"
    shutil.copytree(FOLDER, chart)
    text = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "_notes.tpl").write_text('{{- define "notes" -}}\n' + text + "\n{{- end -}}\n")
    (chart / "templates" / "notes.yaml").write_text(
        'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  text: {{ include "notes" . | quote }}\n'
    )
    return str(find(render(STEADY, *layers, folder=chart), "ConfigMap", "notes")["data"]["text"])


def test_the_notes_say_what_to_do_next(tmp_path: Path) -> None:
    text = notes(tmp_path)
    assert "kubectl port-forward -n ml-training svc/strata-dashboard 3000:3000" in text
    assert "kubectl scale deployment strata-worker" in text
    assert "WARNING" not in text


def test_the_notes_warn_of_a_coordinator_that_is_open_to_all(tmp_path: Path) -> None:
    assert "WARNING: security.insecure is on" in notes(tmp_path, INSECURE)


def test_the_notes_warn_of_a_dashboard_that_shows_everyone_what_its_token_may_see(tmp_path: Path) -> None:
    ingress = at("dashboard.ingress.enabled", True)
    assert "WARNING: the dashboard can be reached" in notes(tmp_path / "with", ingress)
    assert "WARNING" not in notes(tmp_path / "without", ingress, at("security.tokens.dashboardKey", ""))


def test_the_notes_do_not_send_a_tunnel_to_a_replica_that_may_not_lead(tmp_path: Path) -> None:
    text = notes(tmp_path, ETCD)
    assert "kubectl exec -n ml-training deploy/strata-coordinator" in text
    assert "svc/strata-coordinator 50051" not in text


def test_the_notes_give_an_administrator_the_certificate_of_clients(tmp_path: Path) -> None:
    mutual = at("security.tls.mutual", True)
    alone, replicated = notes(tmp_path / "alone", mutual), notes(tmp_path / "replicated", mutual, ETCD)
    assert "kubectl get secret -n ml-training strata-tls-client -o jsonpath='{.data.tls\\.key}'" in alone
    assert "STRATA_TLS_CERT=tls.crt STRATA_TLS_KEY=tls.key" in alone
    assert "STRATA_TLS_CERT=/etc/strata/client/tls.crt STRATA_TLS_KEY=/etc/strata/client/tls.key" in replicated
    assert "STRATA_TLS_CERT" not in notes(tmp_path / "neither")


@pytest.mark.parametrize("values", [{}, ETCD, INSECURE, at("security.tokens.workers", "projected")], ids=str)
def test_strata_knows_every_option_and_variable_that_its_pods_are_given(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = typer.main.get_command(app).commands
    started = set()
    for each in render(STEADY, values, at("security.tls.mutual", not values)):
        if each["kind"] not in ("StatefulSet", "Deployment", "Pod"):
            continue
        (container,) = pod_of(each)["containers"]
        variables = environ({"containers": [container]})
        assert {name for name in variables if name.startswith("STRATA_")} <= {
            name.upper() for name in Settings.model_fields
        }
        for name in ("STRATA_OIDC_RULES", "STRATA_OIDC_ISSUER", "STRATA_OIDC_AUDIENCE", "COORDINATOR_URL"):
            if name in variables:
                monkeypatch.setenv(name, variables[name])
        load_settings()
        if "command" in container:
            program, name, *options = [*container["command"], *container.get("args", [])]
            known = {option for parameter in commands[name].params for option in parameter.opts}
            assert program == "strata"
            started.add(name)
            assert {option.partition("=")[0] for option in options} <= known
    assert {"coordinator", "dashboard"} <= started
