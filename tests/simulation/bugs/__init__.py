"""Planted bugs: each breaks a promise of the cluster, the coordinator or the worker, and a few worlds must show it."""

from __future__ import annotations

from tests.simulation.bugs import client, cluster, coordinator, dispatcher, replication, tenants
from tests.simulation.bugs.planting import BUGS, DISPATCHER_BUGS, REPLICA_BUGS, Plant

__all__ = [
    "BUGS",
    "DISPATCHER_BUGS",
    "REPLICA_BUGS",
    "Plant",
    "client",
    "cluster",
    "coordinator",
    "dispatcher",
    "replication",
    "tenants",
]
