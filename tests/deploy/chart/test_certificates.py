"""Who has which key: the coordinator's stays with the coordinator, and clients have a certificate of their own."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from strata.client.unary import ask
from strata.coordinator.entry.server_tls import TlsConfig
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.errors import UntrustedCoordinatorError
from strata.wire._generated import coordinator_pb2 as pb
from tests.deploy.chart.rendering import ETCD, STEADY, at, environ, find, pod_of, refusal, render
from tests.testbed.pace import stretch

pytestmark = [pytest.mark.part("helm"), pytest.mark.timeout(300), pytest.mark.xdist_group("chart")]

MUTUAL = at("security.tls.mutual", True)
BROUGHT = {"security": {"tls": {"source": "secret", "secretName": "pair", "clientSecretName": "client-pair"}}}
GENERATED = {"security": {"tls": {"source": "generated"}}}
MONITORED = at("monitoring.serviceMonitor.enabled", True)


def secret_keys(pod: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the name and key of each part of a Secret that a pod mounts; "*" for all keys of one."""
    found = set()
    for volume in pod["volumes"]:
        projected = [each["secret"] for each in volume.get("projected", {}).get("sources", []) if "secret" in each]
        for secret in [*([volume["secret"]] if "secret" in volume else []), *projected]:
            name = secret.get("secretName", secret.get("name"))
            found |= {(name, item["key"]) for item in secret.get("items", [{"key": "*"}])}
    return found


@pytest.mark.parametrize("source", [{}, GENERATED, BROUGHT], ids=["certManager", "generated", "secret"])
@pytest.mark.parametrize("kind", ["Deployment", "Job", "JobSet"])
def test_only_the_coordinator_has_the_coordinators_key(source: dict[str, Any], kind: str) -> None:
    objects = render(STEADY, MUTUAL, MONITORED, source, at("workers.kind", kind))
    server = "pair" if source is BROUGHT else "strata-tls"
    client = "client-pair" if source is BROUGHT else "strata-tls-client"
    pods = {
        "worker": pod_of(find(objects, kind, None if kind != "Deployment" else "strata-worker")),
        "dashboard": pod_of(find(objects, "Deployment", "strata-dashboard")),
        "test": pod_of(find(objects, "Pod")),
    }
    for name, pod in pods.items():
        keys = secret_keys(pod)
        assert {key for secret, key in keys if secret == server} == {"ca.crt"}, name
        assert {key for secret, key in keys if secret == client} == {"tls.crt", "tls.key"}, name
        variables = environ(pod)
        assert variables["STRATA_TLS_CERT"] == "/etc/strata/ca/tls.crt"
        assert variables["STRATA_TLS_KEY"] == "/etc/strata/ca/tls.key"
    (endpoint,) = find(objects, "ServiceMonitor")["spec"]["endpoints"]
    tls = endpoint["tlsConfig"]
    assert tls["keySecret"] == {"name": client, "key": "tls.key"}
    assert tls["cert"]["secret"] == {"name": client, "key": "tls.crt"}
    assert tls["ca"]["secret"] == {"name": server, "key": "ca.crt"}


