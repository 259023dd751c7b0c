"""The process group of a generation: by which address its store is reached, and of whom it is."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

import strata
from strata.errors import JobWaitingError
from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.parts import LazyModule

if TYPE_CHECKING:
    from pathlib import Path

dist: Any = LazyModule("torch.distributed")
process_group: Any = LazyModule("strata.integrations.torch_process_group")
pytestmark = pytest.mark.part("torch")


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:50051", "stratas://127.0.0.1:50051,127.0.0.2:50051", "strata://127.0.0.1,127.0.0.2"]
)
def test_a_coordinator_with_several_addresses_is_looked_for_at_the_first(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDINATOR_URL", url)
    assert process_group._own_address() == "127.0.0.1"


def test_the_way_to_a_coordinator_may_be_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    monkeypatch.setenv("COORDINATOR_URL", "[::1]:50051")
    assert process_group._own_address() == "::1"


def test_without_a_way_to_the_coordinator_the_store_is_for_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel lets nobody connect to the address of all.
    monkeypatch.setenv("COORDINATOR_URL", "255.255.255.255:50051")
    assert process_group._own_address() == "127.0.0.1"


def test_a_group_is_made_of_the_workers_that_are_there_now(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path)

    def join(worker_id: str) -> strata.Run:
        return strata.join(worker_id=worker_id, checkpoints=tmp_path / "c", coordinator_url=coordinator.url)

    with coordinator.serving(), join("stays") as run:
        before = run.generation
        with join("leaves"):
            pass
        process_group.init_process_group(run)
        try:
            assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
            assert run.bound_generation == run.generation > before
        finally:
            dist.destroy_process_group()


def test_under_torchrun_no_group_is_made_of_a_part_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with strata.join(checkpoints=tmp_path, local=True) as run:
        with pytest.raises(JobWaitingError, match="waits for 2 more of the 3 workers that it needs"):
            process_group.init_process_group(run, timeout_s=0)
        assert not dist.is_initialized()
