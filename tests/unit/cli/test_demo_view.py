"""What ``strata demo`` shows while it plays: a screen that is drawn again, or a line for everything that happens."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest

from strata.cli import demo
from strata.demo.director import Act, Scene, WorkerView


class Screen(io.StringIO):
    """A terminal that remembers all that was written."""

    def isatty(self) -> bool:
        return True

    @property
    def words(self) -> str:
        """What was written, without what moves the cursor and colours the text."""
        return " ".join(re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", " ", self.getvalue()).split())


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    return Screen()


@pytest.fixture
def scene() -> Scene:
    workers = [
        WorkerView("worker-0", "training", rank=0, step=41, loss=1.23456),
        WorkerView("worker-1", "killed, starting again", step=39),
    ]
    acts = [
        Act("kill", 10, 4, ("worker-1",), "kill -9 of a worker", begun_s=1.0, recovered_s=2.34),
        Act("kill coordinator", 40, 4, (), "kill -9 of the coordinator", begun_s=9.0),
        Act("leave", 60, 3, ("worker-0",), "one worker leaves"),
    ]
    return Scene(
        epochs=1,
        num_rows=640,
        total_steps=100,
        workers={each.worker_id: each for each in workers},
        acts=acts,
        step=41,
        generation=3,
        world_size=2,
        saves={10: [], 20: []},
        coordinator="killed",
    )


def test_at_a_terminal_one_sees_the_workers_what_was_done_to_them_and_who_recovers(
    screen: Screen, scene: Scene
) -> None:
    with redirect_stdout(screen), demo._View(scene) as view:
        view.say("four workers are starting")
        view.show_address("http://127.0.0.1:8080")
        view.update()
    shown = screen.words
    assert "step 41 of 100 generation 3 2 workers coordinator killed 2 checkpoints" in shown
    assert "dashboard http://127.0.0.1:8080" in shown
    assert "four workers are starting" in shown
    assert "worker-0 0 41 1.235 training" in shown
    assert "worker-1 39 killed, starting again" in shown
    assert "step 10 kill -9 of a worker all train on after 2.3 s" in shown
    assert "step 40 kill -9 of the coordinator recovering" in shown
    assert "step 60 one worker leaves" in shown
    assert "The dashboard is at" not in shown, "that line is for where nothing is drawn again"


def test_a_view_that_is_closed_draws_nothing_more(screen: Screen, scene: Scene) -> None:
    with redirect_stdout(screen), demo._View(scene) as view:
        view.close()
        written = screen.getvalue()
        scene.step = 99
        view.update()
    assert "step 41 of 100" in screen.words
    assert screen.getvalue() == written


def test_elsewhere_each_thing_that_happens_is_one_line_and_told_once(
    capsys: pytest.CaptureFixture[str], scene: Scene
) -> None:
    with demo._View(scene) as view:
        view.show_address("http://127.0.0.1:8080")
        view.update()
        view.update()
        scene.acts[1].recovered_s = 3.0
        view.update()
    first, *told = capsys.readouterr().out.splitlines()
    assert first == "The dashboard is at http://127.0.0.1:8080"
    assert [line.split("  ")[-1].strip() for line in told] == [
        "kill -9 of a worker",
        "all train on after: kill -9 of a worker",
        "kill -9 of the coordinator",
        "all train on after: kill -9 of the coordinator",
    ]
    assert all(" s  step   41  " in line for line in told)


def test_a_terminal_that_cannot_redraw_gets_lines_too(
    screen: Screen, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with redirect_stdout(screen), demo._View(scene) as view:
        view.update()
    assert "step   41  kill -9 of a worker\n" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()
