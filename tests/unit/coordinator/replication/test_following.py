"""A follower watches from where it is, and ends when it is closed, whatever it does at that moment."""

from __future__ import annotations

from typing import Any

import pytest

from strata.cluster import Limits
from strata.coordinator.etcd.etcd_client import Watch
from strata.coordinator.replication.follower import Follower
from strata.wire._generated import etcd_pb2 as ep
from tests.testbed.network.model_etcd import serving_model
from tests.testbed.waiting import wait_until


def test_a_follower_that_is_told_to_stop_as_it_begins_to_watch_a_silent_etcd_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving_model() as etcd:
        etcd.is_watch_silent = True
        follower = Follower(etcd.target, Limits(), lambda: None)
        begin = follower._client.watch

        def stop_and_watch(*arguments: Any, **fields: Any) -> Watch:
            follower._stopping.set()
            return begin(*arguments, **fields)

        monkeypatch.setattr(follower._client, "watch", stop_and_watch)
        follower.start()
        wait_until(lambda: not follower._thread.is_alive(), "the end of the follower")
        follower.close()


def test_after_a_note_of_progress_a_follower_watches_on_from_there() -> None:
    """What etcd has compacted since is no reason to read the snapshot, for nothing of it is missing."""
    with serving_model() as etcd:
        etcd.answers = [ep.WatchResponse(header=ep.ResponseHeader(revision=50))]
        follower = Follower(etcd.target, Limits(), lambda: None)
        follower.start()
        wait_until(lambda: len(etcd.watches) == 2, "the next watch")
        follower.close()
        assert [watch.start_revision for watch in etcd.watches] == [2, 51]
