"""The state machine beside a reference model that is too simple to be wrong: sets, a counter, and no cleverness."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster import events as e
from strata.errors import StaleGenerationError, StaleIncarnationError, StrataError, UnknownWorkerError
from tests.unit.cluster.conftest import LIMITS

WORKERS = st.sampled_from("abcde")
NAMES = st.sampled_from(["x", "y"])


class ClusterAndModel(RuleBasedStateMachine):
    """Members with their incarnations and leases, and who waits where; each change of members starts anew."""

    @initialize()
    def start(self) -> None:
        self.cluster = Cluster(LIMITS)
        self.cluster.apply(c.ConfigureJob(), 0.0)
        self.now_s = 0.0
        self.generation = 0
        self.incarnation: dict[str, int] = {}
        self.lease_until_s: dict[str, float] = {}
        self.waiting: dict[str, set[str]] = {}
        self.released: dict[str, set[str]] = {}

    def change(self) -> None:
        self.generation += 1
        self.waiting.clear()
        self.released.clear()

    @rule(worker=WORKERS, restarts=st.booleans())
    def join(self, worker: str, restarts: bool) -> None:
        number = self.incarnation.get(worker, 0) + (restarts or worker not in self.lease_until_s)
        new = worker not in self.lease_until_s or number != self.incarnation[worker]
        self.cluster.apply(c.RegisterWorker(worker_id=worker, incarnation=str(number)), self.now_s)
        self.incarnation[worker] = number
        self.lease_until_s[worker] = self.now_s + 10.0
        if new:
            self.change()

    @rule(worker=WORKERS)
    def leave(self, worker: str) -> None:
        self.cluster.apply(c.Goodbye(worker_id=worker, incarnation=str(self.incarnation.get(worker, 0))), self.now_s)
        if self.lease_until_s.pop(worker, None) is not None:
            self.change()

    @rule(worker=WORKERS, behind=st.integers(0, 1))
    def beat(self, worker: str, behind: int) -> None:
        number = self.incarnation.get(worker, 0) - behind
        beat = c.Heartbeat(worker_id=worker, incarnation=str(number), state=c.WorkerState.TRAINING)
        alive = worker in self.lease_until_s and behind == 0
        try:
            self.cluster.apply(beat, self.now_s)
        except (StaleIncarnationError, UnknownWorkerError):
            assert not alive
        else:
            assert alive
            self.lease_until_s[worker] = self.now_s + 10.0

    @rule(worker=WORKERS)
    def lose_channel(self, worker: str) -> None:
        lost = c.ChannelLost(worker_id=worker, incarnation=str(self.incarnation.get(worker, 0)))
        self.cluster.apply(lost, self.now_s)
        if worker in self.lease_until_s:
            self.lease_until_s[worker] = min(self.lease_until_s[worker], self.now_s + 2.0)

    @rule(worker=WORKERS, name=NAMES, behind=st.integers(0, 1))
    def arrive(self, worker: str, name: str, behind: int) -> None:
        arrival = c.ArriveAtBarrier(
            worker_id=worker,
            incarnation=str(self.incarnation.get(worker, 0)),
            generation=self.generation - behind,
            name=name,
            timeout_s=1e9,
        )
        try:
            _, effects = self.cluster.apply(arrival, self.now_s)
        except StaleGenerationError:
            assert behind
            return
        except StrataError:
            assert worker not in self.lease_until_s
            return
        told = [set(effect.to) for effect in effects if isinstance(effect, e.BarrierReleased)]
        if worker in self.released.get(name, ()):
            assert told == [{worker}]
            return
        here = self.waiting.setdefault(name, set())
        here.add(worker)
        if here == set(self.lease_until_s):
            assert told == [here]
            self.released[name] = self.waiting.pop(name)
        else:
            assert told == []

    @rule(seconds=st.sampled_from([0.5, 1.9, 2.1, 9.9, 10.1]))
    def pass_time(self, seconds: float) -> None:
        # In small steps: a longer pause would count as one in which the coordinator did not run.
        for _ in range(20):
            self.now_s += seconds / 20
            for demand in self.cluster.due(self.now_s):
                self.cluster.apply(demand, self.now_s)
            self._expire()

    def _expire(self) -> None:
        dead = [worker for worker, until_s in self.lease_until_s.items() if until_s < self.now_s]
        for worker in dead:
            del self.lease_until_s[worker]
        if dead:
            self.change()

    @rule()
    def restart_coordinator(self) -> None:
        again = Cluster(LIMITS)
        again.restore(self.cluster.snapshot())
        assert again.snapshot() == self.cluster.snapshot()
        again.restart(self.now_s)
        self.cluster = again
        self.lease_until_s = dict.fromkeys(self.lease_until_s, self.now_s + 10.0)
        self.waiting.clear()
        self.released.clear()

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "cluster"):
            return
        job = self.cluster.job("default")
        assert job.membership.generation == self.generation
        assert set(job.membership.ids()) == set(self.lease_until_s)
        assert [member.rank for member in job.membership.present()] == list(range(len(self.lease_until_s)))
        assert {b.name: set(b.arrivals) for b in job.barriers.open()} == {n: w for n, w in self.waiting.items() if w}


TestClusterAndModel = ClusterAndModel.TestCase
