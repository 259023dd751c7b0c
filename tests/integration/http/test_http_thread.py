"""The thread that serves HTTP: it ends with its coordinator, and a failure that it heard of is on disk at once."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from strata.cluster import commands as c
from strata.coordinator.http import http_thread
from strata.coordinator.server import Coordinator, CoordinatorConfig
from tests.testbed.pace import stretch
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def config(folder: Path, **options: Any) -> CoordinatorConfig:
    addresses = dict.fromkeys(("grpc_address", "channel_address", "http_address"), "127.0.0.1:0")
    return CoordinatorConfig(**addresses, version="test", state=f"sqlite://{folder}/j.db", **options)


def serving_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "strata-http"}


async def test_a_coordinator_that_ends_before_its_page_is_made_leaves_no_thread_behind(tmp_path: Path) -> None:
    before, is_closing = serving_threads(), threading.Event()

    def make_page() -> Any:
        assert is_closing.wait(stretch(40))

    async with Coordinator(config(tmp_path, make_page=make_page)) as coordinator:
        (thread,) = serving_threads() - before
        threading.Timer(0.2, is_closing.set).start()
        assert coordinator.http_port
    assert not thread.is_alive()


async def test_a_failure_is_written_down_before_anything_else_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_thread, "SAVE_S", 1e9)
    history = tmp_path / "j.db-history.jsonl"
    async with Coordinator(config(tmp_path)) as coordinator:
        # A process that takes the place of one that did not leave: only the history knows that as a failure.
        for incarnation in ("1-first", "1-second"):
            await coordinator.dispatcher.ask(c.RegisterWorker(job_id="job", worker_id="a", incarnation=incarnation))
        await asyncio.to_thread(
            wait_until, lambda: history.exists() and '"failures":1' in history.read_text(), "the failure is in the file"
        )
