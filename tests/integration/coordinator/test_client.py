"""A client in a process of its own, as scripts use it: it comes, stays, goes and says nothing that it need not."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strata.client.client import Client
from strata.cluster import commands as c
from strata.cluster.values import PartReport, Span
from strata.errors import ClientClosedError
from tests.testbed.client_process import worker_process
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.network.proxy import proxying
from tests.testbed.pace import stretch
from tests.testbed.process import start
from tests.testbed.waiting import wait_until

FIRST_API = """
import asyncio, sys
from dtruntime import TrainingOrchestrator

async def main():
    worker = TrainingOrchestrator("w", sys.argv[1])
    await worker.register_worker()
    await worker.heartbeat(step=1)
    await worker.wait_barrier("start")
    await worker.deregister()

asyncio.run(main())
"""
LEAVES_LATE = """
import sys
from strata.client.client import Client
client = Client(sys.argv[1], "w")
client.wait_registered()
print("in", flush=True)
sys.stdin.readline()
client.close()
print("closed", flush=True)
"""


@pytest.fixture
def service(tmp_path: Path) -> CoordinatorProcess:
    return CoordinatorProcess(tmp_path, "--lease", "4", "--grace", "1")


def test_a_script_of_the_first_api_prints_nothing_of_its_own(service: CoordinatorProcess) -> None:
    with service.serving():
        for _ in range(3):
            process = start(
                [sys.executable, "-c", FIRST_API, service.url],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.communicate(timeout=stretch(30)) == ("", "")
            assert process.returncode == 0


def test_closing_while_the_coordinator_is_away_is_quiet_and_bounded(service: CoordinatorProcess) -> None:
    with service.serving() as coordinator:
        process = start(
            [sys.executable, "-c", LEAVES_LATE, service.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        coordinator.kill()
        coordinator.wait()
        assert process.communicate("\n", timeout=stretch(30)) == ("closed\n", "")
        assert process.returncode == 0


def test_closing_a_client_ends_every_call_that_waits_with_an_error_that_says_so(service: CoordinatorProcess) -> None:
    with service.serving() as coordinator:
        client = Client(service.url, "w")
        generation = client.wait_registered().generation
        number = client.begin_part(1, generation)
        report, span = PartReport("step_1/a", 1, "00"), Span(0, 0, 1)
        progress: dict[str, Any] = {"generation": generation, "dataset_id": "d", "epoch": 0, "step": 1}

        def commit() -> Future[None]:
            return client.commit_part(number, epoch=0, report=report, timeout_s=600, on_wait=lambda _: None)

        blocking: list[Callable[[], object]] = [
            lambda: client.meet("b", timeout_s=600, generation=generation),
            client.heartbeat,
            lambda: client.wait_registered(600),
            lambda: client.ask(c.GetKey(key="k")),
        ]
        promising: list[Callable[[], Future[Any]]] = [
            commit,
            lambda: client.tell(c.GetKey(key="k")),
            lambda: client.report(**progress, spans=(span,)),
            lambda: client.find_restore_point(timeout_s=600),
            lambda: client.adopt_checkpoints([]),
            lambda: client.adopt_rewind(1, 1, "bad data"),
            lambda: client.reject_checkpoint(1, "damaged"),
            lambda: client.forget_checkpoints([1]),
        ]
        # Nothing is answered from now on.
        coordinator.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(len(blocking)) as threads:
            calls = [threads.submit(call) for call in blocking] + [promise() for promise in promising]
            # Behind all that the threads have said by then: they have begun when it is there.
            wait_until(lambda: len(client._driver._answers) >= len(calls))
            client.close()
            for call in calls:
                with pytest.raises(ClientClosedError, match="because the Client of worker 'w' was closed"):
                    call.result(stretch(30))
        for late in (*blocking, *promising, lambda: client.begin_part(2, generation)):
            with pytest.raises(ClientClosedError):
                late()
        coordinator.send_signal(signal.SIGCONT)


def test_a_client_that_nobody_holds_leaves_its_job(service: CoordinatorProcess) -> None:
    with service.serving():
        client = Client(service.url, "forgotten")
        client.wait_registered()
        del client
        gc.collect()
        wait_until(lambda: service.states()["forgotten"] == "failed")


def test_a_connection_on_which_nothing_gets_through_is_left_before_the_lease_ends(tmp_path: Path) -> None:
    with proxying() as proxy:
        service = CoordinatorProcess(tmp_path, "--lease", "6", "--advertise-channel", f"127.0.0.1:{proxy.port}")
        proxy.retarget(service.channel_port)
        with service.serving(), Client(service.url, "w") as client:
            generation = client.wait_registered().generation
            wait_until(lambda: proxy.accepted == 1)
            proxy.swallow()
            wait_until(lambda: proxy.accepted == 2)
            wait_until(lambda: client.transport == "channel")
            assert client.heartbeat(timeout_s=stretch(20)).generation == generation
            assert service.states() == {"w": "idle"}


@pytest.mark.slow
def test_a_coordinator_that_was_frozen_for_longer_than_the_lease_fails_nobody(service: CoordinatorProcess) -> None:
    with service.serving() as coordinator, worker_process(service.url, "a"), worker_process(service.url, "b"):
        generation = service.job().generation
        coordinator.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            coordinator.wait(10)
        coordinator.send_signal(signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            coordinator.wait(3)
        assert service.job().generation == generation
        assert set(service.states().values()) == {"idle"}


ENDS = [
    ("client.close()", None, "finished"),
    ("raise ValueError('no luck')", None, "failed"),
    ("sys.stdin.readline()", signal.SIGINT, "stopped"),
    ("sys.stdin.readline()", signal.SIGKILL, "failed"),
]


@pytest.mark.parametrize(
    ("last_line", "number", "state", "is_block"),
    [
        # Without a block nothing tells an interpreter's own functions with which code it exits.
        ("sys.exit(143)", None, "preempted", True),
        *((*each, is_block) for each in ENDS for is_block in (True, False)),
    ],
)
def test_script_that_uses_a_client_says_how_it_ended(
    service: CoordinatorProcess, last_line: str, number: signal.Signals | None, state: str, is_block: bool
) -> None:
    opened = (
        "with Client(sys.argv[1], sys.argv[2]) as client:" if is_block else "client = Client(*sys.argv[1:])\nif True:"
    )
    script = f"""
import sys
from strata.client.client import Client
{opened}
    client.wait_registered()
    print("in", flush=True)
    {last_line}
"""
    with service.serving(), worker_process(service.url, "a", script=script) as worker:
        if number is not None:
            worker.send_signal(number)
        worker.wait()
        wait_until(lambda: service.job().state == state, lambda: f"{state}: {service.job()}")
