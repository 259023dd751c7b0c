"""A stall is told to people when it is named, long before it is ended, and so is its end."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from strata.cluster import commands as c
from strata.errors import MembershipError
from strata.run.team.protocol import JobView, WorkerView
from strata.run.team.solo_team import LocalTeam
from strata.run.watchdog.waits import Waits
from strata.run.watchdog.watchdog import Watchdog, lock_file_of
from tests.unit.cluster.conftest import Bench

NOW_S = 1_000.0


@pytest.fixture(autouse=True)
def _stopped_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this machine takes for a line of a test, no time passes for the watchdog."""
    monkeypatch.setattr("strata.run.watchdog.watchdog.time", SimpleNamespace(monotonic=lambda: NOW_S))


class Told(LocalTeam):
    """A team of one that keeps what it is told."""

    def __init__(self) -> None:
        self.stalls: list[tuple[str, bool]] = []

    def report_stall(self, reason: str, *, is_over: bool) -> None:
        self.stalls.append((reason, is_over))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the watchdog logged; threads of other tests may log, too."""
    return [record.getMessage() for record in caplog.records if record.name == "strata.run.watchdog.watchdog"]


def test_a_stall_is_reported_once_when_it_is_named_and_once_when_it_is_over(tmp_path: Path) -> None:
    team = Told()
    watchdog = Watchdog(team, Waits(), worker_id="w1", folder=tmp_path, limit_s=1_000.0, is_outdated=lambda: False)
    watchdog.arm(6, rank=0, generation=1)
    watchdog.tick(NOW_S + 400)
    assert team.stalls == [], "less than half of its limit"
    for later_s in (600, 700, 800):
        watchdog.tick(NOW_S + later_s)
    ((reason, is_over),) = team.stalls
    assert "rank 0 (w1) stands still for 600 s in step 7 at " in reason
    assert "the watchdog kills it after its limit of 1000 s" in reason
    assert not is_over
    watchdog.done(7)
    watchdog.done(8)
    assert team.stalls[1:] == [("rank 0 has done step 7", True)]
    watchdog.close()


def test_the_limit_of_a_worker_begins_again_when_the_others_go_on_without_it(tmp_path: Path) -> None:
    team = Told()
    watchdog = Watchdog(team, Waits(), worker_id="w1", folder=tmp_path, limit_s=1_000.0, is_outdated=lambda: True)
    watchdog.arm(6, rank=0, generation=1)
    watchdog.tick(NOW_S + 400)
    watchdog.tick(NOW_S + 800)
    assert team.stalls == [], "less than half of its limit since it was first looked"
    watchdog.tick(NOW_S + 1_000)
    ((reason, is_over),) = team.stalls
    assert "the others go on in a new generation and wait for it" in reason, reason
    assert not is_over
    watchdog.close()


def test_a_worker_is_not_blamed_when_the_one_that_it_waited_for_has_just_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = WorkerView(worker_id="w2", rank=1, state="left", step=6, silent_s=0.0, resources={})
    view = JobView(generation=2, workers=(gone,), waits_for=2, barriers={}, commits={})
    team = Told()
    monkeypatch.setattr(team, "look", lambda: view)
    watchdog = Watchdog(team, Waits(), worker_id="w1", folder=tmp_path, limit_s=1_000.0, is_outdated=lambda: False)
    watchdog.arm(6, rank=0, generation=1)
    watchdog.tick(NOW_S + 1_100)
    assert told(caplog) == [], "the coordinator knows of a new generation before the worker does"
    watchdog.tick(NOW_S + 2_200)
    (message,) = told(caplog)
    assert "the others go on in a new generation and wait for it" in message
    watchdog.close()


def test_a_worker_that_is_alone_is_not_ended_but_told_where_its_stacks_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = Watchdog(Told(), Waits(), worker_id="w1", folder=tmp_path, limit_s=1_000.0, is_outdated=lambda: False)
    watchdog.arm(6, rank=0, generation=1)
    for later_s in (1_100, 1_200):
        watchdog.tick(NOW_S + later_s)
    (message,) = told(caplog)
    (stacks,) = tmp_path.iterdir()
    assert message.startswith("rank 0 (w1) stands still for 1100 s in step 7 at ")
    assert message.endswith(f". Its stacks are in {stacks}")
    assert "in test_a_worker_that_is_alone" in stacks.read_text()
    watchdog.close()


def test_a_step_that_is_done_without_a_loop_begins_the_watch_again(tmp_path: Path) -> None:
    team = Told()
    watchdog = Watchdog(team, Waits(), worker_id="w1", folder=tmp_path, limit_s=1_000.0, is_outdated=lambda: False)
    watchdog.arm(6, rank=0, generation=1)
    watchdog.disarm()
    watchdog.tick(NOW_S + 600)
    assert team.stalls == [], "nothing is a stall between two loops"
    watchdog.done(7)
    watchdog.tick(NOW_S + 600)
    ((reason, _),) = team.stalls
    assert "rank 0 (w1) stands still for 600 s in step 8 at " in reason
    watchdog.close()


def test_the_events_of_the_job_show_it() -> None:
    bench = Bench()
    bench.join("a")
    bench.say(c.ReportStall, "a", reason="rank 0 (a) stands still")
    bench.say(c.ReportStall, "a", reason="rank 0 has done step 7", is_over=True)
    told = [(event.worker_id, event.kind, event.reason) for event in bench.cluster.events.since(0)[1]][-2:]
    assert told == [("a", "stalled", "rank 0 (a) stands still"), ("a", "stall over", "rank 0 has done step 7")]
    with pytest.raises(MembershipError):
        bench.say(c.ReportStall, "unknown", reason="x")


def test_a_wait_in_a_collective_is_logged_once_and_a_slow_step_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("strata.run.watchdog.watchdog.is_in_collective", lambda thread: True)
    watchdog = Watchdog(Told(), Waits(), worker_id="w1", folder=tmp_path, limit_s=1_000.0, is_outdated=lambda: False)
    watchdog.arm(6, rank=0, generation=1)
    watchdog.tick(NOW_S + 2)
    assert told(caplog) == []
    for later_s in (4, 5, 6):
        watchdog.tick(NOW_S + later_s)
    (message,) = told(caplog)
    assert message.startswith("waiting for 4 s")
    assert "step 7 is in a collective or a backward pass, at " in message
    watchdog.close()


def test_the_file_for_a_held_interpreter_lock_is_opened_once_by_two_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training thread and the one that ticks; a file that one of them lost was never closed."""
    opened: list[Path] = []
    is_second = threading.Event()

    def open_slowly(folder: Path, worker_id: str, pid: int) -> Path:
        opened.append(lock_file_of(folder, worker_id, pid))
        if len(opened) == 1:
            ticking.start()
            is_second.wait(0.2)
        else:
            is_second.set()
        return opened[0]

    monkeypatch.setattr("strata.run.watchdog.watchdog.lock_file_of", open_slowly)
    team = Told()
    monkeypatch.setattr(Told, "ends_hung_workers", True)
    watchdog = Watchdog(team, Waits(), worker_id="w1", folder=tmp_path, limit_s=1_000.0, is_outdated=lambda: False)
    ticking = threading.Thread(target=watchdog.tick, args=(NOW_S,))
    watchdog.arm(6, rank=0, generation=1)
    ticking.join()
    assert len(opened) == 1
    watchdog.close()
    assert not opened[0].exists()
    watchdog.tick(NOW_S)
    assert len(opened) == 1, "nor is it opened again after the end"
