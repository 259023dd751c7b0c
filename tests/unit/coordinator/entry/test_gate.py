"""The gate says who is asking, and why not; what it remembers of them is bounded, and nobody gets in by it."""

from __future__ import annotations

import logging

import pytest

from strata.clock import ManualClock
from strata.cluster import Limits
from strata.cluster.access import DEFAULT_TENANT, LOCAL, Principal, Role
from strata.cluster.access import administration as t
from strata.coordinator.dispatcher import Dispatcher
from strata.coordinator.entry import gate as module
from strata.coordinator.entry.gate import Caller, Gate, IssuedToken
from strata.coordinator.entry.listening import check_listening
from strata.coordinator.entry.secret_tokens import MAX_BYTES, make_token
from strata.coordinator.journal import MemoryJournal
from strata.errors import UnauthenticatedError, UnsafeListenError

TOKENS = [make_token() for _ in range(3)]


class Issuer:
    """An issuer whose keys are all known; it counts the tokens that it had to check."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    def check(self, token: str) -> IssuedToken:
        self.checked.append(token)
        return IssuedToken(Principal(token, DEFAULT_TENANT, Role.WORKER), float("inf"), "key")

    def lists(self, fingerprint: str) -> bool:
        return fingerprint == "key"


async def make_gate(issuer: object = None) -> Gate:
    journal, clock = MemoryJournal(), ManualClock()
    dispatcher = Dispatcher(journal, limits=Limits(), clock=clock, deliver=lambda _: None)
    for number, token in enumerate(TOKENS):
        made = t.CreateToken(
            tenant=DEFAULT_TENANT, token_id=token.token_id, sha256=token.sha256, role=Role.WORKER, name=f"t{number}"
        )
        await dispatcher.ask(made)
    return Gate(dispatcher, issuer=issuer)


def bearer(text: str) -> str:
    return f"Bearer {text}"


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (None, "it brought no token"),
        (f"Basic {TOKENS[0].text}", "it brought no token that can be read"),
        (TOKENS[0].text, "it brought no token that can be read"),
        (bearer("x" * (MAX_BYTES + 1)), "it brought no token that can be read"),
        (bearer(TOKENS[0].text[:-1] + "!"), "its token is not known"),
        (bearer(make_token().text), "its token is not known"),
        (bearer("a.b.c"), "its token is not known"),
    ],
    # Tokens differ from process to process, and the names of tests must not.
    ids=["nothing", "another scheme", "no scheme", "too long", "a changed token", "an unknown token", "no signature"],
)
async def test_who_does_not_get_in_is_told_what_is_wrong_with_what_it_brought(header: str | None, problem: str) -> None:
    gate = await make_gate()
    with pytest.raises(UnauthenticatedError) as caught:
        gate.admit(header, "10.0.0.5")
    assert caught.value.problem == problem


async def test_those_who_were_let_in_are_recalled_the_newest_first_and_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)
    gate = await make_gate()
    headers = [bearer(token.text) for token in TOKENS]
    for header in headers:
        gate.remember(header, gate.admit(header, ""))
    recalled = [gate.recall(header) for header in headers]
    assert [caller and caller.principal.name for caller in recalled] == [None, "t1", "t2"]


async def test_who_was_let_in_without_a_token_is_not_remembered_by_what_it_brought() -> None:
    gate = await make_gate()
    local = Caller(LOCAL, "127.0.0.1")
    gate.remember(bearer("anything"), local)
    gate.remember(None, gate.admit(bearer(TOKENS[0].text), ""))
    assert gate.recall(bearer("anything")) is None
    assert gate.recall(None) is None


async def test_tokens_of_an_issuer_are_checked_once_and_remembered_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)
    issuer = Issuer()
    gate = await make_gate(issuer)
    for token in ("a.a.a", "b.b.b", "b.b.b", "c.c.c", "b.b.b", "a.a.a"):
        assert gate.admit(bearer(token), "").principal.name == token
    assert issuer.checked == ["a.a.a", "b.b.b", "c.c.c", "a.a.a"]


@pytest.mark.parametrize(
    ("has_tls", "is_open", "missing"),
    [(False, True, "TLS and tokens"), (False, False, "TLS"), (True, True, "tokens")],
)
def test_who_can_be_reached_without_proof_refuses_to_listen_or_warns_where_that_is_wanted(
    has_tls: bool, is_open: bool, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnsafeListenError) as caught:
        check_listening("10.0.0.5", has_tls=has_tls, is_open=is_open, is_insecure=False)
    assert missing in str(caught.value)
    with caplog.at_level(logging.WARNING):
        check_listening("10.0.0.5", has_tls=has_tls, is_open=is_open, is_insecure=True)
    assert f"listening on 10.0.0.5 without {missing}: let only a trusted network reach it" in caplog.text


def test_with_tls_and_tokens_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    check_listening("10.0.0.5", has_tls=True, is_open=False, is_insecure=False)
    assert caplog.text == ""
