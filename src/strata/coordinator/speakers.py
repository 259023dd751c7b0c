"""Speakers: on which connection each worker was accepted last, which is where its effects go. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from strata.cluster import commands as c
from strata.cluster.replies import Reply
from strata.errors import StrataError

S = TypeVar("S")
# The commands by which a worker speaks, or stops to.
SPEAKING = frozenset({c.Heartbeat, c.RegisterWorker, c.Goodbye})
_Worker = tuple[str, str]


class Speakers(Generic[S]):
    """The workers of all jobs and their connections, of whatever kind."""

    def __init__(self) -> None:
        # The incarnation and the connection of each worker that was accepted, and of those that ask to be.
        self._connections: dict[_Worker, tuple[str, S]] = {}
        self._joining: dict[_Worker, tuple[str, S]] = {}
        # The workers of each connection, by its identity. To look through all workers for each one of ten thousand
        # connections that close at once would hold up everyone.
        self._workers: dict[int, dict[_Worker, None]] = {}

    def find(self, job_id: str, worker_id: str) -> S | None:
        """Return the connection of a worker, if it has one."""
        found = self._connections.get((job_id, worker_id))
        return None if found is None else found[1]

    def joins(self, command: c.RegisterWorker, connection: S) -> None:
        """Note who asks to join. A slow journal can take longer to answer that than a grace lasts."""
        self._note(self._joining, (command.job_id, command.worker_id), command.incarnation, connection)

    def answered(self, command: c.Command, answer: Reply | StrataError, connection: S) -> None:
        """Note what a command on a connection was answered: only who was accepted speaks for a worker."""
        kind = type(command)
        if kind not in SPEAKING:
            return
        assert isinstance(command, c.WorkerCommand)
        worker = command.job_id, command.worker_id
        if kind is c.RegisterWorker and self._joining.get(worker) == (command.incarnation, connection):
            del self._joining[worker]
            self._forget(worker, connection)
        if isinstance(answer, StrataError):
            return
        if kind is not c.Goodbye:
            self._note(self._connections, worker, command.incarnation, connection)
        elif (left := self._connections.pop(worker, None)) is not None:
            self._forget(worker, left[1])

    def lost(self, connection: S) -> list[c.ChannelLost]:
        """A connection closed: return what that means for the workers that speak, or ask to join, on no other one."""
        gone: dict[tuple[_Worker, str], None] = {}
        workers = self._workers.pop(id(connection), {})
        for table in (self._connections, self._joining):
            for worker in workers:
                found = table.get(worker)
                if found is not None and found[1] is connection:
                    gone[worker, table.pop(worker)[0]] = None
        return [
            c.ChannelLost(job_id=worker[0], worker_id=worker[1], incarnation=incarnation)
            for worker, incarnation in gone
            if not any(table.get(worker, ("",))[0] == incarnation for table in (self._connections, self._joining))
        ]

    def _note(self, table: dict[_Worker, tuple[str, S]], worker: _Worker, incarnation: str, connection: S) -> None:
        before = table.get(worker)
        # Each heartbeat comes here, and nearly each on the connection of the one before.
        if before is not None and before[1] is connection and before[0] == incarnation:
            return
        table[worker] = incarnation, connection
        if before is None or before[1] is not connection:
            self._workers.setdefault(id(connection), {})[worker] = None
            if before is not None:
                self._forget(worker, before[1])

    def _forget(self, worker: _Worker, connection: S) -> None:
        """Leave a worker out that is in no table with this connection any more."""
        for table in (self._connections, self._joining):
            found = table.get(worker)
            if found is not None and found[1] is connection:
                return
        workers = self._workers.get(id(connection))
        if workers is not None:
            workers.pop(worker, None)
            if not workers:
                del self._workers[id(connection)]
