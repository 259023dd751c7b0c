"""The variables of a worker are those that torchrun sets, with the same meaning."""

from __future__ import annotations

import inspect
import re
import socket

import pytest

from strata.run.launch.group.addresses import find_free_port, find_own_address, reserve_port
from strata.run.launch.group.torch_variables import Start, limits_threads, torch_variables

START = Start(
    master_addr="10.0.0.1",
    master_port=29400,
    ranks={0: 2, 1: 3},
    world_size=5,
    group_rank=1,
    group_world_size=2,
    restarts=2,
)


def variables(start: Start = START, member: int = 1, **inherited: str) -> dict[str, str]:
    return torch_variables(start, member, run_id="llm", max_restarts=10, inherited=inherited)


def test_a_worker_gets_every_variable_that_torch_documents() -> None:
    assert variables() == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "10",
        "TORCHELASTIC_RUN_ID": "llm",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.part("torch")
def test_no_variable_that_torchruns_own_agent_sets_is_missing() -> None:
    from torch.distributed.elastic.agent.server import local_elastic_agent

    source = inspect.getsource(local_elastic_agent.LocalElasticAgent._start_workers)
    set_by_torchrun = set(re.findall(r'^\s+"([A-Z_]+)": ', source, re.MULTILINE))
    assert len(set_by_torchrun) > 12
    assert set_by_torchrun <= variables().keys()


@pytest.mark.parametrize(
    ("inherited", "nproc", "expected"), [({}, 1, False), ({}, 2, True), ({"OMP_NUM_THREADS": "8"}, 2, False)]
)
def test_threads_are_limited_where_several_workers_would_use_all_cores(
    inherited: dict[str, str], nproc: int, expected: bool
) -> None:
    assert limits_threads(inherited, nproc=nproc) is expected
    start = Start(master_addr="h", master_port=1, ranks={each: each for each in range(nproc)}, world_size=nproc)
    assert ("OMP_NUM_THREADS" in variables(start, 0, **inherited)) is expected


def test_workers_that_were_left_out_leave_no_gap() -> None:
    start = Start(master_addr="h", master_port=1, ranks={0: 0, 2: 1}, world_size=2)
    named = variables(start, 2)
    assert [named[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["1", "1", "2", "2"]


def test_what_the_user_says_about_nccl_counts() -> None:
    assert variables(TORCH_NCCL_ASYNC_ERROR_HANDLING="3")["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_a_port_is_never_given_twice() -> None:
    used: set[int] = set()
    for _ in range(50):
        port = find_free_port(used)
        assert port not in used
        used.add(port)


def test_a_reserved_port_is_given_to_nobody_else() -> None:
    used: set[int] = set()
    with reserve_port(used) as port, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_without_a_way_the_address_is_of_this_machine_alone() -> None:
    # The kernel lets nobody connect to the address of all.
    assert find_own_address("255.255.255.255") == "127.0.0.1"
    assert find_own_address("127.0.0.1") == "127.0.0.1"
