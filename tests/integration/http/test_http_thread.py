"""The thread that serves HTTP: it ends with its coordinator, and a failure that it heard of is on disk at once."""

from __future__ import annotations

import asyncio
import importlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from strata.client.http_reader import HttpReader
from strata.cluster import commands as c
from strata.coordinator import server
from strata.coordinator.http import http_thread
from strata.coordinator.server import Coordinator, CoordinatorConfig
from strata.errors import CoordinatorLostError
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def config(folder: Path, **options: Any) -> CoordinatorConfig:
    addresses = dict.fromkeys(("grpc_address", "channel_address", "http_address"), "127.0.0.1:0")
    return CoordinatorConfig(**addresses | options, version="test", state=f"sqlite://{folder}/j.db")


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


async def test_a_tool_that_asks_before_http_is_served_hears_where_it_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grpc_port, http_port = free_ports(2)
    addresses = {"grpc_address": f"127.0.0.1:{grpc_port}", "http_address": f"127.0.0.1:{http_port}"}
    lost: list[CoordinatorLostError] = []

    def load(name: str) -> Any:
        # In a thread, while gRPC is served and HTTP is not.
        with pytest.raises(CoordinatorLostError) as caught:
            HttpReader.of_leader(addresses["grpc_address"]).get("/api/health")
        lost.append(caught.value)
        return importlib.import_module(name)

    monkeypatch.setattr(server, "import_module", load)
    async with Coordinator(config(tmp_path, **addresses)):
        reader = await asyncio.to_thread(HttpReader.of_leader, addresses["grpc_address"])
        assert await asyncio.to_thread(reader.get, "/api/health")
    assert len(lost) == 1


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
