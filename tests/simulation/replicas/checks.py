"""What must hold among replicas: one history, nothing acknowledged lost, nothing answered by one that was deposed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from strata.cluster import Cluster
from strata.cluster import commands as c
from strata.cluster.events import BarrierReleased
from strata.cluster.replies import KeyValue
from strata.coordinator.journal import Entry
from strata.coordinator.journal.etcd.records import Keys, decode_batch, join_pieces
from strata.errors import StrataError
from strata.wire._generated import etcd_pb2 as ep
from strata.wire._generated import journal_pb2 as jp
from tests.history.calls import FOREVER_NS, Call
from tests.history.checker import check
from tests.history.models import Key
from tests.simulation.violation import ViolationError

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.replicas.etcd_model import EtcdModel
    from tests.simulation.replicas.replica_world import ReplicaWorld
    from tests.simulation.store import Manifest


class ReplicaChecks:
    """The promises of replicas, and what was seen of them."""

    def __init__(self, world: ReplicaWorld) -> None:
        self._world = world
        self._keys = Keys("strata")
        self.history: list[Entry] = []
        self._in_history: Counter[str] = Counter()
        self._acknowledged: list[str] = []
        self._newest_term = 0
        self._calls: dict[str, Call] = {}
        self._released: dict[tuple[int, str, int], tuple[bytes, ...]] = {}
        self._announced: set[int] = set()

    # The journal.

    def look(self, etcd: EtcdModel) -> None:
        """Etcd has carried out something: what became part of the journal stays, and only grows."""
        found = etcd.range(ep.RangeRequest(key=self._keys.head), self._world.now_s).kvs
        if not found:
            return
        head = jp.Head.FromString(found[0].value)
        if head.last < len(self.history):
            raise ViolationError(f"the journal has {head.last} entries, and had {len(self.history)}")
        while len(self.history) < head.last:
            first = len(self.history) + 1
            request = ep.RangeRequest(key=self._keys.batch(first), range_end=self._keys.batch(first + 1))
            pieces = {index: kv.value for index, kv in enumerate(etcd.range(request, self._world.now_s).kvs)}
            data = join_pieces(pieces)
            if data is None:
                raise ViolationError(f"entry {first} of the journal cannot be read")
            self._world.tally["batches in pieces"] += len(pieces) > 1
            number, entries = decode_batch(data, where="etcd")
            if number != first:
                raise ViolationError(f"the batch of entry {first} says that it begins with {number}")
            self.history += entries
            self._in_history.update(map(repr, entries))

    def acknowledges(self, entry: Entry, name: str, term: int) -> None:
        """A replica tells someone that a command is durable."""
        self._world.tally["acknowledged"] += 1
        if not self._in_history[repr(entry)]:
            raise ViolationError(f"{name} acknowledges what the journal does not hold: {entry}")
        self._acknowledged.append(repr(entry))
        self._newest_term = max(self._newest_term, term)

    def answers(self, name: str, term: int) -> None:
        """A replica answers at once, from what it knows."""
        if term < self._newest_term:
            raise ViolationError(f"{name} answers in term {term}, and term {self._newest_term} has acknowledged")

    # What workers see.

    def invoked(self, call: str, client: str, operation: tuple[object, ...]) -> None:
        """A worker asks something of the key that all share."""
        self._calls[call] = Call(client, "key", operation, self._now_ns())

    def returned(self, call: str, answer: KeyValue, *, is_set: bool) -> None:
        """It was answered."""
        asked = self._calls[call]
        value, token = answer.value.decode(), answer.token
        outcome = (answer.is_set, value, token) if is_set else (value, token)
        self._calls[call] = Call(asked.client, "key", asked.operation, asked.invoked_ns, self._now_ns(), outcome)

    def barrier_released(self, process: Process, released: BarrierReleased) -> None:
        """All who meet learn the same."""
        self._world.tally["releases"] += 1
        key = released.generation, released.name, released.round
        if self._released.setdefault(key, released.payloads) != released.payloads:
            raise ViolationError(f"{process.name} was released with other payloads at {key}")

    def barrier_timed_out(self, process: Process, generation: int) -> None:
        """No barrier is lost by a takeover."""
        raise ViolationError(f"{process.name} waited at a barrier of generation {generation} in vain")

    def manifest_written(self, manifest: Manifest) -> None:
        """A manifest is in storage."""
        self._announced.add(manifest.step)

    def waited_too_long(self, process: Process, error: StrataError) -> None:
        """A program was told of what should have been mended."""
        raise ViolationError(f"{process.name} was told: {error}")

    def refused(self, process: Process, error: StrataError) -> None:
        """No worker is refused here: none has two processes."""
        raise ViolationError(f"{process.name} is refused: {error}")

    def check_end(self) -> None:
        """Every worker has finished: the journal explains all that was acknowledged."""
        failed = [command for command, *_ in self.history if isinstance(command, c.FailWorkers)]
        if failed:
            raise ViolationError(f"workers were failed, and none was at fault: {failed}")
        cluster = Cluster(self._world.limits)
        for command, at_s, *_ in self.history:
            try:
                cluster.apply(command, at_s)
            except StrataError as error:
                raise ViolationError(f"the journal holds what is refused on replay: {command}: {error}") from error
        if missing := Counter(set(self._acknowledged)) - self._in_history:
            raise ViolationError(f"acknowledged and lost: {missing}")
        lost = self._announced - set(cluster.job("default").commits.committed)
        if lost:
            raise ViolationError(f"steps {lost} are in storage and in no index")
        if refuted := check(self._calls.values(), lambda _: Key()):
            raise ViolationError(str(refuted[0]))

    def _now_ns(self) -> int:
        return min(int(self._world.now_s * 1e9), FOREVER_NS - 1)
