"""The Dockerfiles and Compose files as files: valid, alike where they must be, and without a secret."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.parts import find_program

pytestmark = pytest.mark.part("manifests")
ROOT = Path(__file__).parents[2]
DOCKERFILES = ["Dockerfile", "Dockerfile.worker"]
COMPOSE_FILES = ["docker-compose.yml", "docker-compose.prod.yml"]
SECRETS_FILE = "docker-compose.secrets.yml"
# Whoever runs the tests may give files to nobody but itself.
MAKER = {**os.environ, "STRATA_USER": f"{os.getuid()}:{os.getgid()}"}
STRATA_SERVICE = re.compile(r"^strata-(coordinator|worker):")


def load(name: str) -> dict[str, Any]:
    # Through YAML's own merging of anchors; variables stay as they are written.
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_has_nothing_to_say(name: str) -> None:
    program = find_program("hadolint")
    assert program is not None
    done = subprocess.run([program, "--no-color", str(ROOT / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", [*COMPOSE_FILES, SECRETS_FILE])
def test_a_compose_file_follows_the_specification(name: str) -> None:
    from compose_spec import PyCompose

    # The schema knows no variables: each stands for its default. Anchors are merged by YAML.
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / name).read_text())
    described = yaml.safe_load(text)
    assert PyCompose.from_yaml(yaml.safe_dump(described)).to_spec().services
    next(iter(described["services"].values()))["healthcheck"] = {"test": {"planted": "mistake"}}
    with pytest.raises(ValueError, match="healthcheck"):
        PyCompose.from_yaml(yaml.safe_dump(described))


def test_both_dockerfiles_build_the_wheel_with_the_same_lines() -> None:
    one, other = ((ROOT / name).read_text() for name in DOCKERFILES)
    shared = re.compile(r"^ARG PYTHON_IMAGE.*?(?=^FROM \S+ AS packages)", re.DOTALL | re.MULTILINE)
    found = shared.search(one), shared.search(other)
    assert found[0] is not None
    assert found[1] is not None
    assert "hatchling build" in found[0][0]
    assert found[0][0] == found[1][0]


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_every_strata_container_is_hardened_and_has_time_to_drain(name: str) -> None:
    services = {key: each for key, each in load(name)["services"].items() if STRATA_SERVICE.match(each["image"])}
    assert {"dashboard", "worker", "prove"} <= services.keys()
    # Only the maker of tokens reads what belongs to another user.
    assert {key for key, service in services.items() if service.get("cap_add")} <= {"tokens"}
    for key, service in services.items():
        assert service["read_only"] is True, key
        assert service["cap_drop"] == ["ALL"], key
        assert service["security_opt"] == ["no-new-privileges:true"], key
        assert not service.get("privileged"), key
    worker = services["worker"]
    (grace,) = (word.removeprefix("--grace=") for word in worker["command"] if word.startswith("--grace="))
    assert int(worker["stop_grace_period"].removesuffix("s")) > int(grace)


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_ports_are_open_to_this_machine_only(name: str) -> None:
    ports = [port for service in load(name)["services"].values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not re.match(r"\$\{\w+:-127\.0\.0\.1:\d+\}:\d+$", port)] == []


def test_no_worker_gets_the_token_of_an_administrator_and_every_secret_is_made(tmp_path: Path) -> None:
    described = load("docker-compose.prod.yml")
    holders = {key for key, service in described["services"].items() if "admin_token" in service.get("secrets", [])}
    assert holders == {"coordinator-1", "coordinator-2", "coordinator-3", "tokens", "admin"}
    wanted = {Path(each["file"].partition("}/")[2]) for each in described["secrets"].values()}
    subprocess.run([sys.executable, ROOT / "deploy/images/make_secrets.py", tmp_path], check=True, env=MAKER)
    assert {path for path in wanted if not (tmp_path / path).is_file()} == set()
    kept = {path: (tmp_path / path).read_bytes() for path in ("admin-token", "storage.toml", "s3.json", "ca.pem")}
    subprocess.run([sys.executable, ROOT / "deploy/images/make_secrets.py", tmp_path], check=True, env=MAKER)
    assert {path: (tmp_path / path).read_bytes() for path in kept} == kept
    # Each coordinator and each node of etcd is called by a name that its certificate has.
    for file, names in (("server.pem", "coordinator"), ("etcd/server.pem", "etcd")):
        found = ssl._ssl._test_decode_cert(str(tmp_path / file))
        hosts = {value for _, value in found["subjectAltName"]}
        assert {key for key in described["services"] if key.startswith(f"{names}-")} <= hosts


@pytest.mark.parametrize("name", [*COMPOSE_FILES, SECRETS_FILE])
def test_every_variable_of_a_compose_file_is_in_the_example_of_the_environment(name: str) -> None:
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", (ROOT / name).read_text()))
    assert used
    example = dict(re.findall(r"^#?(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert used.keys() - example.keys() == set()
    own = {key for key in used if key in ("STRATA_TAG", "STRATA_USER", "PYTHON_IMAGE", "DASHBOARD_ADDRESS")}
    assert {key: used[key] for key in own} == {key: example[key] for key in own}


def test_images_have_versions() -> None:
    text = "\n".join((ROOT / name).read_text() for name in (*DOCKERFILES, *COMPOSE_FILES))
    images = re.findall(r"(?:docker\.io|gcr\.io|quay\.io)/[\w./-]+(?::[\w.-]+)?", text)
    assert images
    assert [image for image in images if ":" not in image or image.endswith(":latest")] == []


def test_no_file_for_containers_holds_a_secret() -> None:
    secret = re.compile(
        r"BEGIN [A-Z ]*PRIVATE KEY|AKIA[0-9A-Z]{16}|(?:secret|password|token)[\w-]*\s*[:=]\s*[\"']?[A-Za-z0-9+_-]{16,}",
        re.IGNORECASE,
    )
    assert secret.search('SECRET_KEY: "0123456789abcdef0123"')
    files = [*DOCKERFILES, *COMPOSE_FILES, SECRETS_FILE, ".env.example", ".dockerignore"]
    files += [str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    found = {name: secret.findall((ROOT / name).read_text()) for name in files if "charts/" not in name}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_secrets_beside_the_sources_reach_neither_git_nor_an_image() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {".env", "/secrets/"} <= set(ignored)
    # The list of what a build may see begins with nothing.
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    assert not any(word in line for line in lines[1:] for word in ("!.env", "!secrets", "!.git"))


def test_the_coordinator_is_locked_without_what_only_training_needs_and_the_worker_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.match(r"[\w-]+", each)[0].lower() for each in project["dependencies"]}
    locks = {
        name: set(re.findall(r"^([\w-]+)==", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))
        for name in ("coordinator", "worker")
    }
    assert locks["coordinator"] >= core
    assert locks["worker"] - locks["coordinator"] == {"google-crc32c", "obstore", "pyarrow"}
