"""The election's decisions, with time passed in: a leader is silent in time, and nobody leads without a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.coordinator.replication.election import Election, Role, Step


def standby(*, leader: int | None = None, now_s: float = 0.0) -> Election:
    election = Election(lease_s=3.0, margin_s=1.0)
    assert election.step(now_s, may_lead=True) is Step.GRANT
    election.granted(7, ttl_s=3.0, sent_s=now_s)
    election.seen(leader, revision=10)
    return election


def leading(*, now_s: float = 0.0) -> Election:
    election = standby(now_s=now_s)
    assert election.step(now_s, may_lead=True) is Step.CAMPAIGN
    election.won(11)
    assert election.step(now_s, may_lead=True) is Step.RENEW
    assert election.role is Role.LEADING
    return election


def test_a_standby_campaigns_only_if_nobody_leads_and_it_knows_the_journal() -> None:
    election = standby(leader=99)
    assert election.step(0.0, may_lead=True) is Step.RENEW
    election.seen(None, revision=12)
    assert election.step(0.0, may_lead=False) is Step.RENEW
    assert election.step(0.0, may_lead=True) is Step.CAMPAIGN


def test_a_campaign_whose_answer_was_lost_is_asked_for_again() -> None:
    election = standby()
    election.seen(7, revision=12)
    assert election.step(0.0, may_lead=True) is Step.CAMPAIGN
    election.won(11)
    assert election.fence == 11


def test_a_leader_answers_until_a_margin_before_its_lease_can_have_ended() -> None:
    election = leading(now_s=100.0)
    assert election.answer_until_s == 102.0
    # The answer came late; the lease runs from when it was asked for.
    election.renewed(7, ttl_s=3.0, sent_s=101.0)
    assert election.answer_until_s == 103.0
    election.renewed(7, ttl_s=3.0, sent_s=100.5)
    assert election.answer_until_s == 103.0


def test_a_leader_that_may_not_answer_holds_commands_until_its_lease_has_surely_ended() -> None:
    election = leading(now_s=100.0)
    assert (election.answer_until_s, election.hold_until_s) == (102.0, 104.0)
    election.renewed(7, ttl_s=0, sent_s=101.0)
    assert election.hold_until_s == float("-inf")


def test_a_suspect_leads_again_when_etcd_says_that_its_lease_never_ended() -> None:
    election = leading()
    election.step(2.0, may_lead=True)
    assert election.role is Role.SUSPECT
    election.renewed(7, ttl_s=3.0, sent_s=30.0)
    election.step(30.1, may_lead=True)
    assert election.role is Role.LEADING
    assert election.fence == 11


def test_a_lease_that_has_ended_ends_the_leadership_and_a_new_one_is_asked_for() -> None:
    election = leading()
    election.renewed(7, ttl_s=0, sent_s=1.0)
    assert election.role is Role.STANDBY
    assert election.answer_until_s == float("-inf")
    assert election.step(1.0, may_lead=True) is Step.GRANT


@pytest.mark.parametrize("leader", [None, 99])
def test_a_leader_whose_key_is_gone_stands_by(leader: int | None) -> None:
    election = leading()
    election.seen(leader, revision=20)
    assert (election.role, election.fence) == (Role.STANDBY, 0)


def test_what_was_read_before_the_election_says_nothing_about_its_winner() -> None:
    election = leading()
    election.seen(None, revision=10)
    election.seen(99, revision=9)
    assert election.role is Role.LEADING


def test_a_refused_write_of_an_older_leadership_deposes_nobody() -> None:
    election = leading()
    election.deposed(5)
    assert election.role is Role.LEADING
    election.deposed(11)
    assert election.role is Role.STANDBY


def test_who_resigned_never_leads_again() -> None:
    election = leading()
    election.resign()
    election.won(30)
    election.renewed(7, ttl_s=3.0, sent_s=5.0)
    election.seen(None, revision=40)
    assert election.role is Role.RESIGNED
    assert election.answer_until_s == float("-inf")
    assert election.step(5.0, may_lead=True) is Step.NOTHING


@given(
    renewals=st.lists(st.tuples(st.floats(0, 50), st.sampled_from([0.0, 3.0])), max_size=20),
    now_s=st.floats(0, 60),
)
def test_nobody_answers_longer_than_the_last_confirmed_renewal_allows(
    renewals: list[tuple[float, float]], now_s: float
) -> None:
    election = leading()
    confirmed_s = 0.0
    is_over = False
    for sent_s, ttl_s in renewals:
        election.renewed(7, ttl_s=ttl_s, sent_s=sent_s)
        is_over = is_over or ttl_s == 0
        confirmed_s = max(confirmed_s, sent_s)
    election.step(now_s, may_lead=True)
    if is_over:
        assert election.role is not Role.LEADING
    elif election.role is Role.LEADING:
        assert now_s < confirmed_s + 3.0 - 1.0


def test_a_margin_that_is_no_part_of_the_lease_is_refused() -> None:
    with pytest.raises(ValueError, match="use more than 0 and less than the lease"):
        Election(lease_s=3.0, margin_s=3.0)
