"""torch.distributed over a run: the process group of the present generation, under ``strata run`` and under torchrun.

A process group cannot change its members. So use it with ``run.steps(..., recover=False)``: when the membership
changes, the process ends, its launcher starts it again, and the new processes make a new group.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch.distributed as dist

from strata.address import parse_endpoints, split_address
from strata.errors import JobWaitingError, Reconfigure
from strata.run.launch.group.addresses import find_own_address
from strata.run.loop.run import Run

TIMEOUT_S = 600.0
POLL_S = 0.1


def init_process_group(run: Run, backend: str = "gloo", *, timeout_s: float = TIMEOUT_S) -> None:
    """Make the default process group of all workers of the run, each with the rank that it has there.

    Rank 0 serves the store, at a free port of its own, and tells the others through the coordinator where it is: no
    MASTER_ADDR and no MASTER_PORT is needed, and a group of an earlier life is never met.
    """
    timeout = timedelta(seconds=timeout_s)
    deadline_s = time.monotonic() + timeout_s
    while True:
        _wait_for_round(run, deadline_s)
        store = None
        address = ""
        if run.rank == 0:
            host = _own_address()
            store = dist.TCPStore(host, 0, run.world_size, is_master=True, timeout=timeout, wait_for_workers=False)
            address = f"{host}:{store.port}"
        try:
            address = run.exchange("torch process group", address.encode(), timeout_s=timeout_s)[0].decode()
        except Reconfigure:
            run.refresh()
            continue
        if store is None:
            host, _, port = address.rpartition(":")
            store = dist.TCPStore(host, int(port), run.world_size, is_master=False, timeout=timeout)
        dist.init_process_group(backend, store=store, rank=run.rank, world_size=run.world_size, timeout=timeout)
        run.bind()
        return


def _wait_for_round(run: Run, deadline_s: float) -> None:
    """Under torchrun, return when all workers of its round are in the job: a group of fewer would be of no use."""
    # strata run sets torchrun's variables too, but it may start fewer workers than the job may have.
    if "TORCHELASTIC_RUN_ID" not in os.environ or "JOB_FOLDER" in os.environ:
        return
    expected = int(os.environ["WORLD_SIZE"])
    while run.world_size != expected:
        if time.monotonic() > deadline_s:
            raise JobWaitingError(run.job_id, missing=expected - run.world_size, min_workers=expected)
        time.sleep(POLL_S)
        run.refresh()


def _own_address() -> str:
    """Return the address by which the other machines reach this one: that of the way to the coordinator."""
    host, _ = split_address(parse_endpoints(os.environ.get("COORDINATOR_URL") or "127.0.0.1").first)
    return find_own_address(host)
