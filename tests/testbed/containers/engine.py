"""A container engine of a test's own: images, containers, networks and volumes in a temporary folder, all removed.

Podman needs no daemon, so its whole state is that folder. Containers do not end with the process that started them.
So a janitor stands by: it waits for the end of its input, which comes also when the test run is killed, and then
removes everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts import image_parts
from scripts.parts import find_program
from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[3]
PYTHON_IMAGE = "docker.io/library/python:3.11-slim-bookworm"
COMMAND_S = 120.0
BUILD_S = 600.0
REMOVAL_S = 120.0
# No container depends on one that depends on more than one other.
REMOVALS = 4
# There is no systemd in a test machine, and cgroups are of either version.
_CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
default_subnet_pools = [{{base = "10.{number}.0.0/16", size = 24}}]
"""
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


class Engine:
    """Podman, buildah and podman-compose on the state in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # What serves names and addresses to containers is one for all engines of a machine, and goes by the names of
        # networks: two test runs at a time need names of their own, and addresses that nobody else takes.
        self.name = folder.name.rpartition("-")[2].strip("_")
        number = 100 + zlib.crc32(self.name.encode()) % 100
        (folder / "containers.conf").write_text(_CONFIGURATION.format(folder=folder, number=number))
        (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
        (folder / "tmp").mkdir(exist_ok=True)
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "DISABLE_HC_SYSTEMD": "true",
            "TMPDIR": str(folder / "tmp"),
        }

    def podman(self, *words: str, timeout_s: float = COMMAND_S) -> str:
        """Run a command of podman and return what it printed; a failure says all of it."""
        return self.run("podman", *words, timeout_s=timeout_s)

    def run(
        self, program: str, *words: str, environment: Mapping[str, str] | None = None, timeout_s: float = COMMAND_S
    ) -> str:
        """Run a program on this engine's state."""
        done = self.attempt(program, *words, environment=environment, timeout_s=timeout_s)
        said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert done.returncode == 0, f"{program} {' '.join(words)} ended with {done.returncode}:\n{said}"
        return done.stdout

    def attempt(
        self, program: str, *words: str, environment: Mapping[str, str] | None = None, timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a program that may fail."""
        found = find_program(program)
        assert found is not None, program
        return subprocess.run(
            [found, *words],
            cwd=ROOT,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=stretch(timeout_s),
            check=False,
        )

    def inspect(self, name: str, *, kind: str = "container") -> dict[str, Any]:
        """Return what podman knows of a container or an image."""
        (found,) = json.loads(self.podman("inspect", "--type", kind, name))
        assert isinstance(found, dict)
        return found

    def remove_containers(self) -> None:
        """Remove all containers, networks and volumes; the images stay."""
        # Podman does not sort them: a container that others depend on is removed when those are gone.
        for _ in range(REMOVALS):
            if self.attempt("podman", "rm", "--all", "--force", "--time=0", "--volumes").returncode == 0:
                break
        assert self.podman("ps", "--all", "--quiet") == "", "containers are left"
        self.podman("network", "prune", "--force")
        self.podman("volume", "prune", "--force")

    def import_base(self) -> None:
        """Bring the base under the name that the Dockerfiles have in FROM: no registry is asked."""
        self.podman("import", "--quiet", str(image_parts.BASE), PYTHON_IMAGE)

    def build(self, name: str, dockerfile: str, *options: str, context: Path = ROOT) -> None:
        """Build an image without a network, from the clone, the base and the locked wheels."""
        arguments = {"DASHBOARD": "prebuilt", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        # One layer a stage: a commit for each line would take most of the time, and nothing is built twice here.
        self.run(
            "buildah", "build", "--pull-never", "--network=none", "--format=docker", "--layers=false",
            *(f"--build-arg={key}={value}" for key, value in arguments.items()),
            f"--volume={image_parts.WHEELS}:/wheels:ro", f"--file={context / dockerfile}", f"--tag={name}",
            *options, str(context),
            timeout_s=BUILD_S,
        )  # fmt: skip


@contextlib.contextmanager
def container_engine() -> Iterator[Engine]:
    """An engine until the block ends; then nothing of it is left, also when this process is killed."""
    # Not under pytest's folder: the names of sockets in it must stay short.
    folder = Path(tempfile.mkdtemp(prefix="strata-c-", dir="/var/tmp"))
    command = [sys.executable, "-m", "tests.testbed.containers.engine", str(folder)]
    janitor = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield Engine(folder)
    finally:
        assert janitor.stdin is not None
        janitor.stdin.close()
        assert janitor.wait(stretch(REMOVAL_S)) == 0, f"{folder} could not be removed"


def _remove(folder: Path) -> None:
    engine = Engine(folder)
    engine.remove_containers()
    engine.run("buildah", "rm", "--all")
    engine.podman("rmi", "--all", "--force")
    # Podman mounts its own storage on itself.
    engine.attempt("umount", str(folder / "storage" / "overlay"))
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.stdin.read()
    _remove(Path(sys.argv[1]))
