"""Tokens, the administrator's file, and attempts that fail: pure parts of who gets in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.coordinator.entry import admin_token
from strata.coordinator.entry.admin_token import AdminToken
from strata.coordinator.entry.attempts import MAX_ADDRESSES, MAX_DELAY_S, TELL_S, WINDOW_S, FailedAttempts
from strata.coordinator.entry.secret_tokens import hash_secret, is_secret, make_token, split_token
from strata.errors import TokenFileError


def test_a_new_token_is_known_by_its_hash_and_shown_nowhere() -> None:
    token = make_token()
    parts = split_token(token.text)
    assert parts is not None
    assert parts[0] == token.token_id
    assert is_secret(parts[1], token.sha256)
    assert parts[1] not in repr(token)
    assert make_token().text != token.text


@given(st.text())
def test_any_text_is_split_or_is_no_token(text: str) -> None:
    parts = split_token(text)
    assert parts is None or text == f"strata_{parts[0]}_{parts[1]}"
    assert len(hash_secret(text)) == 64


def test_the_administrators_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "admin"
    token = AdminToken(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert token.matches(path.read_text().strip())
    assert not token.matches("another")


def test_a_new_administrators_token_counts_and_the_one_before_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin_token, "LOOK_S", 0.0)
    path = tmp_path / "admin"
    token = AdminToken(path)
    before = path.read_text().strip()
    path.write_text("x" * 40)
    assert token.matches("x" * 40)
    assert not token.matches(before)
    path.unlink()
    for _ in range(3):
        assert token.matches("x" * 40), "a file that is gone changes nothing"
    assert caplog.text.count("the previous administrator's token stays valid") == 1


@pytest.mark.parametrize("content", ["", "short", "x" * 10_000, "a b" * 20, "ä" * 40])
def test_what_is_no_administrators_token_stops_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "admin"
    path.write_text(content)
    with pytest.raises(TokenFileError) as caught:
        AdminToken(path)
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize("place", ["a file in place of its folder", "a folder in its place"])
def test_an_administrators_file_that_cannot_be_had_stops_the_start_with_the_reason(tmp_path: Path, place: str) -> None:
    path = tmp_path / "folder" / "admin"
    if place == "a folder in its place":
        path.mkdir(parents=True, mode=0o700)
        path.chmod(0o700)
    else:
        path.parent.touch()
    with pytest.raises(TokenFileError) as caught:
        AdminToken(path)
    reason = "Is a directory" if place == "a folder in its place" else "File exists"
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_guessing_is_answered_ever_more_slowly_and_told_once_in_a_while() -> None:
    attempts = FailedAttempts()
    failures = [attempts.note("10.0.0.9", 100.0) for _ in range(20)]
    delays = [each.delay_s for each in failures]
    assert delays == sorted(delays)
    assert delays[0] == 0.0
    assert delays[-1] == MAX_DELAY_S
    assert [each.to_tell for each in failures] == [1] + [0] * 19
    assert attempts.note("10.0.0.9", 100.0 + TELL_S).to_tell == 20
    assert attempts.note("10.0.0.10", 100.0).delay_s == 0.0, "another address is another client"
    assert attempts.note("10.0.0.9", 200.0 + WINDOW_S).delay_s == 0.0, "what is long ago is forgotten"
    assert attempts.total == 23


def test_memory_for_failed_attempts_is_bounded() -> None:
    attempts = FailedAttempts()
    for number in range(MAX_ADDRESSES + 100):
        attempts.note(f"10.{number}", float(number) / 1_000)
    assert len(attempts._addresses) == MAX_ADDRESSES
    assert attempts.total == MAX_ADDRESSES + 100
