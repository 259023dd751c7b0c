"""docker-compose.prod.yml as a newcomer starts it: secrets, all containers, training on S3, losses, and the proofs."""

from __future__ import annotations

import json
import stat
import urllib.request
from pathlib import Path

import pytest

from tests.testbed.containers.engine import Engine
from tests.testbed.containers.production import NODES, REPLICAS, Production, production_of
from tests.testbed.containers.stack import RANDOM_USER
from tests.testbed.waiting import wait_until

pytestmark = [
    pytest.mark.part("containers"),
    pytest.mark.part("etcd"),
    pytest.mark.part("prometheus"),
    pytest.mark.part("s3"),
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("containers"),
]


def test_a_run_on_replicas_and_s3_outlives_the_leader_and_a_node_of_etcd(engine: Engine, tmp_path: Path) -> None:
    with production_of(engine, tmp_path) as stack:
        stack.make_secrets()
        check_owners(stack.secrets)
        stack.up(workers=4)
        stack.sign_in()
        stack.wait_trains(workers=4)
        check_tokens(stack)
        check_etcd_is_closed(stack)
        wait_until(lambda: scraped(stack) == set(REPLICAS), lambda: f"{scraped(stack)}", timeout_s=90)

        first = stack.leader()
        stack.kill(first)
        stack.wait_trains(workers=4)
        assert stack.leader() != first
        stack.kill(NODES[1])
        stack.wait_trains(workers=4)
        stack.wait_ready(first)

        stack.wait_finished()
        assert "to the bit" in stack.prove()
        stack.take_down()


def check_owners(secrets: Path) -> None:
    """Each file with a secret belongs to the one user that reads it, and only certificates are for everyone."""
    user_id = int(RANDOM_USER.partition(":")[0])
    modes = {str(path.relative_to(secrets)): path.stat() for path in secrets.rglob("*") if path.is_file()}
    private = {name: found.st_uid for name, found in modes.items() if stat.S_IMODE(found.st_mode) == 0o600}
    assert private == {
        **dict.fromkeys(("admin-token", "server-key.pem", "storage.toml", "etcd/client-key.pem"), user_id),
        **dict.fromkeys(("ca-key.pem", "s3.json", "etcd/ca-key.pem", "etcd/server-key.pem"), 0),
        "client-key.pem": 0,
    }
    assert all(name.endswith(".pem") and "key" not in name for name in modes.keys() - private.keys())


def check_tokens(stack: Production) -> None:
    """Workers have a token with their role, Prometheus one of a viewer, and neither container the administrator's."""
    tokens = json.loads(stack.admin("token", "ls", "--json"))
    assert {"compose-worker": "worker", "compose-viewer": "viewer"}.items() <= {
        token["name"]: token["role"] for token in tokens
    }.items()
    listed = stack.engine.podman("exec", stack.container("worker"), "ls", "/run/secrets").split()
    assert sorted(listed) == ["ca_cert", "storage"]


def check_etcd_is_closed(stack: Production) -> None:
    """No node of etcd talks to who has no certificate of its authority, and its network is no worker's."""
    bare = ["--env=ETCDCTL_CERT=", "--env=ETCDCTL_KEY="]
    health = [stack.container(NODES[0]), "etcdctl", "endpoint", "health"]
    stack.engine.podman("exec", *health)
    assert stack.engine.attempt("podman", "exec", *bare, *health).returncode != 0
    program = f"import socket; socket.create_connection(({NODES[0]!r}, 2379), timeout=5)"
    done = stack.engine.attempt("podman", "exec", stack.container("worker"), "python3", "-c", program)
    assert done.returncode != 0


def scraped(stack: Production) -> set[str]:
    """Return the coordinators whose metrics Prometheus gets, with TLS and the token."""
    try:
        url = f"http://127.0.0.1:{stack.prometheus_port}/api/v1/query?query=up%7Bjob%3D%22strata%22%7D"
        with urllib.request.urlopen(url, timeout=30) as reply:
            found = json.loads(reply.read())["data"]["result"]
    except OSError:
        return set()
    return {each["metric"]["instance"].partition(":")[0] for each in found if each["value"][1] == "1"}
