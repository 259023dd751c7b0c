"""The follower: a cluster that keeps up with the journal in a thread of its own, so that a standby can lead at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from strata.cluster import Cluster, Limits
from strata.coordinator.etcd.etcd_client import (
    EtcdClient,
    EtcdCompactedError,
    EtcdRefusedError,
    EtcdUnavailableError,
    Watch,
)
from strata.coordinator.etcd.target import EtcdTarget
from strata.coordinator.failing.fail_stop import FailStop
from strata.coordinator.failing.faults import Fault
from strata.coordinator.journal.entries import replay
from strata.coordinator.journal.etcd.etcd_journal import EtcdJournal, Loaded
from strata.coordinator.journal.etcd.log_reader import LogReader
from strata.coordinator.journal.protocol import Entry
from strata.errors import DamagedRecordError, JournalDamagedError, JournalUnavailableError, JournalVersionError

log = logging.getLogger(__name__)

RETRY_S = 0.2


@dataclass
class Warm:
    """A cluster that holds all that a journal holds, up to an entry."""

    cluster: Cluster
    applied: int = 0
    since_snapshot: int = 0
    last_s: float = 0.0
    """The time of the last entry."""

    def apply(self, entries: list[Entry]) -> None:
        """Apply entries that follow."""
        replay(self.cluster, entries)
        self.last_s = max([self.last_s, *(entry.at_s for entry in entries)])
        self.applied += len(entries)
        self.since_snapshot += len(entries)


class Follower:
    """Follows a journal from :meth:`start` to :meth:`hand_over` or :meth:`close`.

    ``on_change`` is called in its thread when the leader's key changed.
    """

    def __init__(
        self, target: EtcdTarget, limits: Limits, on_change: Callable[[], None], fail_stop: FailStop | None = None
    ) -> None:
        self._target = target
        self._limits = limits
        self._on_change = on_change
        self._journal = EtcdJournal(target)
        self._client = EtcdClient(target)
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._reader: LogReader
        self._warm: Warm | None = None
        self._revision = 0
        self.problem = ""
        """Why it cannot follow; empty while it can."""
        run = (fail_stop or FailStop()).guard(self._run, name="strata-follower")
        self._thread = threading.Thread(target=run, name="strata-follower", daemon=True)

    @property
    def applied(self) -> int:
        """The last entry that it knows."""
        return 0 if self._warm is None else self._warm.applied

    @property
    def is_warm(self) -> bool:
        """Whether it has read the journal and can follow it."""
        return self._warm is not None and not self.problem

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def hand_over(self, last: int) -> Warm:
        """Stop, and return the cluster with all entries up to the last one; called by who leads now, in a thread."""
        self.close()
        journal = EtcdJournal(self._target)
        try:
            warm = self._warm
            loaded = None if warm is None else journal.load_after(warm.applied)
            if warm is None or loaded is None:
                self._load(journal.load_at())
            else:
                warm.apply(loaded.entries)
        finally:
            journal.close()
        assert self._warm is not None
        applied = self._warm.applied
        if applied > last:
            # It took so long that the lease ended: nothing is wrong with the journal.
            problem = (
                f"entries {last + 1} to {applied} were written since this coordinator won: another one leads by now"
            )
            raise JournalUnavailableError(str(self._target), problem)
        if applied < last:
            raise JournalDamagedError(str(self._target), f"entry {last} is the last, and {applied} was read")
        return self._warm

    def close(self) -> None:
        """Stop, in another thread than its own."""
        self._stopping.set()
        self._journal.close()
        self._client.close()
        self.nudge()
        if self._thread.is_alive():
            self._thread.join()

    def nudge(self) -> None:
        """Begin the watch anew, at another endpoint: this one has gone silent."""
        watch = self._watch
        if watch is not None:
            watch.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._warm is None or self.problem:
                    self._load(self._journal.load_at())
                self._follow()
            except EtcdCompactedError:
                log.info("the next journal entries were compacted; reading the snapshot")
                self._warm = None
            except JournalVersionError as error:
                if str(error) != self.problem:
                    log.error("this standby will not lead: %s", error)  # noqa: TRY400 - the message says it all
                self.problem = str(error)
                self._stopping.wait(1.0)
            except (JournalDamagedError, DamagedRecordError) as error:
                if str(error) != self.problem:
                    log.exception("this standby cannot follow the journal, and will not lead")
                self.problem = str(error)
                self._stopping.wait(1.0)
            except (EtcdUnavailableError, EtcdRefusedError, JournalUnavailableError) as error:
                if isinstance(error, EtcdRefusedError) and error.fault is not Fault.TRANSIENT:
                    raise self._journal.translate(error) from error
                log.debug("the journal cannot be followed now: %s", error)
                self._client.next_endpoint()
                self._stopping.wait(RETRY_S)

    def _load(self, loaded: Loaded) -> None:
        warm = Warm(Cluster(self._limits))
        if loaded.state is not None:
            warm.cluster.restore(loaded.state, where=str(self._target))
        warm.apply(loaded.entries)
        warm.applied, self._revision = loaded.last, loaded.revision
        self._reader = LogReader(self._journal.keys, applied=loaded.last, where=str(self._target))
        self._warm, self.problem = warm, ""

    def _follow(self) -> None:
        warm = self._warm
        assert warm is not None
        keys = self._journal.keys
        # It lives through a new watch: pieces of a batch may have come before, and its head after.
        reader = self._reader
        self._watch = watch = self._client.watch(keys.all, start_revision=self._revision + 1)
        if self._stopping.is_set():
            watch.close()
        for answer in watch:
            if self._stopping.is_set():
                return
            is_changed = False
            for event in answer.events:
                if event.kv.key == keys.leader:
                    is_changed = True
                elif event.type == event.PUT:
                    reader.note(event.kv.key, event.kv.value)
            warm.apply(reader.take())
            if reader.head is not None and reader.head.snapshot.number:
                warm.since_snapshot = reader.head.last - reader.head.snapshot.number
            # An answer with events may be one of several of its revision; one without says that there are no others.
            if answer.events:
                self._revision = max(self._revision, answer.events[-1].kv.mod_revision)
            elif not answer.created:
                self._revision = max(self._revision, answer.header.revision)
            if is_changed:
                self._on_change()
