"""Real processes, real signals: whatever dies, nothing that was told is lost, and the others are told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from strata import DatasetRegistry, TrainingOrchestrator
from strata.client.client import Client
from strata.client.driver import Driver
from strata.client.unary import get_key, set_key
from strata.cluster import commands as c
from strata.cluster.replies import KeyValue
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.errors import BarrierTimeoutError, DatasetConflictError
from tests.testbed.client_process import WORKER, worker_process
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import end, read_line, run_program, start
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.full


@pytest.fixture
def service(tmp_path: Path) -> CoordinatorProcess:
    return CoordinatorProcess(tmp_path)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_worker_that_dies_or_stops_is_found_out(service: CoordinatorProcess, how: signal.Signals) -> None:
    with service.serving(), worker_process(service.url, "dies") as dies, worker_process(service.url, "stays"):
        before = service.job().generation
        dies.send_signal(how)
        wait_until(lambda: service.states()["dies"] == "failed")
        assert service.states()["stays"] != "failed"
        assert service.job().generation == before + 1


def test_a_repeated_change_of_a_key_destroys_no_one_s_value_through_kills_of_the_coordinator(
    service: CoordinatorProcess,
) -> None:
    """The replies to a were lost; the coordinator is killed after each change that another one makes meanwhile."""

    def change(value: bytes, token: int, writer: str) -> KeyValue:
        with service.serving() as process:
            found = set_key(service.url, "llm", "lock", value, token=token, writer=writer)
            process.send_signal(signal.SIGKILL)
            process.wait()
        return found

    mine = change(b"a", 0, "a")
    removed = change(b"", mine.token, "a/remove")
    theirs = change(b"b", 0, "b")
    assert theirs.is_set
    assert theirs.token > mine.token
    assert change(b"a", 0, "a") == mine
    assert change(b"", mine.token, "a/remove") == removed
    assert not change(b"late", mine.token, "late").is_set
    with service.serving():
        assert get_key(service.url, "llm", "lock") == KeyValue(value=b"b", token=theirs.token)


# A worker of another language: unary calls alone, and heartbeats from a thread while it waits.
UNARY = """
import sys, threading, time, grpc
from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
url, name = sys.argv[1:]
stub = stubs.CoordinatorStub(grpc.insecure_channel(url))
who = {"worker_id": name, "incarnation": "1"}
lease_s = stub.RegisterWorker(pb.RegisterWorker(**who), wait_for_ready=True).lease_s
def beat():
    while True:
        stub.Heartbeat(pb.Heartbeat(**who))
        time.sleep(lease_s / 6)
threading.Thread(target=beat, daemon=True).start()
print("registered", flush=True)
generation = int(sys.stdin.readline())
print("waits", flush=True)
stub.WaitBarrier(pb.ArriveAtBarrier(**who, generation=generation, name="b", expected=3, timeout_s=600))
"""


def test_a_frozen_unary_client_at_a_barrier_is_found_out_and_one_that_beats_stays(tmp_path: Path) -> None:
    lease_s = stretch(2)
    service = CoordinatorProcess(tmp_path, "--lease", str(lease_s))
    with service.serving(), ExitStack() as stack:
        clients = []
        for name in ("frozen", "well"):
            command = [sys.executable, "-c", UNARY, service.url, name]
            pipe = subprocess.PIPE
            clients.append(start(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True))
            stack.callback(end, clients[-1])
            assert read_line(clients[-1]) == "registered\n"
        generation = service.job().generation
        for client in clients:
            assert client.stdin is not None
            client.stdin.write(f"{generation}\n")
            client.stdin.flush()
            assert read_line(client) == "waits\n"
        wait_until(lambda: [each.arrived for each in service.job().barriers] == [2])
        time.sleep(2 * lease_s)
        assert set(service.states().values()) <= {"idle", "initializing"}, "who beats outlives its lease at a barrier"
        clients[0].send_signal(signal.SIGSTOP)
        wait_until(lambda: service.states()["frozen"] == "failed")
        assert service.states()["well"] != "failed"


# Holds the interpreter's lock, as a library may that does not let go of it, and then says who is there.
HOLDING = WORKER.replace(
    "    stay()",
    """
    import ctypes
    ctypes.PyDLL(None).sleep(int(sys.argv[3]))
    print(client.heartbeat().generation, flush=True)
    stay()
