"""The launcher within the test's process, at a coordinator in a thread: what it says and does when things go wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata.client.unary import get_key
from strata.errors import CoordinatorLostError
from strata.run.exits import HUNG, PREEMPTED
from strata.run.job_folder import STOPPED
from strata.run.launch import launcher as launcher_module
from strata.run.launch import standalone
from strata.run.launch.group.claim import JobClaim, JobTakenError, LauncherRecord
from strata.run.launch.launcher import Launcher
from strata.run.launch.plan import LaunchPlan, NodesMissingError
from strata.run.launch.recall import lacks_workers
from strata.run.launch.restart_policy import RestartPolicy
from strata.run.launch.standalone import StandaloneCoordinator
from strata.run.launch.worker_process import MAX_LINE_BYTES, WorkerProcess
from tests.testbed.coordinator import coordinator_thread
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports


@pytest.fixture
def url() -> Iterator[str]:
    with coordinator_thread() as coordinator:
        yield f"127.0.0.1:{coordinator.grpc_port}"


@pytest.fixture
def nobody() -> str:
    """An address where no coordinator is."""
    return f"127.0.0.1:{free_ports(1)[0]}"


class Launched:
    """A launcher, what it and its workers say, and what is done when they say something."""

    def __init__(self, url: str, home: Path, *command: str, **fields: Any) -> None:
        plan = {"command": command or ("true",), "nproc": 1, "name": "box", "home": home, "coordinator_url": url}
        self.launcher = Launcher(LaunchPlan(**{**plan, **fields}), print_line=self._take)
        self.lines: list[str] = []
        self._reactions: list[tuple[str, Callable[[], None]]] = []

    def when(self, words: str, react: Callable[[], None]) -> None:
        """Do something when a line says this, once."""
        self._reactions.append((words, react))

    async def run(self) -> int:
        async with asyncio.timeout(stretch(50)):
            return await self.launcher.run()

    def _take(self, _: str, line: bytes) -> None:
        self.lines.append(line.decode())
        for each in [each for each in self._reactions if each[0] in self.lines[-1]]:
            self._reactions.remove(each)
            each[1]()


async def test_a_launcher_gives_up_on_a_coordinator_that_does_not_come(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "COORDINATOR_S", 0.0)
    with pytest.raises(CoordinatorLostError, match=f"the coordinator at {nobody} cannot be reached"):
        await Launched(nobody, tmp_path).run()


async def test_a_launcher_that_waits_for_its_coordinator_is_ended_by_one_signal(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "TOLD_AT_S", (0.0,))
    launched = Launched(nobody, tmp_path)
    launched.when(f"waiting for the coordinator at {nobody}", lambda: launched.launcher.stop(signal.SIGTERM))
    assert await launched.run() == 128 + signal.SIGTERM
    assert launched.lines[-1] == (
        "strata run: stopped by SIGTERM: the coordinator cannot be asked what is saved; start it again to go on"
    )


async def test_machines_that_do_not_come_are_named(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    find_others = JobClaim.find_others

    def look(claim: JobClaim, seen: dict[int, LauncherRecord]) -> list[LauncherRecord]:
        clock.now_s += launcher_module.GATHER_S + 1
        return find_others(claim, seen)

    monkeypatch.setattr(launcher_module, "time", clock)
    monkeypatch.setattr(launcher_module, "RENEW_S", 0.0)
    monkeypatch.setattr(JobClaim, "find_others", look)
    with pytest.raises(NodesMissingError) as caught:
        await Launched(url, tmp_path, job_id="j", nnodes=3, node_rank=1).run()
    assert str(caught.value) == (
        "job 'j' waited 600 s for the launchers of 3 machines, and node ranks 0, 2 did not come; start them, or "
        "lower --nnodes"
    )
    assert get_key(url, "j", "launcher/node/1").value == b"", "another launcher may have the claim now"


async def test_two_machines_with_one_name_are_refused(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "RENEW_S", 0.0)
    record = LauncherRecord(name="box", nproc=1, node_rank=1, host="elsewhere", pid=1, started="1")
    other = JobClaim(url, "default", record, nnodes=2)
    await asyncio.to_thread(other.take, takeover=True)

    async def renew_for_ever() -> None:
        while True:
            await asyncio.to_thread(other.renew)

    renewing = asyncio.create_task(renew_for_ever())
    with pytest.raises(JobTakenError, match="run already by launcher 'box' on elsewhere") as caught:
        await Launched(url, tmp_path, nnodes=2, node_rank=0).run()
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)
    assert caught.value.holder.node_rank == 1


async def test_workers_leave_when_another_launcher_took_the_job_over_during_an_outage(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "RENEW_S", 0.02)
    launched = Launched(url, tmp_path)
    mine = JobClaim(url, "default", LauncherRecord.of_this_process("box", nproc=1, node_rank=0), nnodes=1)
    await asyncio.to_thread(mine.take, takeover=False)
    other = LauncherRecord(name="box", nproc=1, host="elsewhere", pid=1, started="1")
    await asyncio.to_thread(JobClaim(url, "default", other, nnodes=1).take, takeover=True)
    renew, outages = mine.renew, iter([True, True])

    def renew_late() -> LauncherRecord | None:
        if next(outages, False):
            raise CoordinatorLostError(url, waited_s=0.0)
        return renew()

    monkeypatch.setattr(mine, "renew", renew_late)
    renewing = asyncio.create_task(launched.launcher._renew(mine))
    async with asyncio.timeout(stretch(20)):
        await launched.launcher._stopping.wait()
    renewing.cancel()
    assert launched.lines == [f"strata run: the job was taken over by {other}; the workers here leave"]


def test_a_job_of_which_nobody_knows_lacks_no_workers(nobody: str) -> None:
    assert lacks_workers(nobody, "default") is False


@pytest.mark.full
async def test_a_worker_that_is_about_to_be_started_again_does_not_hold_up_a_stop(tmp_path: Path, url: str) -> None:
    launched = Launched(url, tmp_path, "false", restarts=RestartPolicy(first_backoff_s=1_000, max_backoff_s=1_000))
    launched.when("restart 1 in", lambda: launched.launcher.stop(signal.SIGTERM))
    assert await launched.run() == 128 + signal.SIGTERM
    assert [line for line in launched.lines if "restart" in line] == launched.lines[:1]
    assert "stopped by SIGTERM: nothing was saved since this start" in launched.lines[-1]


STUBBORN = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")


@pytest.mark.full
async def test_a_worker_that_is_not_gone_after_the_grace_is_killed(tmp_path: Path, url: str) -> None:
    launched = Launched(url, tmp_path, *STUBBORN, grace_s=0.05)
    launched.when("ready", lambda: launched.launcher.stop(signal.SIGTERM))
    assert await launched.run() == 128 + signal.SIGTERM
    assert "strata run: SIGTERM: the workers save and leave, within 0.05 s" in launched.lines


@pytest.mark.full
async def test_workers_that_are_waited_for_at_the_end_are_named(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "TOLD_AT_S", (0.05,))
    launched = Launched(url, tmp_path, *STUBBORN, nproc=2, grace_s=1_000.0)

    def stop_when_both_are_ready() -> None:
        if {"[0] ready", "[1] ready"} <= set(launched.lines):
            launched.launcher.stop(signal.SIGINT)

    launched.when("[0] ready", stop_when_both_are_ready)
    launched.when("[1] ready", stop_when_both_are_ready)
    launched.when("waiting for 2 workers to end (ranks 0, 1)", lambda: launched.launcher.stop(signal.SIGINT))
    assert await launched.run() == 128 + signal.SIGINT


@pytest.mark.full
async def test_a_worker_that_was_told_to_leave_is_not_missed_where_enough_are_left(tmp_path: Path, url: str) -> None:
    script = f'if [ "$RANK" = 1 ]; then exit {PREEMPTED}; fi; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done'
    launched = Launched(url, tmp_path, "sh", "-c", script, nproc=2, min_workers=1)
    launched.when("box-1 (rank 1) was told to stop (SIGTERM), and left", (tmp_path / "go").touch)
    assert await launched.run() == 0
    (said,) = launched.lines[1:]
    assert "; the job goes on with 1 worker here; they start again, because they cannot recover from this" in said


@pytest.mark.full
async def test_workers_that_recover_by_themselves_go_on_when_another_one_leaves(tmp_path: Path, url: str) -> None:
    note = 'printf worker > "$JOB_FOLDER/lives/$WORKER_ID.restart-unit"; echo "$RANK starts"'
    script = f'{note}; if [ "$RANK" = 1 ]; then exit {PREEMPTED}; fi; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done'
    launched = Launched(url, tmp_path, "sh", "-c", script, nproc=2, min_workers=1)
    launched.when("box-1 (rank 1) was told to stop (SIGTERM), and left", (tmp_path / "go").touch)
    assert await launched.run() == 0
    assert sorted(line for line in launched.lines if "starts" in line) == ["[0] 0 starts", "[1] 1 starts"]
    assert any(line.endswith("; the job goes on with 1 worker here") for line in launched.lines)


@pytest.mark.full
async def test_a_hang_that_held_the_interpreters_lock_is_told_from_a_failure(tmp_path: Path, url: str) -> None:
    # What faulthandler leaves: a file of this name with stacks in it, and code 1.
    script = 'echo stacks > "$JOB_FOLDER/stacks/stacks-$WORKER_ID-$$-interpreter-lock.txt"; exit 1'
    launched = Launched(url, tmp_path, "sh", "-c", script, restarts=RestartPolicy(max_restarts=0))
    assert await launched.run() == HUNG
    assert "first cause: box-0 (rank 0) hung, and was ended by its watchdog" in launched.lines[-1]


@pytest.mark.full
async def test_a_script_that_hides_that_it_was_stopped_has_not_finished(tmp_path: Path) -> None:
    life = tmp_path / "life"
    command = ["sh", "-c", f"printf {STOPPED} > {life}"]
    worker = WorkerProcess.start("w", 0, command, {}, lambda *_: None, life=life)
    ended = await worker.wait()
    assert (ended.code, ended.is_preempted) == (PREEMPTED, True)


@pytest.mark.full
async def test_a_line_that_never_ends_is_passed_on_in_pieces(tmp_path: Path) -> None:
    size = 5 * MAX_LINE_BYTES + 1
    lines: list[bytes] = []
    command = [sys.executable, "-I", "-S", "-c", f"print('x' * {size} + 'end')"]
    worker = WorkerProcess.start("w", 0, command, {}, lambda _, line: lines.append(line))
    assert (await worker.wait()).code == 0
    assert b"".join(lines) == b"x" * size + b"end"
    assert len(lines) > 1
    assert max(map(len, lines)) <= 2 * MAX_LINE_BYTES


@pytest.mark.full
async def test_a_standalone_coordinator_that_refuses_its_options_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CoordinatorLostError):
        async with StandaloneCoordinator(options=["--no-such-option"]):
            pass
    assert "the coordinator did not start; the end of its log" in caplog.text
    assert "--no-such-option" in caplog.text


@pytest.mark.full
async def test_a_standalone_coordinator_that_is_not_ready_in_time_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standalone, "READY_S", 0.0)
    coordinator = StandaloneCoordinator()
    with pytest.raises(CoordinatorLostError):
        await coordinator.__aenter__()
    with pytest.raises(ProcessLookupError):
        os.kill(coordinator.pid, 0)


@pytest.mark.full
async def test_a_standalone_coordinator_without_a_folder_leaves_no_files() -> None:
    async with StandaloneCoordinator() as coordinator:
        folder = coordinator._folder
        assert folder is not None
        assert (folder / "journal.db").exists()
    assert not folder.exists()
