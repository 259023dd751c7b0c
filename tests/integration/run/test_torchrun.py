"""Real torchrun, two nodes on this machine, gloo: the rendezvous is the coordinator's, and survives what dies."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strata.client.unary import set_key
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.pace import stretch
from tests.testbed.process import end, start

if TYPE_CHECKING:
    from strata.cluster.replies import KeyValue
    from strata.integrations.torchrun import CoordinatorRendezvous

pytestmark = [pytest.mark.part("torch"), pytest.mark.timeout(240), pytest.mark.xdist_group("whole runs")]

# Trains until it is told to end. What tells one life of a rank from the next is its process: torchrun counts a restart
# only where a worker failed, and not where an agent saw a change among the nodes before its own worker did.
TRAIN = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, ended = dist.get_rank(), torch.zeros(1)
while not ended:
    ended[0] = (folder / "end").exists()
    dist.all_reduce(ended)
    (folder / f"new-{rank}").write_text(f"{os.getpid()} {dist.get_world_size()}")
    (folder / f"new-{rank}").replace(folder / f"rank-{rank}")
    time.sleep(0.02)
(folder / f"done-{rank}").write_text(str(os.getpid()))
dist.destroy_process_group()
"""


class Nodes:
    """torchrun agents, each as on a machine of its own, that share a folder to look into."""

    def __init__(self, stack: ExitStack, folder: Path, url: str) -> None:
        self._stack = stack
        self._url = url
        self.folder = folder
        self._script = folder / "train.py"
        self._script.write_text(TRAIN)

    def start(self, nodes: str = "2") -> subprocess.Popen[bytes]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"]
        torchrun += ["--rdzv-backend=strata", f"--rdzv-endpoint={self._url}", "--max-restarts=3"]
        torchrun += ["--local-addr=127.0.0.1", "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1"]
        log = self._stack.enter_context((self.folder / f"agent-{time.monotonic_ns()}.log").open("wb"))
        agent = start(
            [*torchrun, self._script, self.folder],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._stack.callback(end, agent)
        return agent

    def team(self, *, without: Collection[int] = (), size: int) -> list[int]:
        """Return the processes of a round of this size, by rank, when all train and none is an old one."""
        deadline_s = time.monotonic() + stretch(150)
        while time.monotonic() < deadline_s:
            found = [path.read_text().split() for path in sorted(self.folder.glob("rank-*"))[:size]]
            if [world for _, world in found] == [str(size)] * size and not {int(pid) for pid, _ in found} & {*without}:
                return [int(pid) for pid, _ in found]
            time.sleep(0.05)
        raise AssertionError(self.logs())

    def end(self) -> None:
        (self.folder / "end").touch()

    def done(self) -> dict[str, int]:
        return {path.name: int(path.read_text()) for path in self.folder.glob("done-*")}

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("agent-*.log"))


@pytest.fixture
def coordinator(tmp_path: Path) -> CoordinatorProcess:
    return CoordinatorProcess(tmp_path)


def test_torchrun_finds_the_backend_by_its_name() -> None:
    (found,) = entry_points(group="torchrun.handlers", name="strata")
    creator = found.load()()
    assert callable(creator)


