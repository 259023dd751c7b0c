"""The run of docker-compose.prod.yml: three coordinators on three etcd nodes, TLS, tokens, and checkpoints in S3."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any

from strata.wire._generated.journal_pb2 import Head
from tests.testbed.containers.server_images import build_servers
from tests.testbed.containers.stack import EPOCHS, Stack
from tests.testbed.process import free_ports
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.testbed.containers.engine import Engine

REPLICAS = ("coordinator-1", "coordinator-2", "coordinator-3")
NODES = ("etcd-1", "etcd-2", "etcd-3")


class Production(Stack):
    """One run with its secrets in a folder of the test."""

    file = "docker-compose.prod.yml"
    called = "strata-prod"
    training_volume = "data"
    profiles = ("local-s3",)

    def __init__(self, engine: Engine, *, tag: str, epochs: int, secrets: Path) -> None:
        super().__init__(engine, tag=tag, epochs=epochs)
        self.secrets = secrets
        (self.prometheus_port,) = free_ports(1)
        self.environment |= build_servers(engine)
        self.environment |= {"SECRETS": str(secrets), "PROMETHEUS_ADDRESS": f"127.0.0.1:{self.prometheus_port}"}

    def make_secrets(self, *, tag: str | None = None) -> None:
        """Make the secrets as docs/containers.md says, with the image that is there."""
        words = ("--file=docker-compose.secrets.yml", "run", "--rm", "-T", "secrets")
        environment = self.environment | ({"STRATA_TAG": tag} if tag else {})
        self.engine.run("podman-compose", *words, environment=environment)

    def admin(self, *words: str) -> str:
        """Run a command of Strata as the administrator, and return what it printed."""
        return self.compose("--profile=admin", "run", "--rm", "-T", "admin", *words)

    def sign_in(self) -> None:
        """Look at the run with a viewer's token from now on, as someone at the dashboard does."""
        self.token = self.admin("token", "create", "--role=viewer", "--name=test").split()[-1]

    def ask_replica(self, service: str, path: str) -> dict[str, Any]:
        """Return what one coordinator says of itself; empty while it does not answer."""
        program = (
            "import ssl, sys, urllib.request as u\n"
            "context = ssl._create_unverified_context()\n"
            f"print(u.urlopen('https://127.0.0.1:8080{path}', timeout=10, context=context).read().decode())"
        )
        done = self.engine.attempt("podman", "exec", self.container(service), "python3", "-c", program)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def wait_ready(self, service: str) -> None:
        """Wait until a coordinator leads, or could."""
        wait_until(
            lambda: bool(self.ask_replica(service, "/api/ready")), self._say_waited(f"{service} is ready"), timeout_s=90
        )

    def journal_format(self) -> int:
        """Return the version of the journal's format, as the leader wrote it when its term began."""
        asked = ("etcdctl", "get", "strata/meta/head", "--write-out=json")
        (found,) = json.loads(self.engine.podman("exec", self.container(NODES[0]), *asked))["kvs"]
        return Head.FromString(base64.b64decode(found["value"])).version

    def leader(self) -> str:
        """Return which coordinator leads, as soon as one does."""
        found: list[str] = []

        def leads() -> bool:
            found[:] = [each for each in REPLICAS if self.ask_replica(each, "/api/ready").get("role") == "leader"]
            return len(found) == 1

        wait_until(leads, self._say_waited("one leader"), timeout_s=90)
        return found[0]


@contextlib.contextmanager
def production_of(engine: Engine, folder: Path, *, tag: str = "local", epochs: int = EPOCHS) -> Iterator[Production]:
    """A run whose containers, networks and volumes are gone when the block ends."""
    stack = Production(engine, tag=tag, epochs=epochs, secrets=folder / "secrets")
    try:
        yield stack
    finally:
        engine.remove_containers()
