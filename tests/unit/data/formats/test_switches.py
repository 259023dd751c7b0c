"""The judge of what lets other threads run tells apart what does from what does not."""

from __future__ import annotations

import ctypes
import time

import pytest

from tests.unit.data.formats.switches import runs_beside

NAP_US = 2_000


def test_no_other_thread_runs_while_python_code_does() -> None:
    assert not runs_beside(lambda: sum(range(10_000)), attempts=200)


def test_another_thread_runs_while_one_sleeps() -> None:
    assert runs_beside(lambda: time.sleep(0.001), attempts=10_000)


@pytest.mark.parametrize(
    ("library", "lets_others_run"),
    [(ctypes.CDLL(None), True), (ctypes.PyDLL(None), False)],
    ids=["lets go of the lock", "holds the lock"],
)
def test_native_code_is_judged_by_whether_it_holds_the_lock(library: ctypes.CDLL, *, lets_others_run: bool) -> None:
    sleep = library.usleep
    assert runs_beside(lambda: sleep(NAP_US), attempts=10_000 if lets_others_run else 200) is lets_others_run
