"""A program that uses a coordinator in one way and ends in another, when a line comes in: for tests of how it ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import strata
from strata.checkpoint import CheckpointManager, SavePolicy
from strata.client.client import Client
from strata.cluster.commands import GetKey

STATE = {"w": np.ones(3)}


def leave(way: str) -> None:
    """Say that the program is ready, and end it in a way when it is told to."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    match way:
        case "exception":
            raise ValueError("of the program itself")
        case "sys.exit":
            sys.exit(3)
        case "Ctrl-C" | "SIGTERM":
            os.kill(os.getpid(), signal.SIGINT if way == "Ctrl-C" else signal.SIGTERM)
            time.sleep(60)
        case "a thread that goes on":
            threading.Thread(target=time.sleep, args=(0.5,)).start()


def use_client(url: str, folder: Path, way: str) -> None:
    """Use a bare client that nobody closes, and leave a request unanswered."""
    client = Client(url, "w")
    client.wait_registered()
    kept.append(client)
    leave(way)


def use_waiting_client(url: str, folder: Path, way: str) -> None:
    """Close a client that has asked for something when the coordinator was gone."""
    with Client(url, "w") as client:
        client.wait_registered()
        try:
            leave(way)
        finally:
            client.tell(GetKey(key="k"))


def use_manager(url: str, folder: Path, way: str) -> None:
    """Save through a coordinator, and have another save pending at the end."""
    client = Client(url, "w")
    client.wait_registered()
    manager = CheckpointManager(folder, coordinator=client, saving=SavePolicy(commit_timeout_s=1.0))
    kept.extend([client, manager])
    manager.save(STATE, 1)
    try:
        leave(way)
    finally:
        manager.save_background(STATE, 2)


def use_run(url: str, folder: Path, way: str) -> None:
    """Leave the loop of a run."""
    with strata.join(checkpoints=folder, coordinator_url=url, job_id="j", worker_id="w", rank=0, world_size=1) as run:
        for step in run.steps(STATE, until=100):
            if step.number == 3:
                leave(way)
                return


def use_dataset(url: str, folder: Path, way: str) -> None:
    """Leave the loop of a run in the middle of an epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(f'{{"x": {number}}}\n' for number in range(1_000)))
    with strata.join(checkpoints=folder, coordinator_url=url, job_id="j", worker_id="w", rank=0, world_size=1) as run:
        data = run.dataset(folder / "rows.jsonl", batch_size=4)
        for step in run.steps(STATE, data, epochs=2):
            if step.number == 3:
                leave(way)
                return


USES: dict[str, Callable[[str, Path, str], None]] = {
    "client": use_client,
    "waiting client": use_waiting_client,
    "manager": use_manager,
    "run": use_run,
    "dataset": use_dataset,
}
# What a program holds in its module is there until the interpreter ends.
kept: list[object] = []

if __name__ == "__main__":
    USES[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), sys.argv[4])
