"""Events that are followed from one leader to the next: each is told once, also through a takeover or a restart."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from strata.errors import CoordinatorLostError, NotLeaderError

if TYPE_CHECKING:
    from strata.wire._generated import coordinator_pb2 as pb

# A leader knows at most 10,000. Some of those that were shown were in the memory of an earlier leader alone.
MAX_KEPT = 20_000
AGAIN_S = 0.5
# An etcd without a quorum comes back within minutes, or someone has to look after it.
GIVE_UP_S = 600.0
# A leader that was frozen, or is cut off, does not end the stream.
_OPTIONS = (("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000))

_Key = tuple[float, str, str, str, str, str]


class ShownEvents:
    """What was shown. An event is known by its time, which the journal keeps, and by what it says.

    Numbers would not do: an event that no durable command caused, such as a refused token, is counted by the leader of
    that time alone.
    """

    def __init__(self) -> None:
        self._kept: deque[_Key] = deque(maxlen=MAX_KEPT)
        self._again: Counter[_Key] = Counter()
        self._oldest_s = 0.0
        self.may_miss = False
        """Whether the present stream began after the last event that was shown: some between may be missing."""

    def begin_stream(self) -> None:
        """From now on all that a leader knows comes again, and then what is new."""
        self._again = Counter(self._kept)
        self._oldest_s = self._kept[0][0] if self._kept else 0.0
        self.may_miss = bool(self._kept)

    def is_new(self, event: pb.Event) -> bool:
        """Whether an event was not shown yet; then it is from now on."""
        key = event.time_s, event.job_id, event.worker_id, event.kind, event.reason, event.cause
        if self._again[key] > 0:
            self._again[key] -= 1
            self.may_miss = False
            return False
        if event.time_s < self._oldest_s:
            # Shown and forgotten, or from before the first one that was asked for.
            self.may_miss = False
            return False
        self._kept.append(key)
        return True


def follow_events(url: str, job_id: str) -> Iterator[pb.Event]:
    """Give events as they come, from whoever leads; raise if nobody does for ten minutes."""
    from strata.client.unary import connect_leader
    from strata.wire._generated import coordinator_pb2 as pb

    shown = ShownEvents()
    has_followed, lost_s = False, math.inf
    while True:
        try:
            with connect_leader(url, options=_OPTIONS) as stub:
                has_followed, lost_s = True, math.inf
                shown.begin_stream()
                for event in stub.StreamEvents(pb.StreamEvents(job_id=job_id)):
                    if shown.is_new(event):
                        if shown.may_miss:
                            sys.stderr.write("the coordinator does not know the last event: some may be missing\n")
                            shown.may_miss = False
                        yield event
        except (NotLeaderError, CoordinatorLostError):
            lost_s = min(lost_s, time.monotonic())
            if not has_followed or time.monotonic() - lost_s > GIVE_UP_S:
                raise
        time.sleep(AGAIN_S)
