"""``strata demo``: a run that is killed and rescaled in front of your eyes, with proofs that it did not matter."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from strata.cli.progress import can_redraw

if TYPE_CHECKING:
    from strata.demo.director import DemoCoordinator, Director, Scene
    from strata.demo.proofs import Proof

EPOCHS = 4
ROWS = 5_000


def run_demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the run's folder, so that you can look into it.")] = False,
    pace: Annotated[float, typer.Option(min=0.0, help="Seconds added to every step, so that you can watch it.")] = 0.04,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Open the dashboard on the run, and keep it up at the end until Ctrl-C.")
    ] = False,
    ha: Annotated[
        bool,
        typer.Option("--ha", help="Three coordinators on three etcd nodes; both leaders are killed. Needs etcd."),
    ] = False,
) -> int:
    """Train a small model with 4 workers; kill -9 one of them, then the coordinator; rescale to 3 and to 5; prove it.

    It takes less than a minute and uses free ports of this machine. Exits with 1 if any proof fails.
    """
    from strata.demo.director import JOB_ID, Act, Director, Scene
    from strata.demo.model import BATCH_SIZE
    from strata.demo.proofs import prove
    from strata.demo.replicated import ReplicatedCoordinator
    from strata.demo.samples import make_dataset
    from strata.demo.summary import describe
    from strata.run.launch.standalone import StandaloneCoordinator

    # What it says when a coordinator dies is part of the play, and shown there.
    logging.getLogger("strata.run.launch.standalone").setLevel(logging.ERROR)
    # SIGTERM ends it as Ctrl-C does: with nothing left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began_s = time.monotonic()
    total = EPOCHS * -(-ROWS // BATCH_SIZE)
    acts = [
        Act("kill", total * 1 // 10, 4, ("worker-2",), "kill -9 of a worker"),
        *([Act("kill etcd", total * 2 // 10, 4, (), "kill -9 of etcd's leader")] if ha else []),
        Act("kill coordinator", total * 3 // 10, 4, (), f"kill -9 of the {'leading ' * ha}coordinator"),
        Act("leave", total * 5 // 10, 3, ("worker-3",), "one worker leaves: 4 to 3"),
        Act("join", total * 6 // 10, 5, ("worker-3", "worker-4"), "two workers join: 3 to 5"),
    ]
    scene = Scene(EPOCHS, ROWS, total_steps=total, acts=acts)
    with ExitStack() as stack:
        if keep:
            folder = Path(tempfile.mkdtemp(prefix="strata-demo-"))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strata-demo-")))
        make_dataset(folder / "data", ROWS)
        view = stack.enter_context(_View(scene))
        proofs: list[Proof] = []

        def summarize() -> None:
            view.close()
            proofs.extend(prove(folder, job_id=JOB_ID, epochs=EPOCHS, num_rows=ROWS, audits=scene.audits))
            lines = describe(scene, proofs, took_s=time.monotonic() - began_s)
            sys.stdout.write("\n".join(lines) + "\n")
            if keep:
                sys.stdout.write(f"The run is in {folder}\n")

        coordinator: DemoCoordinator | None = None
        if dashboard or ha:
            (folder / "coordinator").mkdir()
            home = folder / "coordinator"
            coordinator = ReplicatedCoordinator(home) if ha else StandaloneCoordinator(home, is_open=True)
        director = Director(folder, scene, pace_s=pace, on_change=view.update, coordinator=coordinator)
        try:
            if coordinator is not None and dashboard:
                asyncio.run(_play_with_page(coordinator, director, view, summarize))
            else:
                asyncio.run(_play_on(coordinator, director, view))
                summarize()
        except RuntimeError as error:
            view.close()
            sys.stderr.write(f"strata demo: {error}\n")
            return 1
        except KeyboardInterrupt:
            # With the page, this is how it ends; before the proofs, it is how it is given up.
            if not proofs:
                raise
    recovered = all(act.recovered_s is not None for act in scene.acts)
    return 0 if recovered and all(proof.holds for proof in proofs) else 1


async def _play(director: Director, view: _View) -> None:
    view.say("four workers and their coordinator are starting")
    await director.play()
    view.say("the same training again, undisturbed and with one worker, to compare the weights")
    await director.play_reference()


async def _play_on(coordinator: DemoCoordinator | None, director: Director, view: _View) -> None:
    async with coordinator or nullcontext():
        await _play(director, view)


async def _play_with_page(
    coordinator: DemoCoordinator, director: Director, view: _View, summarize: Callable[[], None]
) -> None:
    """Play it while the page shows it; then keep the page up for whoever looks at it."""
    async with coordinator:
        view.show_address(coordinator.http_url)
        _open_browser(coordinator.http_url)
        await _play(director, view)
        summarize()
        sys.stdout.write(f"The dashboard stays at {coordinator.http_url} until Ctrl-C\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _open_browser(url: str) -> None:
    # Only where there is a screen: elsewhere it might start a browser of text in the middle of the play.
    if sys.stdout.isatty() and (sys.platform == "darwin" or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}):
        webbrowser.open(url)


class _View:
    """The scene, drawn again and again at a terminal; elsewhere a line for everything that happens."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._live: Any = None
        self._told: set[str] = set()
        self._drawn_s = 0.0
        self._address = ""
        self._phase = ""

    def __enter__(self) -> Self:
        if can_redraw(sys.stdout):
            from rich.live import Live

            self._live = Live(self._draw(), refresh_per_second=12, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Draw nothing more."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, phase: str) -> None:
        """Show what the demonstration does now."""
        self._phase = phase
        if self._live is not None:
            self._live.update(self._draw())
        else:
            self._write(phase)

    def show_address(self, url: str) -> None:
        """Say where the dashboard is, as long as the play goes on."""
        self._address = url
        if self._live is None:
            sys.stdout.write(f"The dashboard is at {url}\n")
            sys.stdout.flush()

    def update(self) -> None:
        """Show what is new."""
        if self._live is not None:
            if time.monotonic() - self._drawn_s > 0.08:
                self._drawn_s = time.monotonic()
                self._live.update(self._draw())
        elif not can_redraw(sys.stdout):
            self._tell()

    def _tell(self) -> None:
        for act in self._scene.acts:
            for what, is_so in (
                (act.what, act.begun_s is not None),
                (f"all train on after: {act.what}", act.recovered_s is not None),
            ):
                if is_so and what not in self._told:
                    self._told.add(what)
                    self._write(what)

    def _write(self, what: str) -> None:
        at_s = time.monotonic() - self._scene.began_s
        sys.stdout.write(f"{at_s:5.1f} s  step {self._scene.step:>4}  {what}\n")
        sys.stdout.flush()

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        scene = self._scene
        workers = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("worker", "rank", "step", "loss", "doing"):
            workers.add_column(column)
        for view in scene.workers.values():
            style = "" if view.doing == "training" else "yellow" if "kill" in view.doing else "dim"
            loss = "" if view.loss is None else f"{view.loss:.3f}"
            rank = "" if view.rank is None else str(view.rank)
            workers.add_row(view.worker_id, rank, str(view.step), loss, view.doing, style=style)
        acts = Table(box=None, pad_edge=False, show_header=False)
        for act in scene.acts:
            if act.recovered_s is not None:
                acts.add_row(
                    f"step {act.at_step}", act.what, f"all train on after {act.recovered_s:.1f} s", style="green"
                )
            elif act.begun_s is not None:
                acts.add_row(f"step {act.at_step}", act.what, "recovering", style="bold yellow")
            else:
                acts.add_row(f"step {act.at_step}", act.what, "", style="dim")
        head = Text(
            f"step {scene.step} of {scene.total_steps}   generation {scene.generation}   {scene.world_size} workers   "
            f"coordinator {scene.coordinator}   {len(scene.saves)} checkpoints"
            + (f"   dashboard {self._address}" if self._address else "")
        )
        bar = ProgressBar(total=scene.total_steps, completed=scene.step, width=60)
        return Group(head, bar, Text(self._phase, style="dim"), workers, Text(), acts)
