"""Write the files that follow from the source, or with ``--check`` say which of them are stale.

docs/configuration.md        every setting, from strata.config
docs/architecture.md         its picture of the rooms, from the docstrings of src/strata
.env.example                 the same, for Docker Compose
docs/errors.md               every error, from strata.errors
docs/security.md             its table of roles, from strata.coordinator.entry.roles
dashboard/openapi.json       the HTTP API, from strata.coordinator.http
src/strata/wire/_generated   messages and stubs, from proto/
deploy/charts/strata         its version, alert rules and Grafana dashboard, from where each has its source
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

from scripts import rooms
from scripts.chart import chart_files
from scripts.error_tree import errors_page
from scripts.role_table import security_page
from strata.config import Settings, expected_of
from strata.coordinator.http.http_api import describe_api

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "src/strata/wire/_generated"
PROTOS = ("v1/coordinator.proto", "etcd/v3/etcd.proto", "journal/v1/journal.proto")
EMPTY_STUBS = ("etcd_pb2_grpc.py", "journal_pb2_grpc.py")

COMPOSE = {
    "STRATA_TAG": ("local", "The tag of the images that are built and run."),
    "STRATA_USER": ("10001:0", "The user and group of every Strata container; any user id works, with group 0."),
    "DASHBOARD_ADDRESS": ("127.0.0.1:3000", "The address of this machine on which the dashboard listens."),
    "DASHBOARD_SOURCE": ("build", "build: build the dashboard with npm; prebuilt: use the output of `make dashboard`."),
    "DEMO_EPOCHS": ("40", "How many epochs the demonstration trains."),
    "DEMO_PACE_S": ("0.1", "Seconds added to each of its steps, so that you can watch it."),
    "PYTHON_IMAGE": ("docker.io/library/python:3.11-slim-bookworm", "The base of both images."),
    "NODE_IMAGE": ("docker.io/library/node:20-bookworm-slim", "The image in which the dashboard is built."),
    "ETCD_IMAGE": ("gcr.io/etcd-development/etcd:v3.5.21", "etcd, which keeps the journal."),
    "PROMETHEUS_IMAGE": ("docker.io/prom/prometheus:v3.5.0", "Prometheus."),
    "S3_IMAGE": ("docker.io/chrislusf/seaweedfs:4.48", "The S3 server of the profile local-s3."),
    "PROMETHEUS_ADDRESS": ("127.0.0.1:9090", "The address of this machine on which Prometheus listens."),
    "SECRETS": ("./secrets", "The folder with certificates and tokens."),
}

CONFIGURATION = """\
# Configuration

Strata takes each setting from the first of these sources that has it:

1. an argument (of a function, or an option of a command),
2. the environment,
3. `strata.toml` in the working directory, or the file that `STRATA_CONFIG` names,
4. the default.

An empty environment variable counts as not set. `strata config` prints every setting with its value
and its source. An invalid value stops the program with an error that names it:

<!-- test: exit=1 -->
```console
$ RANK=two strata config
strata: error: RANK='two' (environment): expected a whole number from 0 to WORLD_SIZE - 1
```

| environment | in `strata.toml` | default | meaning | allowed values |
|---|---|---|---|---|
{rows}

Traces are configured by OpenTelemetry's own variables (`OTEL_*`), which are environment variables only: see
[traces](observability.md#traces).

An example of `strata.toml`:

```toml
job_id = "llm-7b"
coordinator_url = "http://coordinator:50051"
storage_backend = "s3"
checkpoint_bucket = "my-training-checkpoints"
aws_region = "us-east-1"
```

Keep secrets out of the file: use a profile or a role for AWS credentials. Strata never prints secrets.
"""


def configuration() -> str:
    """Return docs/configuration.md."""
    rows = (
        f"| `{name.upper()}` | `{name}` | {_default(name)} | {field.description} | {expected_of(name)} |"
        for name, field in Settings.model_fields.items()
    )
    return CONFIGURATION.format(rows="\n".join(rows))


def env_example() -> str:
    """Return .env.example."""
    lines = ["# Copy to .env and set what you need; an empty or commented line keeps the default.", ""]
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else field.default
        lines += [f"# {field.description} Expected: {expected_of(name)}.", f"#{name.upper()}={default}", ""]
    lines += ["# Only docker-compose.yml and docker-compose.prod.yml read the rest.", ""]
    for name, (default, what) in COMPOSE.items():
        lines += [f"# {what}", f"#{name}={default}", ""]
    return "\n".join(lines).rstrip() + "\n"


def architecture() -> str:
    """Return docs/architecture.md as it is, with a new picture of the rooms."""
    return rooms.replace((ROOT / "docs/architecture.md").read_text(encoding="utf-8"), rooms.draw(ROOT))


def openapi() -> str:
    """Return the description of the HTTP API, from which the dashboard makes its types."""
    return json.dumps(describe_api(), indent=1, sort_keys=True) + "\n"


def messages() -> dict[str, str]:
    """Return the code of the messages in proto/, by path."""
    with tempfile.TemporaryDirectory() as folder:
        # Under this name the generated modules find each other where they will lie.
        package = GENERATED.removeprefix("src/")
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        for source in PROTOS:
            path = ROOT / "proto" / "strata" / source
            if protoc.main(["protoc", *outputs, f"-I{package}={path.parent}", f"{package}/{path.name}"]) != 0:
                sys.exit("protoc failed; see above")
        # A contract without a service has no stubs.
        made = [each for each in sorted(Path(folder).rglob("*_pb2*")) if each.name not in EMPTY_STUBS]
        return {f"{GENERATED}/{path.name}": path.read_text(encoding="utf-8") for path in made}


def _default(name: str) -> str:
    value = Settings.model_fields[name].default
    return "not set" if value is None else f"`{value}`"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    check = parser.parse_args().check
    stale = []
    files = {
        "docs/configuration.md": configuration(),
        "docs/architecture.md": architecture(),
        "docs/errors.md": errors_page(),
        "docs/security.md": security_page((ROOT / "docs/security.md").read_text(encoding="utf-8")),
        ".env.example": env_example(),
        "dashboard/openapi.json": openapi(),
        **messages(),
        **chart_files(ROOT),
    }
    for name, text in files.items():
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if check and stale:
        sys.exit(f"stale: {', '.join(stale)}; run 'make generate'")


if __name__ == "__main__":
    main()
