"""The director of the demonstration: it starts the run, and then kills, stops and adds workers while it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from strata.client.http_reader import HttpReader
from strata.client.unary import ask_audit, configure_job
from strata.demo.replicated import ReplicatedCoordinator
from strata.demo.worker import DATASET, SLOW
from strata.run.launch.standalone import StandaloneCoordinator
from strata.run.launch.worker_process import WorkerProcess

JOB_ID = "demo"
DemoCoordinator = StandaloneCoordinator | ReplicatedCoordinator
# One thread for each worker: so many processes on a small machine would only get in each other's way.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "JOB_ID": JOB_ID}
_SIGNALS = {
    "kill": signal.SIGKILL,
    "interrupt": signal.SIGINT,
    "pause": signal.SIGSTOP,
    "leave": signal.SIGTERM,
}
PAUSE_S = 1.0
# On a slow machine the demonstration takes as long as it needs, but it ends if no worker does a step for this long.
STALL_S = 120.0


@dataclass(slots=True)
class WorkerView:
    """What is last known of a worker."""

    worker_id: str
    doing: str = "starting"
    rank: int | None = None
    step: int = 0
    loss: float | None = None


@dataclass(slots=True)
class Act:
    """Something that is done to the run, and how long it took until all workers trained on.

    ``world_size`` is how many workers the run has afterwards. A worker that is killed or interrupted is started again,
    one that is paused goes on after a second.
    """

    kind: Literal["kill", "interrupt", "pause", "kill coordinator", "kill etcd", "leave", "join"]
    at_step: int
    world_size: int
    workers: tuple[str, ...] = ()
    what: str = ""
    begun_s: float | None = None
    recovered_s: float | None = None


@dataclass(slots=True)
class Scene:
    """All that can be seen of the run; the view draws it, and the director changes it."""

    epochs: int
    num_rows: int
    total_steps: int
    workers: dict[str, WorkerView] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    step: int = 0
    generation: int = 0
    world_size: int = 0
    repeated_steps: int = 0
    saves: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    audits: list[tuple[int, int]] = field(default_factory=list)
    """For each epoch, how many samples are missing and repeated, as the coordinator says at the end."""
    goodput: dict[str, Any] = field(default_factory=dict)
    """Where the time went, as the coordinator says at the end."""
    coordinator: str = "starting"
    began_s: float = field(default_factory=time.monotonic)


class Director:
    """Runs the whole play in one folder; ``on_change`` is told when there is something new to see."""

    def __init__(
        self,
        folder: Path,
        scene: Scene,
        *,
        pace_s: float,
        on_change: Callable[[], None],
        coordinator: DemoCoordinator | None = None,
    ) -> None:
        """Use a coordinator that runs already and outlives the play, or one of its own."""
        self._coordinator: DemoCoordinator
        self._folder = folder
        self._scene = scene
        self._pace_s = pace_s
        self._on_change = on_change
        self._given = coordinator
        self._processes: dict[str, WorkerProcess] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._expendable: set[str] = set()
        self._failure: str | None = None
        self._url = ""
        self._heard_s = time.monotonic()

    async def play(self) -> None:
        """Play it to the end; raises if a worker fails that was not told to, and if nothing happens any more."""
        scene = self._scene
        journal = self._folder / "coordinator"
        journal.mkdir(exist_ok=True)
        async with nullcontext(self._given) if self._given else StandaloneCoordinator(journal) as coordinator:
            self._coordinator = coordinator
            self._url = coordinator.url
            scene.coordinator = f"pid {coordinator.pid}"
            await asyncio.to_thread(configure_job, coordinator.url, JOB_ID, min_workers=1, max_workers=None)
            try:
                for number in range(4):
                    self._start(f"worker-{number}")
                await self._direct()
                if self._failure is not None:
                    raise RuntimeError(self._failure)
                scene.audits = [await asyncio.to_thread(self._audit, epoch) for epoch in range(scene.epochs)]
                reader = HttpReader.of_leader(coordinator.url)
                scene.goodput = await asyncio.to_thread(reader.get, "/api/goodput", job=JOB_ID)
            finally:
                for process in list(self._processes.values()):
                    process.send_signal(signal.SIGKILL)
                await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def play_reference(self) -> None:
        """Train the same alone and undisturbed, to compare with."""
        command = [sys.executable, "-m", "strata.demo.worker", str(self._folder), str(self._scene.epochs), "0"]
        environment = {**_ENVIRONMENT, "JOB_FOLDER": str(self._folder / "job")}
        process = WorkerProcess.start("reference", 0, [*command, "--local"], environment, lambda *_: None)
        ended = await process.wait()
        if ended.code != 0:
            raise RuntimeError(f"the undisturbed run failed: {ended}\n" + "\n".join(ended.last_lines))

    def _audit(self, epoch: int) -> tuple[int, int]:
        """Ask the coordinator, which has been dead once, how many samples are missing and repeated."""
        audit = ask_audit(self._url, JOB_ID, DATASET, epoch=epoch)
        return audit.missing.samples, audit.repeated.samples

    async def _direct(self) -> None:
        self._heard_s = time.monotonic()
        acts = iter(self._scene.acts)
        act = next(acts, None)
        while self._tasks and self._failure is None:
            await asyncio.sleep(0.02)
            self._check_progress()
            for worker_id in [each for each, task in self._tasks.items() if task.done()]:
                await self._tasks.pop(worker_id)
            if act is None:
                continue
            if act.begun_s is None and self._scene.step >= act.at_step:
                act.begun_s = time.monotonic()
                self._generation_before = self._scene.generation
                self._step_before = self._scene.step
                self._perform(act)
            elif act.begun_s is not None and act.recovered_s is not None:
                act = next(acts, None)
            self._on_change()

    def _check_progress(self) -> None:
        scene, limit_s = self._scene, STALL_S + self._pace_s  # a step takes at least the pace
        if time.monotonic() - self._heard_s > limit_s:
            raise RuntimeError(
                f"no worker has done a step for {limit_s:g} s, at step {scene.step} of {scene.total_steps}; "
                "this machine has too much else to do, or the run hangs"
            )

    def _perform(self, act: Act) -> None:
        if act.kind == "kill coordinator":
            os.kill(self._coordinator.pid, signal.SIGKILL)
            self._scene.coordinator = "killed"
        elif act.kind == "kill etcd":
            assert isinstance(self._coordinator, ReplicatedCoordinator)
            os.kill(self._coordinator.etcd_pid, signal.SIGKILL)
        elif act.kind == "join":
            # On a slow machine the run must not be over before they are there.
            (self._folder / SLOW).touch()
            for worker_id in act.workers:
                self._start(worker_id)
        else:
            for process in [self._processes[worker_id] for worker_id in act.workers if worker_id in self._processes]:
                if act.kind in ("kill", "interrupt"):
                    self._expendable.add(process.worker_id)
                process.send_signal(_SIGNALS[act.kind])
                if act.kind == "pause":
                    asyncio.get_running_loop().call_later(PAUSE_S, process.send_signal, signal.SIGCONT)

    def _start(self, worker_id: str) -> None:
        self._scene.workers[worker_id] = WorkerView(worker_id)
        before = self._tasks.get(worker_id)
        self._tasks[worker_id] = asyncio.get_running_loop().create_task(self._keep(worker_id, before), name=worker_id)

    async def _keep(self, worker_id: str, before: asyncio.Task[None] | None) -> None:
        """Run one worker, and run it again if it was killed on purpose; one of its name that leaves ends first."""
        if before is not None:
            await before
        while True:
            view = self._scene.workers[worker_id]
            number = int(worker_id.removeprefix("worker-"))
            environment = {"COORDINATOR_URL": self._url, "WORKER_ID": worker_id, "RANK": str(number)}
            environment["JOB_FOLDER"] = str(self._folder / "job")
            environment["WORLD_SIZE"] = str(max(4, number + 1))
            command = [sys.executable, "-m", "strata.demo.worker", str(self._folder), str(self._scene.epochs)]
            process = WorkerProcess.start(
                worker_id,
                number,
                [*command, str(self._pace_s)],
                {**_ENVIRONMENT, **environment},
                partial(self._hear, worker_id),
            )
            self._processes[worker_id] = process
            ended = await process.wait()
            del self._processes[worker_id]
            view.rank = None
            if ended.code == 0 or ended.is_preempted:
                view.doing = "left" if self._scene.step < self._scene.total_steps else "done"
                return
            if worker_id not in self._expendable:
                self._failure = self._failure or f"{ended}\n" + "\n".join(ended.last_lines)
                return
            self._expendable.discard(worker_id)
            view.doing = "killed, starting again"

    def _hear(self, worker_id: str, stream: str, line: bytes) -> None:
        if stream != "stdout":
            return
        self._heard_s = time.monotonic()
        with suppress(ValueError):
            fields = json.loads(line)
            if "saved" in fields:
                rows = self._scene.saves.setdefault(fields["saved"], [])
                rows.append((fields["size_bytes"], fields["took_s"], fields["blocked_s"]))
            elif "step" in fields:
                self._note_step(worker_id, fields)
        self._on_change()

    def _note_step(self, worker_id: str, fields: dict[str, float]) -> None:
        scene, view = self._scene, self._scene.workers[worker_id]
        view.doing, view.rank = "training", int(fields["rank"])
        view.step, view.loss = int(fields["step"]), fields["loss"]
        if fields["generation"] > scene.generation and scene.step:
            scene.repeated_steps += max(0, scene.step - view.step + 1)
        scene.generation = max(scene.generation, int(fields["generation"]))
        scene.world_size = int(fields["world_size"])
        scene.step = view.step if fields["generation"] == scene.generation else scene.step
        for act in scene.acts:
            if act.begun_s is not None and act.recovered_s is None:
                self._see_recovery(act, view, fields)

    def _see_recovery(self, act: Act, view: WorkerView, fields: dict[str, float]) -> None:
        """An act is over when the wanted number of workers trains on."""
        if act.kind == "kill coordinator":
            is_over = view.step > self._step_before + 1
            self._scene.coordinator = f"pid {self._coordinator.pid}" if is_over else "killed"
        elif act.kind in ("pause", "kill etcd"):
            is_over = view.step > self._step_before + 1
        else:
            is_over = fields["generation"] > self._generation_before and fields["world_size"] == act.world_size
        if is_over and act.begun_s is not None:
            act.recovered_s = time.monotonic() - act.begun_s
            (self._folder / SLOW).unlink(missing_ok=True)
