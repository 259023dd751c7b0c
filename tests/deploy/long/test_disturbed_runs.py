"""What `make test-deploy` does to a run in containers, beside what CI does; each time the proofs hold at the end."""

from __future__ import annotations

import pytest

from tests.testbed.containers.stack import Stack
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("containers"), pytest.mark.timeout(900), pytest.mark.xdist_group("containers")]
PREEMPTED = 143
# Beyond the lease of a worker: the coordinator must fail it, and not only wait.
LEASE_S = 10.0


def test_four_workers_become_eight_and_then_three(stack: Stack) -> None:
    stack.up(workers=4)
    stack.wait_trains(workers=4)
    stack.up(workers=8)
    stack.wait_trains(workers=8)
    # podman-compose does not scale down; docker compose stops containers in this way, too.
    stack.engine.podman("stop", "--time=30", *(stack.container("worker", number) for number in range(4, 9)))
    stack.wait_trains(workers=3)
    stack.wait_finished()
    stack.prove()
    # podman-compose finds the workers beyond the four of the file only after it tried to remove what those depend on.
    stack.compose("down", "--volumes", "--remove-orphans", "--timeout=5")
    stack.take_down()


def test_a_worker_that_is_cut_off_is_failed_and_joins_again(stack: Stack) -> None:
    stack.up(workers=3)
    stack.wait_trains(workers=3)
    name, worker_id, network = stack.container("worker", 2), stack.worker_of(2), f"{stack.project}_default"
    stack.engine.podman("network", "disconnect", network, name)
    wait_until(lambda: stack.workers()[worker_id]["state"] == "failed", "a failed worker", timeout_s=6 * LEASE_S)
    stack.wait_trains(workers=2)
    stack.engine.podman("network", "connect", network, name)
    stack.wait_trains(workers=3)
    stack.wait_finished()
    stack.prove()


def test_containers_that_are_removed_and_created_again_keep_their_volumes(stack: Stack) -> None:
    stack.up(workers=3)
    stack.wait_trains(workers=3)
    name = stack.container("coordinator")
    before = stack.engine.inspect(name)["Id"]
    committed = stack.job()["committed_step"]
    stack.recreate_all(workers=3)
    assert stack.engine.inspect(name)["Id"] != before
    stack.wait_trains(workers=3)
    assert stack.job()["committed_step"] > committed
    stack.wait_finished()
    stack.prove()


def test_an_evicted_worker_leaves_a_save_and_its_successor_goes_on(stack: Stack) -> None:
    stack.up(workers=3)
    stack.wait_trains(workers=3)
    evicted = stack.container("worker", 3)
    stack.engine.podman("stop", "--time=60", evicted)
    assert stack.engine.inspect(evicted)["State"]["ExitCode"] == PREEMPTED
    stack.wait_trains(workers=2)
    # One that gets no time: SIGTERM, and SIGKILL at once.
    stack.engine.podman("stop", "--time=0", stack.container("worker", 2))
    stack.wait_trains(workers=1)
    stack.engine.podman("rm", evicted, stack.container("worker", 2))
    stack.up(workers=3)
    stack.wait_trains(workers=3)
    stack.wait_finished()
    stack.prove()
