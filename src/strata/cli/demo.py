"""``strata demo``: a run that is killed and rescaled in front of your eyes, with proofs that it did not matter."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

if TYPE_CHECKING:
    from strata.run.demo.director import Scene

EPOCHS = 4
ROWS = 5_000


def run_demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the run's folder behind, to look into.")] = False,
    pace: Annotated[float, typer.Option(min=0.0, help="Seconds that every step is slowed by, to be watched.")] = 0.04,
) -> int:
    """Train a small model with 4 workers; kill -9 one of them, then the coordinator; rescale to 3 and to 5; prove it.

    Under a minute, on free ports of this machine. Leaves with 1 if any proof fails.
    """
    from strata.run.demo.dataset import make_dataset
    from strata.run.demo.director import JOB_ID, Act, Director, Scene
    from strata.run.demo.model import BATCH_SIZE
    from strata.run.demo.proofs import prove
    from strata.run.demo.summary import describe

    # What it says when a coordinator dies is part of the play, and shown there.
    logging.getLogger("strata.run.standalone").setLevel(logging.ERROR)
    began_s = time.monotonic()
    total = EPOCHS * -(-ROWS // BATCH_SIZE)
    acts = [
        Act("kill", total * 1 // 10, 4, ("worker-2",), "kill -9 of a worker"),
        Act("kill coordinator", total * 3 // 10, 4, (), "kill -9 of the coordinator"),
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
        director = Director(folder, scene, pace_s=pace, on_change=view.update)
        try:
            asyncio.run(_play(director))
        except RuntimeError as error:
            view.close()
            sys.stderr.write(f"strata demo: {error}\n")
            return 1
        view.close()
        proofs = prove(folder, job_id=JOB_ID, epochs=EPOCHS, num_rows=ROWS, audits=scene.audits)
        lines = describe(scene, proofs, took_s=time.monotonic() - began_s)
        sys.stdout.write("\n".join(lines) + "\n")
        if keep:
            sys.stdout.write(f"The run is in {folder}\n")
    recovered = all(act.recovered_s is not None for act in scene.acts)
    return 0 if recovered and all(proof.holds for proof in proofs) else 1


async def _play(director: Any) -> None:
    await director.play()
    await director.play_reference()


class _View:
    """The scene, drawn again and again at a terminal; elsewhere a line for everything that happens."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._live: Any = None
        self._told: set[str] = set()
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
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

    def update(self) -> None:
        """Show what is new."""
        if self._live is not None:
            if time.monotonic() - self._drawn_s > 0.08:
                self._drawn_s = time.monotonic()
                self._live.update(self._draw())
        elif not sys.stdout.isatty():
            self._tell()

    def _tell(self) -> None:
        at_s = time.monotonic() - self._scene.began_s
        for act in self._scene.acts:
            for what, is_so in (
                (act.what, act.begun_s is not None),
                (f"all train on after: {act.what}", act.recovered_s is not None),
            ):
                if is_so and what not in self._told:
                    self._told.add(what)
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
        )
        bar = ProgressBar(total=scene.total_steps, completed=scene.step, width=60)
        return Group(head, bar, Text(), workers, Text(), acts)
