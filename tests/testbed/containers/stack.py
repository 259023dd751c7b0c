"""A training run of a Compose file in containers: watched through the dashboard's port, and disturbed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.demo.worker import SLOW, SLOW_S
from tests.testbed.containers.engine import Engine
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS = 6
# No user of the image or of this machine.
RANDOM_USER = "48217:0"
WAIT_S = 90.0
# As long as the longest stop_grace_period.
STOP_S = 90


class Stack:
    """One run: its containers by name, and what the coordinator says of the job."""

    file = "docker-compose.yml"
    called = "strata"
    training_volume = "training"
    profiles: tuple[str, ...] = ()
    token = ""

    def __init__(self, engine: Engine, *, tag: str, epochs: int = EPOCHS) -> None:
        self.engine = engine
        self.epochs = epochs
        self.project = f"{self.called}-{engine.name}"
        (self.port,) = free_ports(1)
        self.environment = {
            "STRATA_TAG": tag,
            "STRATA_USER": RANDOM_USER,
            "DASHBOARD_ADDRESS": f"127.0.0.1:{self.port}",
            "DEMO_EPOCHS": str(epochs),
            "DEMO_PACE_S": "0",
        }

    def compose(self, *words: str) -> str:
        """Run a command of Compose on the file of this run."""
        options = [
            f"--file={self.file}",
            f"--project-name={self.project}",
            *(f"--profile={name}" for name in self.profiles),
        ]
        return self.engine.run("podman-compose", *options, *words, environment=self.environment)

    def up(self, *, workers: int = 4, services: tuple[str, ...] = ()) -> None:
        """Start what is missing, with images that are there; steps take their time until :meth:`hurry`."""
        # Before the first worker starts: it could be finished when the last container is up.
        self.slow_down()
        self.compose("up", "--detach", "--no-build", f"--scale=worker={workers}", *services)

    def recreate_all(self, *, workers: int) -> None:
        """Remove every container and create it anew, with the images of the tag; volumes stay."""
        # podman-compose has no way to replace one container that others were started after.
        scale = f"--scale=worker={workers}"
        self.compose("up", "--detach", "--no-build", "--force-recreate", scale)

    def up_apart(self, *services: str, workers: int = 4) -> None:
        """Start services so that each container can be replaced without those that were started after it."""
        if "worker" in services:
            self.slow_down()
        scale = f"--scale=worker={workers}"
        self.compose("up", "--detach", "--no-build", "--no-deps", "--no-recreate", scale, *services)

    def replace(self, service: str, number: int = 1, *, workers: int = 4) -> None:
        """Stop one container as its service is stopped, and create it anew with the image of the tag."""
        name = self.container(service, number)
        before = self.engine.inspect(name)["Id"]
        self.engine.podman("stop", f"--time={STOP_S}", name)
        self.engine.podman("rm", name)
        self.up_apart(service, workers=workers)
        assert self.engine.inspect(name)["Id"] != before

    def slow_down(self) -> None:
        """Let steps take longer the slower this machine is: the training must not end before it was disturbed."""
        fresh = self.training_folder / f".{SLOW}"
        fresh.write_text(f"{stretch(SLOW_S):.3f}")
        fresh.replace(self.training_folder / SLOW)

    def hurry(self) -> None:
        """Let the training go as fast as it can."""
        (self.training_folder / SLOW).unlink(missing_ok=True)

    @property
    def training_folder(self) -> Path:
        """The volume with data and checkpoints, as this machine sees it; Compose takes it for one of its own."""
        name = f"{self.project}_{self.training_volume}"
        asked = ("volume", "inspect", "--format={{.Mountpoint}}", name)
        if self.engine.attempt("podman", *asked).returncode != 0:
            self.engine.podman("volume", "create", f"--label=io.podman.compose.project={self.project}", name)
            # As the first container would do that mounts it.
            os.chown(self.engine.podman(*asked).strip(), int(RANDOM_USER.partition(":")[0]), 0)
        return Path(self.engine.podman(*asked).strip())

    def container(self, service: str, number: int = 1) -> str:
        """Return the name of a container."""
        return f"{self.project}_{service}_{number}"

    def worker_of(self, number: int) -> str:
        """Return the id under which the coordinator knows the worker of a container."""
        hostname = self.engine.inspect(self.container("worker", number))["Config"]["Hostname"]
        return f"{hostname}-0"

    def label(self, service: str, number: int = 1) -> str:
        """Return the version that the image of a container has on it."""
        labels = self.engine.inspect(self.container(service, number))["Config"]["Labels"]
        return str(labels["org.opencontainers.image.version"])

    def is_running(self, service: str) -> bool:
        """Whether the first process of a container runs."""
        return bool(self.engine.inspect(self.container(service))["State"]["Running"])

    def kill(self, service: str, number: int = 1) -> None:
        """Kill -9 the first process of a container, as the kernel does when memory is short."""
        state = self.engine.inspect(self.container(service, number))["State"]
        assert state["Running"], state
        os.kill(state["Pid"], signal.SIGKILL)

    def get(self, path: str) -> Any:
        """Return what the API answers through the dashboard's port; None while it does not."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=stretch(10)) as reply:
                return json.loads(reply.read())
        except (OSError, ValueError):
            return None

    def job(self) -> dict[str, Any]:
        """Return the job's summary; empty while there is none."""
        jobs = (self.get("/api/jobs") or {"jobs": []})["jobs"]
        return next((job for job in jobs if job["job_id"] == "demo"), {})

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return the workers that the coordinator knows, by id."""
        answer = self.get("/api/workers?job=demo&limit=100") or {"items": []}
        return {worker["worker_id"]: worker for worker in answer["items"]}

    def wait_trains(self, *, workers: int, steps: int = 5) -> None:
        """Wait until so many workers train together, some steps further than now."""
        wait_until(
            lambda: self._unfinished().get("workers") == workers,
            self._say_waited(f"{workers} workers"),
            timeout_s=WAIT_S,
        )
        begun = self.job().get("committed_step") or 0

        def saves() -> bool:
            job = self._unfinished()
            return (job.get("committed_step") or 0) > begun + steps and job.get("workers") == workers

        wait_until(saves, self._say_waited(f"{workers} workers save a step after {begun + steps}"), timeout_s=WAIT_S)

    def wait_finished(self) -> None:
        """Let it finish: all workers that are left end by themselves."""
        self.hurry()
        wait_until(self._is_over, self._say_waited("the end of the training"), timeout_s=WAIT_S)

    def prove(self) -> str:
        """Return what the proofs say; fails if one does not hold."""
        said = self.compose("--profile=prove", "run", "--rm", "-T", "prove")
        assert "FAILED" not in said
        assert said.count("ok  ") == self.epochs + 3, said
        return said

    def print_logs(self) -> None:
        """Print the last lines of each container; pytest shows them if the test failed."""
        for name in self.engine.podman("ps", "--all", "--format={{.Names}}").split():
            said = self.engine.attempt("podman", "logs", "--tail=8", name)
            sys.stdout.write(f"{name}:\n{said.stdout}{said.stderr}\n")

    def take_down(self) -> None:
        """Remove all of it as the docs say; fails if a container or a volume is left."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout=5")
        assert self.engine.podman("ps", "--all", "--quiet") == ""
        assert self.engine.podman("volume", "ls", "--quiet") == ""

    def _unfinished(self) -> dict[str, Any]:
        """Return the job's summary; fails if it is over, for then there is nothing left to disturb."""
        job = self.job()
        assert job.get("state") != "finished", f"the training ended too early: {job}"
        return job

    def _is_over(self) -> bool:
        job = self.job()
        return job.get("state") == "finished" and job["workers"] == 0

    def _say_waited(self, what: str) -> Any:
        def say() -> str:
            logs = [
                f"{name}:\n{self.engine.attempt('podman', 'logs', '--tail=12', name).stderr[-3000:]}"
                for name in self.engine.podman("ps", "--all", "--format={{.Names}}").split()
            ]
            return f"{what}; job {self.job()}\n" + "\n".join(logs)

        return say


@contextlib.contextmanager
def stack_of(engine: Engine, *, tag: str = "local", epochs: int = EPOCHS) -> Iterator[Stack]:
    """A stack whose containers, networks and volumes are gone when the block ends."""
    stack = Stack(engine, tag=tag, epochs=epochs)
    try:
        yield stack
    finally:
        stack.print_logs()
        engine.remove_containers()