@pytest.mark.parametrize("source", [{}, GENERATED, BROUGHT], ids=["certManager", "generated", "secret"])
def test_the_coordinator_trusts_the_authority_of_the_clients_certificate(source: dict[str, Any]) -> None:
    coordinator = pod_of(find(render(STEADY, MUTUAL, source), "StatefulSet"))
    client = "client-pair" if source is BROUGHT else "strata-tls-client"
    (volume,) = [each for each in coordinator["volumes"] if each.get("secret", {}).get("secretName") == client]
    (mount,) = [each for each in coordinator["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert environ(coordinator)["STRATA_TLS_CLIENT_CA"] == f"{mount['mountPath']}/ca.crt"


def test_cert_manager_makes_a_certificate_for_each_end() -> None:
    objects = render(STEADY, MUTUAL)
    server, client = (find(objects, "Certificate", f"strata-tls{end}")["spec"] for end in ("", "-client"))
    assert "server auth" in server["usages"] and "client auth" not in server["usages"]
    assert "client auth" in client["usages"] and "server auth" not in client["usages"]
    assert client["secretName"] == "strata-tls-client"
    assert client["issuerRef"] == server["issuerRef"]
    # A certificate without a name of the coordinator cannot stand in for it.
    assert "dnsNames" not in client and "ipAddresses" not in client


def test_without_mutual_tls_there_is_no_clients_certificate() -> None:
    for source in ({}, GENERATED):
        objects = render(STEADY, source)
        assert "strata-tls-client" not in json.dumps(objects)


def write_generated(folder: Path) -> tuple[Path, Path]:
    """Write what the chart generates for mutual TLS; return the folders of the coordinator's files and the clients'."""
    objects = render(STEADY, MUTUAL, GENERATED)
    folders = folder / "strata-tls", folder / "strata-tls-client"
    for each in folders:
        each.mkdir()
        for name, text in find(objects, "Secret", each.name)["data"].items():
            (each / name).write_bytes(base64.b64decode(text))
    return folders


def test_a_generated_certificate_is_of_no_use_at_the_other_end(tmp_path: Path) -> None:
    server, client = write_generated(tmp_path)

    def verifies(ca: Path, cert: Path, purpose: str) -> bool:
        command = ["openssl", "verify", "-CAfile", str(ca), "-purpose", purpose, str(cert)]
        return subprocess.run(command, capture_output=True).returncode == 0

    assert verifies(client / "ca.crt", client / "tls.crt", "sslclient")
    assert verifies(server / "ca.crt", server / "tls.crt", "sslserver")
    # Clients trust one authority and the coordinator trusts the other.
    assert not verifies(server / "ca.crt", client / "tls.crt", "sslserver")
    assert not verifies(client / "ca.crt", server / "tls.crt", "sslclient")
    assert (server / "tls.key").read_bytes() != (client / "tls.key").read_bytes()


async def test_a_coordinator_with_generated_certificates_lets_in_who_has_that_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = write_generated(tmp_path)
    tls = TlsConfig(cert=server / "tls.crt", key=server / "tls.key", client_ca=client / "ca.crt")
    config = CoordinatorConfig(grpc_address="127.0.0.1:0", channel_address="127.0.0.1:0", tls=tls)
    monkeypatch.setenv("STRATA_TLS_CA", str(server / "ca.crt"))
    async with Coordinator(config) as coordinator:
        url = f"stratas://127.0.0.1:{coordinator.grpc_port}"

        def describe(pair: Path) -> Any:
            monkeypatch.setenv("STRATA_TLS_CERT", str(pair / "tls.crt"))
            monkeypatch.setenv("STRATA_TLS_KEY", str(pair / "tls.key"))
            return ask(url, lambda stub: stub.Describe(pb.Describe(), timeout=stretch(5)))

        assert (await asyncio.to_thread(describe, client)).protocol
        with pytest.raises(UntrustedCoordinatorError, match="STRATA_TLS_CERT and STRATA_TLS_KEY"):
            await asyncio.to_thread(describe, server)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"security": {"tls": {"source": "secret", "secretName": "pair", "mutual": True}}},
            "security.tls.clientSecretName is empty: name the Secret with tls.crt, tls.key and ca.crt of the clients",
        ),
        (
            {"security": {"tls": {"source": "secret", "mutual": True, "secretName": "a", "clientSecretName": "a"}}},
            "clients would have the coordinator's key: name two Secrets",
        ),
        (at("security.tls.clientSecretName", "mine"), "security.tls.source is generated: set it to secret"),
    ],
    ids=["no secret", "one secret", "another source"],
)
def test_a_client_secret_that_cannot_be_is_refused_in_words(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


@pytest.mark.parametrize("journal", [{}, ETCD], ids=["sqlite", "etcd"])
def test_the_certificate_has_every_name_by_which_a_client_is_told_to_come(journal: dict[str, Any]) -> None:
    """The numbers of pods need not be on it: a client trusts a replica that is a number by the name of its URL."""
    objects = render(STEADY, MONITORED, journal)
    kind = "Deployment" if journal else "StatefulSet"
    coordinator = pod_of(find(objects, kind, "strata-coordinator"))["containers"][0]
    dashboard = pod_of(find(objects, "Deployment", "strata-dashboard"))["containers"][0]
    told = [environ(pod_of(find(objects, "Deployment", "strata-worker")))["COORDINATOR_URL"].partition("://")[2]]
    told += [each.partition("://")[2] for each in dashboard["args"] if each.startswith("--coordinator=")]
    told += [each.partition("=")[2] for each in coordinator["args"] if each.startswith("--advertise-")]
    hosts = {each.rpartition(":")[0] for each in told} - {"$(POD_IP)"}
    (endpoint,) = find(objects, "ServiceMonitor")["spec"]["endpoints"]
    hosts.add(endpoint["tlsConfig"]["serverName"])
    assert len(hosts) >= 1
    assert hosts <= set(find(objects, "Certificate", "strata-tls")["spec"]["dnsNames"])


def test_replicas_keep_their_key_too() -> None:
    objects = render(STEADY, MUTUAL, ETCD)
    worker = pod_of(find(objects, "Deployment", "strata-worker"))
    assert {key for secret, key in secret_keys(worker) if secret == "strata-tls"} == {"ca.crt"}
