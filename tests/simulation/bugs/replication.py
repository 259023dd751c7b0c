"""Bugs in the election, in the journal in etcd, and in how a worker finds the leader: worlds of replicas show them."""

from __future__ import annotations

from typing import Any

import pytest

from strata.client.worker.leader_search import LeaderSearch
from strata.client.worker.protocol import WorkerProtocol
from strata.coordinator.journal.etcd import etcd_journal, log_reader, transactions
from strata.coordinator.replication.election import Election
from strata.coordinator.replication.follower import Follower
from strata.errors import JournalUnavailableError
from strata.wire._generated import etcd_pb2 as ep
from strata.wire._generated import journal_pb2 as jp
from tests.simulation.bugs.planting import nothing, replica_bug, wrap


def _drop_fence(patch: pytest.MonkeyPatch, name: str) -> None:
    def unfenced(*args: Any, **fields: Any) -> ep.TxnRequest:
        request: ep.TxnRequest = original(*args, **fields)
        del request.compare[:]
        return request

    original = getattr(transactions, name)
    patch.setattr(transactions, name, unfenced)


@replica_bug
def write_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    _drop_fence(patch, "write_head")


@replica_bug
def write_pieces_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    _drop_fence(patch, "put_piece")


@replica_bug
def write_the_head_before_the_other_pieces(patch: pytest.MonkeyPatch) -> None:
    def hasty(append: Any, self: etcd_journal.EtcdJournal, entries: Any) -> None:
        waiting: list[tuple[Any, ...]] = []
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "_put_piece", lambda *piece: waiting.append(piece))
            append(self, entries)
        for piece in waiting:
            self._put_piece(*piece)

    wrap(patch, etcd_journal.EtcdJournal, "append", hasty)


@replica_bug
def take_the_pieces_of_another_batch(patch: pytest.MonkeyPatch) -> None:
    def trusting(found: Any) -> bytes | None:
        return b"".join(jp.Piece.FromString(found[index]).data for index in sorted(found)) if found else None

    for module in (log_reader, etcd_journal):
        patch.setattr(module, "join_pieces", trusting)


@replica_bug
def answer_for_ever_after_one_election(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "answer_until_s", property(lambda self: 1e9 if self.fence else -1e9))


@replica_bug
def count_a_renewal_from_when_it_was_answered_and_twice(patch: pytest.MonkeyPatch) -> None:
    def late(renewed: Any, self: Election, lease: int, *, ttl_s: float, sent_s: float) -> None:
        renewed(self, lease, ttl_s=2 * ttl_s, sent_s=sent_s + ttl_s)

    wrap(patch, Election, "renewed", late)


@replica_bug
def take_an_unknown_outcome_for_a_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "judge", lambda *_, **__: transactions.Outcome.WRITTEN)


@replica_bug
def lead_with_what_was_watched_until_now(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Follower, last: int) -> Any:
        self.close()
        assert self._warm is not None
        self._warm.applied = last
        return self._warm

    patch.setattr(Follower, "hand_over", hasty)


@replica_bug
def send_no_write_again(patch: pytest.MonkeyPatch) -> None:
    def once(self: etcd_journal.EtcdJournal, request: ep.TxnRequest) -> ep.TxnResponse:
        try:
            return self._client.transact(request)
        except etcd_journal.EtcdUnavailableError:
            # Taken for granted.
            return ep.TxnResponse(succeeded=True, header=ep.ResponseHeader(revision=1))
        except etcd_journal.EtcdRefusedError as error:
            raise JournalUnavailableError(self.where, str(error)) from error

    patch.setattr(etcd_journal.EtcdJournal, "_insist", once)


@replica_bug
def stay_with_a_coordinator_that_leads_no_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerProtocol, "_leave_standby", nothing)


@replica_bug
def try_only_the_first_address(patch: pytest.MonkeyPatch) -> None:
    def narrow(build: Any, self: LeaderSearch, addresses: tuple[str, ...], chance: Any) -> None:
        build(self, addresses[:1], chance)

    wrap(patch, LeaderSearch, "__init__", narrow)
    patch.setattr(LeaderSearch, "hear", nothing)
