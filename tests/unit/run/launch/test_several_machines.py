"""Launchers of several machines at one coordinator: they start, restart and end their workers together."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata.run.launch import launcher as launcher_module
from strata.run.launch.group.claim import LauncherRecord
from strata.run.launch.launcher import Launcher
from strata.run.launch.plan import LaunchPlan, WorkerLimitsError
from strata.run.launch.restart_policy import RestartPolicy
from tests.testbed.coordinator import coordinator_thread
from tests.testbed.pace import stretch

pytestmark = pytest.mark.full

# Each worker says where it starts; what follows says how it ends.
START = 'echo "start $TORCHELASTIC_RESTART_COUNT: $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"; '
WAIT = "while [ ! -e {go} ]; do sleep 0.02; done; "
RECOVERS = 'printf worker > "$JOB_FOLDER/lives/$WORKER_ID.restart-unit"; '


@pytest.fixture
def url() -> Iterator[str]:
    with coordinator_thread() as coordinator:
        yield f"127.0.0.1:{coordinator.grpc_port}"


@pytest.fixture(autouse=True)
def _hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launcher is a process of its own, on a host of its own, that renews its claim often."""
    numbers = iter(range(1_000))

    def record(name: str, *, nproc: int, node_rank: int) -> LauncherRecord:
        return LauncherRecord(name=name, nproc=nproc, node_rank=node_rank, host=name, pid=next(numbers), started="1")

    monkeypatch.setattr(LauncherRecord, "of_this_process", record)
    for name in ("RENEW_S", "AGREE_S", "START_S"):
        monkeypatch.setattr(launcher_module, name, 0.05)


class Machine:
    """One launcher, and what it and its workers say."""

    def __init__(self, url: str, folder: Path, node_rank: int, script: str, **fields: Any) -> None:
        self.lines: list[str] = []
        plan = {
            "command": ("sh", "-c", START + script.format(go=folder / "go", mark=folder / "mark")),
            "nproc": 1,
            "name": f"m{node_rank}",
            "home": folder / f"jobs{node_rank}",
            "coordinator_url": url,
            "nnodes": 2,
            "node_rank": node_rank,
            "restarts": RestartPolicy(first_backoff_s=0.01, max_backoff_s=0.01),
        }
        self.launcher = Launcher(LaunchPlan(**{**plan, **fields}), print_line=self._take)
        self._changed = asyncio.Event()
        self.running = asyncio.create_task(self.launcher.run())

    async def wait_for(self, words: str) -> str:
        async with asyncio.timeout(stretch(50)):
            while not self.said(words):
                self._changed.clear()
                await self._changed.wait()
        return self.said(words)[0]

    def said(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]

    def _take(self, _: str, line: bytes) -> None:
        self.lines.append(line.decode())
        self._changed.set()


async def ends(*machines: Machine) -> list[int]:
    async with asyncio.timeout(stretch(50)):
        return list(await asyncio.gather(*(machine.running for machine in machines)))


def machines(url: str, folder: Path, script: str, *, count: int = 2, **fields: Any) -> list[Machine]:
    return [Machine(url, folder, node_rank, script, nnodes=count, **fields) for node_rank in range(count)]


def places(*launched: Machine) -> dict[str, set[str]]:
    """Return where the workers of each start meet."""
    found: dict[str, set[str]] = {}
    for machine in launched:
        for line in machine.said("start "):
            if " at 127" in line:
                number = line.split("start ")[1].split(":")[0]
                found.setdefault(number, set()).add(line.rpartition(" ")[2])
    return found


DIES_ONCE = 'if [ "$RANK" = {{rank}} ] && [ ! -e {mark} ]; then touch {mark}; exit 3; fi; ' + WAIT


@pytest.mark.parametrize("rank", [0, 2])
async def test_whichever_machine_a_rank_dies_on_all_start_again_and_that_counts_once(
    url: str, tmp_path: Path, rank: int
) -> None:
    launched = machines(url, tmp_path, DIES_ONCE.replace("{{rank}}", str(rank)), count=3)
    for machine in launched:
        await machine.wait_for("start 1:")
    (tmp_path / "go").touch()
    assert await ends(*launched) == [0, 0, 0]
    found = places(*launched)
    assert [len(each) for each in found.values()] == [1, 1], found
    assert found["0"] != found["1"]
    assert sum(len(machine.said("restart 1 in")) for machine in launched) == 1
    for machine in launched:
        assert machine.launcher._restarts.total == 1


async def test_two_ranks_that_die_at_once_on_two_machines_are_one_restart(url: str, tmp_path: Path) -> None:
    script = 'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exit 3; fi; '
    launched = machines(url, tmp_path, script, restarts=RestartPolicy(max_restarts=1, first_backoff_s=0.01))
    assert await ends(*launched) == [0, 0]
    assert {machine.launcher._restarts.recent for machine in launched} == {1}


async def test_the_restarts_of_all_machines_together_are_limited(url: str, tmp_path: Path) -> None:
    # First the rank of one machine dies, then that of the other.
    script = 'if [ "$RANK" = "$TORCHELASTIC_RESTART_COUNT" ]; then exit 3; fi; ' + WAIT
    launched = machines(url, tmp_path, script, restarts=RestartPolicy(max_restarts=1, first_backoff_s=0.01))
    assert await ends(*launched) == [3, 3]
    (said,) = launched[1].said("failed: ")
    assert "1 restarts in 3600 s are used up" in said
    (said,) = launched[0].said("failed: ")
    assert "the launcher of node rank 1 gave up: 1 restarts in 3600 s are used up" in said
    assert "first cause: " in said


