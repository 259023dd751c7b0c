"""One worker is asked to stop: all agree on the step after which they save, or it leaves without a save."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from strata.cluster.values import RankInfo
from strata.errors import BarrierTimeoutError, Reconfigure
from strata.run.loop.stop_agreement import StopAgreement
from strata.run.loop.stopping import StopSignal
from strata.run.team.solo_team import LocalTeam
from strata.run.watchdog.waits import Waits
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

RANK_INFO = RankInfo(rank=0, world_size=2, generation=1)
NEXT = RankInfo(rank=0, world_size=2, generation=2)


class Others(LocalTeam):
    """A team whose other worker stops, and meets this one with what ``answer`` says."""

    def __init__(self, answer: Callable[[], list[int]], *, on_look: Callable[[], None] = lambda: None) -> None:
        self._answer = answer
        self._on_look = on_look
        self.named: list[int] = []

    def is_stop_requested(self, rank_info: RankInfo) -> bool:
        self._on_look()
        return True

    def exchange(self, rank_info: RankInfo, name: str, payload: bytes, **_: Any) -> list[bytes]:
        (named,) = struct.unpack("<q", payload)
        self.named.append(named)
        return [payload, *(struct.pack("<q", step) for step in self._answer())]


def fail(error: Exception) -> Callable[[], list[int]]:
    def answer() -> list[int]:
        raise error

    return answer


def agree(team: Others) -> StopAgreement:
    """Let a worker that has done step 5 look, and wait until the meeting is over."""
    agreement = StopAgreement(team, Waits(), StopSignal())
    agreement.enter(RANK_INFO, 5)
    agreement.tick(100.0)
    wait_until(agreement._is_decided.is_set, "the end of the meeting")
    return agreement


def test_all_save_after_the_largest_step_that_one_works_on() -> None:
    team = Others(lambda: [8])
    agreement = agree(team)
    assert team.named == [6]
    assert [agreement.is_reached(step) for step in (6, 7, 8)] == [False, False, True]
    assert not agreement.has_failed()


@pytest.mark.parametrize(
    ("error", "level"),
    [(Reconfigure(1, "b failed"), None), (BarrierTimeoutError("stop", 1, 2, []), "WARNING")],
    ids=["another generation", "nobody came"],
)
def test_a_meeting_that_fails_leaves_the_worker_without_a_last_save(
    caplog: pytest.LogCaptureFixture, error: Exception, level: str | None
) -> None:
    agreement = agree(Others(fail(error)))
    assert agreement.has_failed()
    assert not agreement.is_reached(6)
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "stops" in record.getMessage()]
    assert said == ([] if level is None else [(level, f"a worker stops without a last save of all: {error}")])


def test_nothing_is_named_in_a_generation_that_is_over_when_the_coordinator_answers() -> None:
    team = Others(lambda: [8], on_look=lambda: agreement.enter(NEXT, 3))
    agreement = StopAgreement(team, Waits(), StopSignal())
    agreement.enter(RANK_INFO, 5)
    agreement.tick(100.0)
    assert agreement._named is None
    assert team.named == []


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The signals that the script's own handler of SIGTERM gets."""
    numbers: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        numbers.append(number)

    before = signal.signal(signal.SIGTERM, note)
    yield numbers
    signal.signal(signal.SIGTERM, before)


def test_a_handler_of_the_script_is_called_too_and_is_alone_again_afterwards(handled: list[int]) -> None:
    stop = StopSignal()
    stop.install()
    signal.raise_signal(signal.SIGTERM)
    assert stop.is_set()
    assert handled == [signal.SIGTERM]
    stop.release()
    other = StopSignal()
    signal.raise_signal(signal.SIGTERM)
    assert not other.is_set()
    assert handled == [signal.SIGTERM] * 2


FORKS = """
import os, signal, time
from strata.run.loop.stopping import StopSignal

maker = os.getpid()
# Python calls these in the order in which they were registered, so this one before that of the stop signal.
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
stop = StopSignal()
stop.install()
stop.release()
stop.install()
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM, status
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
os.kill(maker, signal.SIGTERM)
assert stop.is_set()
print("held")
"""


def test_a_forked_child_ends_on_a_signal_that_comes_before_python_has_prepared_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=stretch(50), check=False
    )
    assert done.stdout == "held\n", done.stderr
