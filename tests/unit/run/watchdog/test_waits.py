"""Whoever waits longer than three seconds says for what, for whom, since when, and until when."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from strata.run.watchdog.waits import Waits


def test_a_wait_is_told_after_three_seconds_and_then_more_and_more_rarely(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "strata.run.watchdog.waits"]

    now_s = 1_000.0
    monkeypatch.setattr("strata.run.watchdog.waits.time", SimpleNamespace(monotonic=lambda: now_s))
    waits = Waits()
    with waits.waiting("meeting 'x'", whom=lambda: "w1 (rank 1)", timeout_s=100.0):
        for later_s in (2.0, 4.0, 5.0, 11.0, 31.0, 61.0, 121.5):
            waits.tick(now_s + later_s)
    assert told()[0] == "waiting for w1 (rank 1) for 4 s, timeout in 96 s: meeting 'x'"
    assert len(told()) == 5
    waits.tick(now_s + 500.0)
    assert len(told()) == 5, "it is over"


def test_only_a_wait_for_others_excuses_a_thread() -> None:
    waits = Waits()
    me = threading.get_ident()
    with waits.waiting("the next batch", is_on_others=False):
        assert not waits.is_on_others(me)
        with waits.waiting("a barrier"):
            assert waits.is_on_others(me)
            assert not waits.is_on_others(me + 1)
    assert not waits.is_on_others(me)