async def test_a_rank_that_has_finished_starts_again_when_one_of_another_machine_dies(url: str, tmp_path: Path) -> None:
    script = 'if [ "$RANK.$TORCHELASTIC_RESTART_COUNT" = 1.0 ]; then ' + WAIT + "exit 3; fi; "
    launched = machines(url, tmp_path, script)
    await launched[0].wait_for("the workers here have finished; waiting for those of node rank 1")
    (tmp_path / "go").touch()
    assert await ends(*launched) == [0, 0]
    assert launched[0].said("start 1:")


async def test_a_launcher_that_was_stopped_is_waited_for_and_may_be_replaced(url: str, tmp_path: Path) -> None:
    first, second = machines(url, tmp_path, WAIT)
    await second.wait_for("start 0:")
    second.launcher.stop(signal.SIGTERM)
    assert await ends(second) == [143]
    await first.wait_for("node rank 1 left, or was lost; all workers start again together")
    replacement = Machine(url, tmp_path, 1, WAIT, name="other", nproc=2)
    await replacement.wait_for("1 of 3")
    await first.wait_for("0 of 3")
    (tmp_path / "go").touch()
    assert await ends(first, replacement) == [0, 0]
    assert first.launcher._restarts.total == 0, "that a machine is replaced is no failure of the script"


async def test_with_enough_workers_the_others_go_on_without_a_machine(url: str, tmp_path: Path) -> None:
    first, second = machines(url, tmp_path, WAIT, min_workers=1)
    await first.wait_for("0 of 2")
    await second.wait_for("1 of 2")
    first.launcher.stop(signal.SIGTERM)
    assert await ends(first) == [143]
    await second.wait_for("start 1: 0 of 1")
    (tmp_path / "go").touch()
    assert await ends(second) == [0]


async def test_workers_that_recover_by_themselves_are_not_restarted_for_a_machine_that_comes_back(
    url: str, tmp_path: Path
) -> None:
    first, second = machines(url, tmp_path, RECOVERS + "echo ready; " + WAIT)
    await first.wait_for("ready")
    await second.wait_for("ready")
    second.launcher.stop(signal.SIGTERM)
    assert await ends(second) == [143]
    replacement = Machine(url, tmp_path, 1, RECOVERS + WAIT)
    await replacement.wait_for("start ")
    (tmp_path / "go").touch()
    assert await ends(first, replacement) == [0, 0]
    assert len(first.said("start ")) == 1


async def test_a_machine_that_does_not_come_back_ends_the_others_with_its_name(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machines(url, tmp_path, WAIT)
    await first.wait_for("start 0:")
    await second.wait_for("start 0:")
    monkeypatch.setattr(launcher_module, "GATHER_S", 0.2)
    second.launcher.stop(signal.SIGTERM)
    assert await ends(first, second) == [1, 143]
    (said,) = first.said("failed: ")
    assert "waited 0.2 s for the launchers of 2 machines, and node rank 1 did not come" in said


async def test_a_run_that_gave_up_does_not_spoil_the_next(url: str, tmp_path: Path) -> None:
    for expected in (3, 0):
        launched = machines(url, tmp_path, f"exit {expected}", restarts=RestartPolicy(max_restarts=0))
        assert await ends(*launched) == [expected] * 2
        assert places(*launched).keys() == {"0"}


async def test_the_machines_that_are_waited_for_are_named_also_when_none_is_there_yet(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "TOLD_AT_S", (0.0,))
    monkeypatch.setattr(launcher_module, "TELL_AGAIN_S", 0.05)
    last = Machine(url, tmp_path, 2, "exit 0", nnodes=3)
    await last.wait_for("waiting for the launchers of 2 of 3 machines (node ranks 0, 1)")
    first = Machine(url, tmp_path, 0, "exit 0", nnodes=3)
    await last.wait_for("waiting for the launchers of 1 of 3 machines (node rank 1)")
    second = Machine(url, tmp_path, 1, "exit 0", nnodes=3)
    assert await ends(first, second, last) == [0, 0, 0]
    for machine in (first, second, last):
        assert not [line for line in machine.said("waiting for") if " 0 of 3" in line or "ranks )" in line]


@pytest.mark.parametrize(
    ("limits", "problem"),
    [({"min_workers": 5}, "3 workers are less than --min 5"), ({"max_workers": 2}, "3 workers are more than max=2")],
)
async def test_machines_that_start_too_many_or_too_few_workers_are_refused_before_any_starts(
    url: str, tmp_path: Path, limits: dict[str, int], problem: str
) -> None:
    # The second one starts two workers, which the first one cannot know before; the first one tells the second.
    first = Machine(url, tmp_path, 0, "exit 0", **limits)
    second = Machine(url, tmp_path, 1, "exit 0", nproc=2)
    with pytest.raises(WorkerLimitsError, match=problem):
        await first.running
    assert await ends(second) == [1]
    assert problem in second.said("failed: ")[0]
    assert not first.said("start 0")
    assert not second.said("start 0")
