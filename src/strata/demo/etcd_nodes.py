"""The command line of an etcd node of a cluster on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def etcd_command(name: int, folder: Path, ports: Sequence[tuple[int, int]]) -> list[str]:
    """Return how to start one node; ``ports`` are the client's and the peers' port of every node, in their order."""
    client, peer = (f"http://127.0.0.1:{port}" for port in ports[name])
    cluster = ",".join(f"node-{each}=http://127.0.0.1:{port}" for each, (_, port) in enumerate(ports))
    options = {
        "name": f"node-{name}",
        "data-dir": folder / f"node-{name}",
        "heartbeat-interval": 100,
        "election-timeout": 1_000,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": cluster,
        # Every write leaves an old revision behind; so many are kept.
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": 1_000,
    }
    return ["etcd", *(f"--{option}={value}" for option, value in options.items())]
