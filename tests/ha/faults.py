"""What is done to a site, one fault after the other; each is over, and mended, when it returns."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from random import Random

from tests.ha.site import LEADER_LEASE_S, QUOTA_BYTES, Site

DELAY_S = 0.1  # each way: 200 ms for a call


class Faults:
    """The faults of one run. ``quorum_s`` is for how long etcd loses its majority."""

    def __init__(self, site: Site, chance: Random, *, quorum_s: float = 30.0) -> None:
        self._site = site
        self._chance = chance
        self._quorum_s = quorum_s
        self.kinds: dict[str, Callable[[], None]] = {
            "kill -9 of the leader": self._kill_leader,
            "freeze of the leader beyond its lease": self._freeze_leader,
            "kill -9 of etcd's leader": self._kill_etcd_leader,
            "freeze of etcd's leader": self._freeze_etcd_leader,
            "partition of the leader from etcd": self._cut_leader_from_etcd,
            "partition of the workers from the leader": self._cut_workers,
            "loss of etcd's quorum": self._lose_quorum,
            "an etcd that is slow": self._slow_etcd,
            "an etcd without space": self._fill_etcd,
            "rolling restart of everything": self._restart_all,
        }

    def do(self, kind: str) -> None:
        """Do one, and mend it."""
        self.kinds[kind]()
        self._site.etcd.wait_healthy()
        for replica in self._site.replicas:
            replica.start()

    def _kill_leader(self) -> None:
        leader = self._site.leader()
        leader.kill()
        time.sleep(self._chance.uniform(0.2, 4.0))
        leader.start()

    def _freeze_leader(self) -> None:
        leader = self._site.leader()
        leader.freeze()
        time.sleep(LEADER_LEASE_S + self._chance.uniform(1.0, 4.0))
        leader.thaw()

    def _kill_etcd_leader(self) -> None:
        node = self._site.etcd.leader()
        self._site.etcd.kill(node)
        time.sleep(self._chance.uniform(0.5, 4.0))
        self._site.etcd.start(node)

    def _freeze_etcd_leader(self) -> None:
        node = self._site.etcd.leader()
        self._site.etcd.signal(node, signal.SIGSTOP)
        time.sleep(self._chance.uniform(2.0, 5.0))
        self._site.etcd.signal(node, signal.SIGCONT)

    def _cut_leader_from_etcd(self) -> None:
        network, leader = self._site.network, self._site.leader()
        network.cut(leader.host.name, network.middle)
        time.sleep(LEADER_LEASE_S + self._chance.uniform(1.0, 4.0))
        network.heal()

    def _cut_workers(self) -> None:
        network, leader = self._site.network, self._site.leader()
        network.cut("workers", leader.host.ip)
        time.sleep(self._chance.uniform(1.0, 4.0))
        network.heal()

    def _lose_quorum(self) -> None:
        nodes = [0, 1, 2]
        self._chance.shuffle(nodes)
        for node in nodes[:2]:
            self._site.etcd.kill(node)
        time.sleep(self._quorum_s)
        for node in nodes[:2]:
            self._site.etcd.start(node)

    def _slow_etcd(self) -> None:
        self._site.proxy.delay_s = DELAY_S
        time.sleep(self._chance.uniform(3.0, 8.0))
        self._site.proxy.delay_s = 0.0

    def _fill_etcd(self) -> None:
        try:
            self._site.etcd.fill(QUOTA_BYTES)
            time.sleep(self._chance.uniform(1.0, 4.0))
        finally:
            self._site.etcd.make_room()

    def _restart_all(self) -> None:
        for replica in self._site.replicas:
            replica.stop()
            replica.start()
            self._site.leader()
        for node in range(3):
            self._site.etcd.kill(node)
            self._site.etcd.start(node)
            self._site.etcd.wait_healthy()
