"""An event loop in a thread of its own: it starts by itself, ends for good, and does not survive a fork."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref

import pytest

from strata import background
from strata.background import BackgroundLoop
from tests.testbed.pace import stretch


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_work_runs_in_a_thread_of_that_name() -> None:
    loop = BackgroundLoop("strata-test", owner="a Test")
    try:
        assert loop.submit(name_of_thread()).result(stretch(10)) == "strata-test"
        called = threading.Event()
        loop.call_soon(called.set)
        assert called.wait(stretch(10))
    finally:
        loop.close()


def test_closing_cancels_what_is_under_way_and_refuses_more() -> None:
    loop = BackgroundLoop("strata-test", owner="a Test")
    waiting = loop.submit(asyncio.sleep(600))
    loop.close()
    with pytest.raises(RuntimeError, match="a Test that was closed does nothing more"):
        waiting.result(stretch(10))
    with pytest.raises(RuntimeError, match="a Test that was closed does nothing more"):
        loop.submit(name_of_thread())
    loop.close()


class EndedError(Exception):
    """What a test's loop says of work that its end has ended."""


def test_work_that_closing_ends_fails_with_the_error_of_the_owner() -> None:
    loop = BackgroundLoop("strata-test", owner="a Test", make_closed_error=EndedError)
    begun = loop.submit(asyncio.sleep(600))
    cancelled = loop.submit(asyncio.sleep(600))
    cancelled.cancel()
    last = loop.submit(asyncio.sleep(600))
    loop.close()
    for future in (begun, last):
        with pytest.raises(EndedError):
            future.result(stretch(10))
    assert cancelled.cancelled()
    for late in (lambda: loop.submit(name_of_thread()), lambda: loop.call_soon(print)):
        with pytest.raises(EndedError):
            late()


def test_whatever_is_submitted_while_the_loop_is_closed_ends() -> None:
    for _ in range(50):
        loop = BackgroundLoop("strata-test", owner="a Test", make_closed_error=EndedError)
        loop.submit(name_of_thread()).result(stretch(10))
        closing = threading.Thread(target=loop.close)
        closing.start()
        futures = []
        with pytest.raises(EndedError):
            while True:
                futures.append(loop.submit(asyncio.sleep(600)))
        for future in futures:
            with pytest.raises(EndedError):
                future.result(stretch(30))
        closing.join()


def test_in_a_forked_child_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = BackgroundLoop("strata-test", owner="a Test")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="a Test does not survive a fork; make one in the new process"):
        loop.submit(name_of_thread())


def test_what_cannot_be_closed_at_exit_is_logged_and_the_others_are_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed = []

    class Owner:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self, *, timeout_s: float) -> None:
            closed.append(self.name)
            raise RuntimeError(f"{self.name} cannot be closed")

    owners = [Owner("one"), Owner("two")]
    monkeypatch.setattr(background, "_at_exit", weakref.WeakSet(owners))
    background._close_all()
    assert sorted(closed) == ["one", "two"]
    assert caplog.text.count("pending saves could not be finished at exit") == 2


def test_a_loop_ends_without_an_error_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = BackgroundLoop("strata-test", owner="a Test")
    names = loop.submit(asyncio.to_thread(lambda: threading.current_thread().name))
    assert names.result(stretch(10)).startswith("strata-test_")
    (thread,) = (each for each in threading.enumerate() if each.name == "strata-test")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    # An exception in the thread would be a warning, and warnings are errors.
    monkeypatch.setattr(threading.Thread, "start", refuse)
    loop.close()
    assert not thread.is_alive()
