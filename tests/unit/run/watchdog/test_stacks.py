"""What a process is doing is written down: where each thread is, and how far its collectives are."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from strata.run.watchdog import stacks
from strata.run.watchdog.stacks import count_collectives, dump_stacks, place_of


def install_py_spy(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shell script be the py-spy of this test."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


def test_native_stacks_follow_those_of_python_where_py_spy_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_py_spy(tmp_path, 'echo "asked: $@"; echo "and an error" >&2; exit 1', monkeypatch)
    path = dump_stacks(tmp_path / "stacks", "stacks-w1")
    assert path.parent == tmp_path / "stacks"
    text = path.read_text()
    python, _, native = text.partition("\npy-spy dump --native:\n")
    assert "in test_native_stacks_follow" in python
    assert native == f"asked: dump --native --pid {os.getpid()}\nand an error\n"


def test_a_py_spy_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_py_spy(tmp_path, "exec sleep 1000", monkeypatch)
    monkeypatch.setattr(stacks, "PY_SPY_S", 0.01)
    text = dump_stacks(tmp_path / "stacks", "stacks-w1").read_text()
    assert text.endswith("py-spy dump --native:\npy-spy did not answer within 0.01 s\n")


def test_a_thread_is_placed_in_the_users_code_or_else_where_it_is() -> None:
    end, begun = threading.Event(), threading.Event()

    def wait_in_this_file() -> None:
        begun.set()
        end.wait()

    threads = [threading.Thread(target=wait_in_this_file), threading.Thread(target=end.wait)]
    for thread in threads:
        thread.start()
    begun.wait()
    try:
        mine, librarys = (place_of(thread.ident or 0) for thread in threads)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert mine.startswith("test_stacks.py:")
    assert mine.endswith(" in wait_in_this_file")
    assert librarys.startswith("threading.py:")
    assert place_of(0) == "unknown"


class Group:
    """A process group of torch that has entered so many collectives, or does not say."""

    def __init__(self, count: int | None) -> None:
        self._count = count

    def _get_sequence_number_for_group(self) -> int:
        if self._count is None:
            raise RuntimeError("Backend ucc does not implement getSequenceNumberForGroup")
        return self._count


@pytest.mark.parametrize(
    ("is_initialized", "groups", "count"),
    [
        (False, [Group(1)], None),
        (True, [Group(3), Group(4)], 7.0),
        (True, [Group(3), Group(None)], None),
        (True, [object()], None),
    ],
    ids=["no groups", "all count", "a backend that does not count", "another version of torch"],
)
def test_collectives_are_counted_over_all_groups_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, is_initialized: bool, groups: list[object], count: float | None
) -> None:
    world = SimpleNamespace(pg_map=dict.fromkeys(groups))
    c10d = SimpleNamespace(is_initialized=lambda: is_initialized, _world=world)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    assert count_collectives() == count
