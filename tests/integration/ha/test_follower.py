"""A standby's cluster keeps up with the journal, through compaction and an endpoint that goes silent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.cluster import Cluster, Limits
from strata.cluster import commands as c
from strata.coordinator.journal import Entry
from strata.coordinator.journal.entries import replay
from strata.coordinator.replication.follower import Follower
from strata.errors import JournalDamagedError, JournalUnavailableError
from tests.testbed.ha.etcd import EtcdCluster, lead
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.part("etcd")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path, nodes=1).serving() as cluster:
        yield cluster


def entry(number: int) -> Entry:
    return Entry(c.RegisterWorker(worker_id=f"w{number}", incarnation="1"), float(number), ("launcher", "10.0.0.5"))


def cluster_of(count: int) -> Cluster:
    cluster = Cluster(Limits())
    replay(cluster, map(entry, range(count)))
    return cluster


def test_what_is_compacted_before_it_was_followed_is_read_from_the_snapshot(etcd: EtcdCluster) -> None:
    target = etcd.target()
    journal = lead(target)
    journal.append([entry(0), entry(1)])
    follower = Follower(target, Limits(), lambda: None)
    follower.start()
    wait_until(lambda: follower.applied == 2, "the first entries")
    journal.append([entry(2)])
    journal.snapshot(cluster_of(3).snapshot())
    journal.append([entry(3)])
    wait_until(lambda: follower.applied == 4, "the next entries")
    # As if it had been away since the beginning, and etcd had forgotten that.
    assert journal._term is not None
    etcd.control("compact", str(journal._term.head_revision))
    follower._revision = 1
    follower.nudge()
    journal.append([entry(4)])
    wait_until(lambda: follower.applied == 5, "what came after the compaction")
    warm = follower.hand_over(5)
    assert warm.cluster.snapshot() == cluster_of(5).snapshot()


def test_a_takeover_reads_what_the_watch_has_not_brought(etcd: EtcdCluster) -> None:
    target = etcd.target()
    journal = lead(target)
    journal.append([entry(0)])
    follower = Follower(target, Limits(), lambda: None)
    follower.start()
    wait_until(lambda: follower.applied == 1, "the first entry")
    follower.close()
    journal.append([entry(1), entry(2)])
    assert follower.applied == 1
    warm = follower.hand_over(3)
    assert (warm.applied, warm.last_s) == (3, 2.0)
    assert {event.by for event in warm.cluster.events.since(0)[1]} == {"launcher"}, "who did what survives a takeover"
    assert warm.cluster.snapshot() == cluster_of(3).snapshot()


def test_a_takeover_that_comes_too_late_is_not_taken_for_damage(etcd: EtcdCluster) -> None:
    """It won at entry 1, and its lease ended before it had read: another one has led and written since."""
    target = etcd.target()
    lead(target).append([entry(0), entry(1)])
    for last, problem in ((1, JournalUnavailableError), (3, JournalDamagedError)):
        with pytest.raises(problem):
            Follower(target, Limits(), lambda: None).hand_over(last)