def test_two_nodes_train_through_a_killed_worker_and_a_killed_coordinator(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        serving = stack.enter_context(ExitStack())
        service = serving.enter_context(coordinator.serving())
        nodes = Nodes(stack, tmp_path, coordinator.url)
        agents = [nodes.start(), nodes.start()]
        first = nodes.team(size=2)
        os.kill(service.pid, signal.SIGKILL)
        serving.close()
        os.kill(first[1], signal.SIGKILL)
        stack.enter_context(coordinator.serving())
        nodes.team(size=2, without=first)
        nodes.end()
        assert [agent.wait(stretch(100)) for agent in agents] == [0, 0], nodes.logs()
        assert set(nodes.done()) == {"done-0", "done-1"}


@pytest.mark.slow
def test_a_run_survives_the_node_that_came_first_and_its_id_can_be_used_again(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        stack.enter_context(coordinator.serving())
        nodes = Nodes(stack, tmp_path, coordinator.url)
        agents = [nodes.start("1:2"), nodes.start("1:2")]
        first = nodes.team(size=2)
        # The agent of rank 0 serves the store of the round: it dies with its worker, as a machine does.
        lost = next(agent for agent in agents if first[0] in children_of(agent.pid))
        (survivor,) = (agent for agent in agents if agent is not lost)
        os.kill(lost.pid, signal.SIGKILL)
        os.kill(first[0], signal.SIGKILL)
        nodes.team(size=1, without=first)
        nodes.end()
        assert survivor.wait(stretch(150)) == 0, nodes.logs()
        done = nodes.done()
        assert set(done) == {"done-0"}
        # Soon after its end a run still counts as closed; when its nodes have fallen silent, its id is free.
        deadline_s = time.monotonic() + stretch(60)
        while nodes.start("1").wait(stretch(60)) != 0:
            assert time.monotonic() < deadline_s, nodes.logs()
        assert nodes.done() != done


def test_a_second_writer_learns_what_the_first_wrote(coordinator: CoordinatorProcess) -> None:
    from strata.integrations.torchrun import CoordinatorBackend, _Keys

    with coordinator.serving():
        one, two = (
            CoordinatorBackend(_Keys(coordinator.url, "default", "run", outage_s=5), silence_s=15) for _ in range(2)
        )
        assert one.get_state() is None
        state, other, late = map(closed_state, (False, False, False), (0, 1, 2))
        assert one.set_state(state) == (state, 1, True)
        assert two.set_state(other) == (state, 1, False)
        assert two.set_state(other, 1) == (other, 2, True)
        assert one.set_state(late, 1) == (other, 2, False)
        assert one.get_state() == (other, 2)
        assert one.run == two.run


def test_a_closed_run_is_over_when_its_nodes_are_silent(coordinator: CoordinatorProcess) -> None:
    from strata.integrations.torchrun import CoordinatorBackend, _Keys

    def backend() -> CoordinatorBackend:
        return CoordinatorBackend(_Keys(coordinator.url, "default", "run", outage_s=5), silence_s=15)

    with coordinator.serving():
        first = backend()
        first.set_state(closed_state(True, 1))
        assert backend().get_state() == (closed_state(True, 1), 1)
        first.set_state(closed_state(True, 1_000_000), 1)
        assert first.get_state() is not None
        newcomer = backend()
        assert newcomer.get_state() is None
        fresh = closed_state(False, 0)
        assert newcomer.set_state(fresh) == (fresh, 3, True)
        assert newcomer.run != first.run


def test_a_state_that_torch_did_not_write_is_refused_by_name(coordinator: CoordinatorProcess) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousStateError

    from strata.integrations.torchrun import CoordinatorBackend, _Keys

    with coordinator.serving():
        set_key(coordinator.url, "default", "torchrun/run/state", bytes(16) + b"of another", token=0)
        backend = CoordinatorBackend(_Keys(coordinator.url, "default", "run", outage_s=5), silence_s=15)
        for ask in (backend.get_state, lambda: backend.set_state(closed_state(False, 0))):
            with pytest.raises(RendezvousStateError, match="the state of run 'run' is not torch's: it cannot be read"):
                ask()


def test_the_nodes_of_a_round_find_the_store_of_its_first_node_whoever_wrote_the_key_meanwhile(
    coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    with coordinator.serving():
        first, second = (make_handler(coordinator.url) for _ in range(2))
        keys = first._strata.keys
        ask = keys.get

        def read_before_another_writes(name: str) -> KeyValue:
            found = ask(name)
            keys.set(name, b'["", 6, "127.0.0.1", 1]', found.token)
            return found

        monkeypatch.setattr(keys, "get", read_before_another_writes)
        served = first._serve_store(7)
        second._find_store(7).set("from", "second")
        assert served.get("from") == b"second"
        second.take_keys(second._strata, store_timeout_s=0.001)
        with pytest.raises(RendezvousConnectionError, match=r"first node of round 8 served no store within 0\.001 s"):
            second._find_store(8)


def test_a_coordinator_that_refuses_or_stays_away_ends_the_rendezvous(coordinator: CoordinatorProcess) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    from strata.integrations.torchrun import _Keys

    with pytest.raises(RendezvousConnectionError, match="cannot be reached"):
        _Keys(coordinator.url, "default", "run", outage_s=0).get("state")
    with coordinator.serving(), pytest.raises(RendezvousConnectionError, match="refuses a command: key is"):
        _Keys(coordinator.url, "default", "x" * 2_000, outage_s=stretch(60)).set("state", b"", 0)


def test_options_of_the_rendezvous_that_are_wrong_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COORDINATOR_URL", raising=False)
    with pytest.raises(ValueError, match="the rendezvous has no endpoint; use --rdzv-endpoint=host:50051"):
        make_handler("")
    for name in ("keep_alive_interval", "keep_alive_max_attempt", "outage_timeout", "store_timeout"):
        with pytest.raises(ValueError, match=f"--rdzv-conf {name}=0; use a whole number above 0"):
            make_handler("127.0.0.1:50051", **{name: 0})


def make_handler(url: str, **options: int) -> CoordinatorRendezvous:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from strata.integrations.torchrun import create_handler

    return create_handler(RendezvousParameters("strata", url, "run", 1, 2, local_addr="127.0.0.1", **options))


def closed_state(closed: bool, silent_for_s: float) -> bytes:
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

    state = _RendezvousState()
    state.closed = closed
    at = datetime(2100, 1, 1, tzinfo=UTC) if silent_for_s < 100 else datetime.now(UTC) - timedelta(days=1)
    state.last_heartbeats = {_NodeDesc("host", int(silent_for_s), 0): at}
    return pickle.dumps(state)


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