""",
)


def holding_process(url: str, seconds: int, script: str = HOLDING) -> AbstractContextManager[subprocess.Popen[str]]:
    return worker_process(url, "holds", str(seconds), script=script)


def test_a_worker_whose_training_thread_holds_the_interpreter_for_several_leases_stays(tmp_path: Path) -> None:
    service = CoordinatorProcess(tmp_path, "--lease", "1", "--grace", "1")
    with service.serving(), holding_process(service.url, 5) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "1\n"
        assert service.states() == {"holds": "idle"}
        assert service.job().generation == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_worker_that_dies_or_stops_while_it_holds_the_interpreter_is_found_out(
    tmp_path: Path, how: signal.Signals
) -> None:
    service = CoordinatorProcess(tmp_path, "--lease", "1", "--grace", "1")
    with service.serving(), holding_process(service.url, 60) as worker:
        wait_until(lambda: service.job().workers[0].silent_s > 2)
        assert service.states() == {"holds": "idle"}
        (keep_alive,) = children_of(worker.pid)
        worker.send_signal(how)
        wait_until(lambda: service.states() == {"holds": "failed"})
        if how is signal.SIGKILL:
            worker.wait()
            wait_until(lambda: not Path(f"/proc/{keep_alive}").exists())


def test_a_worker_that_holds_the_interpreter_for_longer_than_it_may_is_failed(tmp_path: Path) -> None:
    service = CoordinatorProcess(tmp_path, "--lease", "1", "--grace", "1")
    script = HOLDING.replace("sys.argv[2])", "sys.argv[2], keep_alive_s=3)")
    with service.serving(), holding_process(service.url, 60, script):
        wait_until(lambda: service.job().workers[0].silent_s > 2)
        assert service.states() == {"holds": "idle"}
        wait_until(lambda: service.states() == {"holds": "failed"})


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] or [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


@pytest.mark.quick
def test_a_worker_that_ends_says_goodbye(service: CoordinatorProcess) -> None:
    with service.serving(), worker_process(service.url, "a") as worker:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
        wait_until(lambda: service.states()["a"] == "left")


@pytest.mark.quick
def test_a_coordinator_that_is_killed_comes_back_with_everything_and_fails_nobody(service: CoordinatorProcess) -> None:
    with ExitStack() as stack:
        with service.serving() as process:
            for worker_id in "abc":
                stack.enter_context(worker_process(service.url, worker_id))
            registry = DatasetRegistry(service.url)
            registry.register("d", "/data", total_samples=100, shard_size=10)
            before = service.job()
            process.kill()
            process.wait()
        with service.serving():
            wait_until(lambda: all(worker.silent_s < 3 for worker in service.job().workers))
            after = service.job()
            assert after.generation == before.generation
            assert [w.worker_id for w in after.workers if w.state != "failed"] == ["a", "b", "c"]
            assert [d.dataset_id for d in after.datasets] == ["d"]


@pytest.mark.quick
def test_sigterm_drains_and_ends_well(service: CoordinatorProcess) -> None:
    with service.serving() as process:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 0


def test_a_client_in_a_forked_child_is_a_clear_error_and_the_parent_goes_on(service: CoordinatorProcess) -> None:
    script = WORKER.replace(
        "    stay()",
        "    import os\n"
        "    if os.fork() == 0:\n"
        "        try:\n            client.heartbeat()\n"
        "        except RuntimeError as error:\n            print(error, flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    print(client.heartbeat().world_size, flush=True)",
    )
    with service.serving():
        done = run_program([sys.executable, "-c", script, service.url, "a"], capture_output=True, text=True)
    assert done.stdout == "in\na Client does not survive a fork; make one in the new process\n1\n"


def test_a_forked_child_that_lives_on_does_not_hold_up_the_goodbye(service: CoordinatorProcess) -> None:
    script = WORKER.replace(
        "    stay()",
        "    import os, signal\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        time.sleep(600)\n"
        "os.kill(child, signal.SIGKILL)",
    )
    with service.serving():
        done = run_program([sys.executable, "-c", script, service.url, "a"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "in\n"), done.stderr
        assert service.states() == {"a": "left"}


def test_the_first_api_joins_meets_and_reads(service: CoordinatorProcess) -> None:
    async def worker(rank: int) -> list[int]:
        orchestrator = TrainingOrchestrator(
            worker_id=f"worker-{rank}", coordinator_url=f"http://{service.url}", world_size=3, rank=rank
        )
        await orchestrator.register_worker(ip="192.168.1.10", port=8080)
        registry = DatasetRegistry(f"http://{service.url}")
        parameters = {"total_samples": 1_281_167, "shard_size": 10_000, "shuffle": True}
        await asyncio.to_thread(registry.register, "imagenet", "/data/imagenet", "parquet", **parameters)
        await orchestrator.wait_barrier("epoch_0")
        shards = await asyncio.to_thread(registry.get_shard, "imagenet", worker_rank=rank, epoch=0)
        assert await orchestrator.latest_checkpoint() is None
        heard = await orchestrator.heartbeat(step=1)
        assert heard is not None
        assert heard.world_size == 3
        await orchestrator.wait_barrier("end")
        await orchestrator.deregister()
        return [shard.shard_id for shard in shards]

    async def job() -> list[list[int]]:
        return await asyncio.gather(*(worker(rank) for rank in range(3)))

    with service.serving():
        shards = asyncio.run(job())
        assert sorted(shard for mine in shards for shard in mine) == list(range(129))
        registry = DatasetRegistry(service.url)
        with pytest.raises(DatasetConflictError):
            registry.register("imagenet", "/data", total_samples=5, shard_size=1)


def test_the_first_api_works_alone() -> None:
    async def job() -> None:
        orchestrator = TrainingOrchestrator(worker_id="w", world_size=1, rank=0)
        assert (await orchestrator.register_worker()).rank == 0
        await orchestrator.wait_barrier("b")
        assert await orchestrator.heartbeat() is None
        assert await orchestrator.latest_checkpoint() is None
        await orchestrator.deregister()

    asyncio.run(job())
    registry = DatasetRegistry()
    registry.register("d", "/data", total_samples=95, shard_size=10)
    assert [shard.shard_id for shard in registry.get_shard("d", worker_rank=0)] == list(range(10))
    with pytest.raises(ValueError, match="rank is 3 in a world of 2"):
        TrainingOrchestrator("w", world_size=2, rank=3)


@pytest.mark.quick
def test_a_blocking_client_meets_and_learns_who_is_missing(service: CoordinatorProcess) -> None:
    with service.serving(), Client(service.url, "a") as a, Client(service.url, "b") as b:
        a.wait_registered()
        b.wait_registered()
        wait_until(lambda: a.heartbeat().world_size == 2)
        assert (a.transport, b.transport) == ("channel", "channel")
        with pytest.raises(BarrierTimeoutError, match="missing b"):
            a.meet("never", timeout_s=0.2)


async def test_five_hundred_workers_register_at_once_and_each_has_its_rank(tmp_path: Path) -> None:
    config = CoordinatorConfig(
        grpc_address="127.0.0.1:0", channel_address="127.0.0.1:0", state=f"sqlite://{tmp_path}/j.db"
    )
    async with Coordinator(config) as coordinator, asyncio.TaskGroup() as group:
        url = f"127.0.0.1:{coordinator.grpc_port}"
        connections = [Driver(url, c.RegisterWorker(worker_id=f"w{number}", incarnation="1")) for number in range(500)]
        tasks = [group.create_task(connection.run()) for connection in connections]
        await asyncio.gather(*(connection.heartbeat() for connection in connections))
        ranks = {connection.protocol.rank_info.rank for connection in connections}
        assert ranks == set(range(500))
        for task in tasks:
            task.cancel()
