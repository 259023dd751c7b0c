"""What a worker tells of its machine; what cannot be found out is left out, and stops nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata.run.team import host
from strata.run.team.host import count_gpus, describe_host, memory_numbers


@pytest.mark.parametrize(("visible", "count"), [("0,2", 2), ("", 0), ("-1", 0), ("GPU-1, ", 1)])
def test_the_gpus_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == count


def test_without_a_choice_all_gpus_of_the_driver_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(host, "_GPUS", tmp_path)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert count_gpus() == 2
    monkeypatch.setattr(host, "_GPUS", tmp_path / "no driver")
    assert count_gpus() == 0


def test_where_the_system_does_not_tell_its_memory_nothing_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no such thing here")

    assert memory_numbers()["rss_bytes"] > 0
    assert describe_host()["memory_bytes"] > 0
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(os, "sysconf", refuse)
    assert "rss_bytes" not in memory_numbers()
    assert describe_host()["memory_bytes"] == 0
