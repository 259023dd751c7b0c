"""The first error that a task, a thread or a callback does not handle ends the coordinator, with one line."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from strata.coordinator.failing.fail_stop import FailStop
from strata.errors import JournalBrokenError


def criticals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]


async def breaks(error: Exception) -> None:
    raise error


async def test_a_task_that_breaks_ends_the_coordinator_once_and_names_the_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []
    fail_stop = FailStop(lambda: ended.append("now"))
    tasks = [fail_stop.own(breaks(KeyError("rank")), name=name) for name in ("journal", "ticks")]
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert ended == ["now"]
    (line,) = criticals(caplog)
    assert "the task 'journal' failed with an unexpected KeyError: 'rank', at test_fail_stop.py:" in line
    assert "Start it again: all that was acknowledged is in the journal" in line
    assert "\n" not in line
    assert isinstance(fail_stop.failure, KeyError)


async def test_a_task_that_ends_or_is_cancelled_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fail_stop = FailStop()
    done, cancelled = fail_stop.own(asyncio.sleep(0), name="a"), fail_stop.own(asyncio.sleep(60), name="b")
    await done
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert fail_stop.failure is None
    assert criticals(caplog) == []


def test_an_error_with_advice_of_its_own_is_told_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    error = JournalBrokenError("/state/j.db", "disk I/O error (SQLITE_IOERR_FSYNC)")
    FailStop().fail(error, where="the task 'journal'")
    assert criticals(caplog) == [f"the coordinator ends, because the task 'journal' failed: {error}"]
    assert "check its disk" in str(error)


def test_a_guarded_thread_that_breaks_ends_the_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    fail_stop = FailStop()

    def work() -> None:
        raise RuntimeError("no more")

    thread = threading.Thread(target=fail_stop.guard(work, name="strata-follower"))
    thread.start()
    thread.join()
    assert "the thread 'strata-follower' failed with an unexpected RuntimeError: no more" in criticals(caplog)[0]


async def test_a_callback_of_the_loop_and_a_thread_of_a_library_end_it_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    loop = asyncio.get_running_loop()
    fail_stop = FailStop()
    fail_stop.watch_process(loop)
    try:
        loop.call_soon(lambda: {}["absent"])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(fail_stop.failure, KeyError)
        other = FailStop()
        other.watch_process(loop)
        thread = threading.Thread(target=lambda: [][0], name="library")
        thread.start()
        thread.join()
        assert isinstance(other.failure, IndexError)
        assert "the thread 'library' failed" in criticals(caplog)[1]
    finally:
        loop.set_exception_handler(None)


@pytest.mark.parametrize(
    "context",
    [
        {"message": "SSL error in data received", "exception": ConnectionResetError("gone"), "transport": object()},
        {"message": "socket.accept() out of system resource", "exception": OSError(24, "files"), "socket": object()},
        {"message": "Task was destroyed but it is pending!"},
    ],
    ids=["a connection", "no files left", "no error"],
)
async def test_what_breaks_with_a_connection_ends_nothing(
    context: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    fail_stop, before = FailStop(), threading.excepthook
    fail_stop.watch_process(loop)
    try:
        loop.call_exception_handler(context)
        assert fail_stop.failure is None
        assert context["message"] in caplog.text
    finally:
        loop.set_exception_handler(None)
        threading.excepthook = before
