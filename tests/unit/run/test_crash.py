"""A traceback on stderr says which exception ended a program, and where the user's own code was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.run.launch.crash import Crash, find_crash
from strata.run.launch.restart_policy import Exit, GiveUp, Preempted, Restart, RestartPolicy, Restarts


def crash_of(script: str, tmp_path: Path) -> Crash | None:
    path = tmp_path / "train.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    return find_crash(["some line before", *done.stderr.splitlines()])


def test_the_line_is_the_users_own_and_not_one_of_a_library(tmp_path: Path) -> None:
    crash = crash_of("import json\ndef read():\n    return json.loads('{')\nread()\n", tmp_path)
    assert crash is not None
    assert (crash.name, crash.place, crash.code) == (
        "JSONDecodeError",
        "train.py:3 in read",
        "return json.loads('{')",
    )


def test_of_chained_exceptions_the_last_one_counts(tmp_path: Path) -> None:
    crash = crash_of("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e\n", tmp_path)
    assert crash is not None
    assert (crash.exception, crash.message, crash.place) == ("KeyError", "'k'", "train.py:4 in <module>")


def test_a_syntax_error_is_fatal(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n")
    crash = crash_of(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport broken\n", tmp_path)
    assert crash is not None
    assert crash.is_fatal


def test_the_rank_that_torch_puts_before_each_line_is_no_hindrance() -> None:
    lines = ["Traceback (most recent call last):", '  File "/me/train.py", line 3, in main', "    f()", "KeyError: 1"]
    crash = find_crash([f"[rank1]: {line}" for line in lines])
    assert crash == Crash("KeyError", "1", "train.py:3 in main", "f()")


@pytest.mark.parametrize("lines", [[], ["killed"], ["Traceback (most recent call last):"]])
def test_without_a_whole_traceback_nothing_is_known(lines: list[str]) -> None:
    assert find_crash(lines) is None


@given(lines=st.lists(st.text(max_size=40), max_size=30))
def test_whatever_a_program_wrote_before_its_traceback_is_found(lines: list[str]) -> None:
    frame = '  File "/me/train.py", line 3, in main'
    crash = find_crash(
        ["Traceback (most recent call last):", *lines, "Traceback (most recent call last):", frame, "KeyError: 1"]
    )
    assert crash == Crash("KeyError", "1", "train.py:3 in main")


@given(lines=st.lists(st.text(max_size=40), max_size=30))
def test_lines_without_a_frame_are_no_traceback(lines: list[str]) -> None:
    assert find_crash(["Traceback (most recent call last):", *lines]) is None


def ended(message: str, *, worker: int = 0, did_step: bool = False, name: str = "ValueError") -> Exit:
    crash = Crash(name, message, "train.py:1")
    return Exit(worker_id=f"w{worker}", rank=worker, code=1, lived_s=1.0, crash=crash, did_step=did_step)


def decide(restarts: Restarts, exit_: Exit, *, running: int = 1) -> object:
    return restarts.decide(exit_, running=running, now_s=0.0, chance=0.5)


def test_the_same_error_twice_in_a_row_before_any_step_is_enough() -> None:
    restarts = Restarts(RestartPolicy(), min_workers=2)
    assert isinstance(decide(restarts, ended("a")), Restart)
    assert isinstance(decide(restarts, ended("b")), Restart)
    assert isinstance(decide(restarts, ended("b")), GiveUp)


def test_random_names_and_addresses_make_no_other_error() -> None:
    restarts = Restarts(RestartPolicy(), min_workers=2)
    assert isinstance(decide(restarts, ended("step_0/model-1-of-2.33a36565.safetensors: full")), Restart)
    assert isinstance(decide(restarts, ended("step_0/model-1-of-2.8081d7e6.safetensors: full")), GiveUp)
    assert isinstance(decide(restarts, ended("<Thing at 0x7f01>", worker=1)), Restart)
    assert isinstance(decide(restarts, ended("<Thing at 0x7f02>", worker=1)), GiveUp)


def test_a_save_that_another_worker_aborted_is_no_error_of_this_one() -> None:
    restarts = Restarts(RestartPolicy(), min_workers=2)
    for _ in range(3):
        assert isinstance(decide(restarts, ended("a", name="strata.errors.CheckpointAbortedError")), Restart)


def test_an_error_after_a_step_or_from_the_network_is_tried_again() -> None:
    restarts = Restarts(RestartPolicy(), min_workers=2)
    for _ in range(3):
        assert isinstance(decide(restarts, ended("a", did_step=True)), Restart)
        assert isinstance(decide(restarts, ended("a", name="strata.errors.CoordinatorLostError")), Restart)


def test_workers_that_fail_because_one_did_use_up_no_restarts() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=1), min_workers=3)
    assert isinstance(decide(restarts, ended("a", did_step=True)), Restart)
    assert isinstance(decide(restarts, ended("b", worker=1, did_step=True)), Restart)
    assert isinstance(decide(restarts, ended("b", worker=2, did_step=True)), Restart)
    assert isinstance(decide(restarts, ended("b", worker=2, did_step=True)), GiveUp)
    assert restarts.first_cause is not None
    assert restarts.first_cause.worker_id == "w0"


def test_a_worker_that_was_told_to_leave_is_missed_only_if_the_job_needs_it() -> None:
    left = Exit(worker_id="w0", rank=0, code=143, lived_s=1.0)
    assert decide(Restarts(RestartPolicy(), min_workers=1), left) == Preempted()
    assert isinstance(decide(Restarts(RestartPolicy(), min_workers=2), left), Restart)


def test_what_a_rewind_left_undone_is_not_tried_again(tmp_path: Path) -> None:
    script = "from strata.errors import UnfinishedRewindError\nraise UnfinishedRewindError('llm', to_step=10)\n"
    crash = crash_of(script, tmp_path)
    assert crash is not None
    assert crash.is_fatal


def test_a_module_that_is_not_there_is_fatal() -> None:
    done = subprocess.run([sys.executable, "-m", "no_such_module"], capture_output=True, text=True, check=False)
    crash = find_crash(done.stderr.splitlines())
    assert crash is not None
    assert crash.is_fatal
    assert crash.message == "No module named no_such_module"


def test_a_module_that_is_not_there_is_fatal_for_a_python_in_a_folder_with_a_space() -> None:
    crash = find_crash(["/home/me/My Projects/.venv/bin/python3.11: No module named train"])
    assert crash is not None
    assert crash.is_fatal
    assert crash.message == "No module named train"


def test_arguments_that_are_refused_twice_in_the_same_words_are_not_tried_again() -> None:
    def refused(words: str, code: int = 2, *, did_step: bool = False) -> Exit:
        lines = ("usage: train.py [-h]", words)
        return Exit(worker_id="w0", rank=0, code=code, lived_s=1.0, last_lines=lines, did_step=did_step)

    restarts = Restarts(RestartPolicy(), min_workers=1)
    said = "train.py: error: unrecognized arguments: --lrr"
    for each in (refused(said), refused("another"), refused(said, code=1), refused(said), refused(said, did_step=True)):
        assert isinstance(decide(restarts, each, running=0), Restart)
    assert isinstance(decide(restarts, refused(said), running=0), Restart)
    assert isinstance(decide(restarts, refused(said), running=0), GiveUp)
    assert isinstance(decide(restarts, Exit(worker_id="w1", rank=1, code=2, lived_s=1.0), running=0), Restart)
    assert isinstance(decide(restarts, Exit(worker_id="w1", rank=1, code=2, lived_s=1.0), running=0), Restart)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (b"x = 1\ndef f(:\n", "SyntaxError"),
        (b"def f():\nx = 1\n", "IndentationError"),
        (b"if 1:\n\tx = 1\n        y = 2\n", "TabError"),
        (b"x = 'a\xff'\n", "SyntaxError"),
    ],
)
def test_a_script_that_cannot_be_compiled_is_fatal_though_python_writes_no_traceback(
    tmp_path: Path, script: bytes, name: str
) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    crash = find_crash(["some line before", *done.stderr.splitlines()])
    assert crash is not None, done.stderr
    assert (crash.name, crash.is_fatal) == (name, True)
    assert crash.place.startswith("train.py:") or not crash.place


def test_a_script_given_as_a_module_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    command = [sys.executable, "-m", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    crash = find_crash(done.stderr.splitlines())
    assert crash is not None
    assert crash.is_fatal


def said(words: str, code: int = 1, *, worker: int = 0, lived_s: float = 1.0, did_step: bool = False) -> Exit:
    return Exit(worker_id=f"w{worker}", rank=worker, code=code, lived_s=lived_s, last_lines=(words,), did_step=did_step)


def decisions(exits: list[Exit], *, of_group: bool = False) -> list[type]:
    restarts = Restarts(RestartPolicy(), min_workers=2)
    return [type(restarts.decide(each, running=1, now_s=0.0, chance=0.5, of_group=of_group)) for each in exits]


def test_a_program_that_ends_twice_in_the_same_words_is_not_tried_again() -> None:
    assert decisions([said("no data at /x"), said("no data at /x")]) == [Restart, GiveUp]
    assert decisions([said("no data at /x"), said("no data at /y")]) == [Restart, Restart]
    assert decisions([said("rank 1: no data", worker=1), said("rank 1: no data", 3, worker=1)]) == [Restart, Restart]


@pytest.mark.parametrize(
    "ended",
    [
        said("the service is temporarily down"),
        said("no data", -9),
        said("no data", 137),
        said("hung", 87),
        said("the membership changed", 86),
        said("loss is nan", did_step=True),
        said("loss is nan", lived_s=61.0),
        Exit(worker_id="w0", rank=0, code=1, lived_s=1.0),
    ],
)
def test_a_failure_that_may_pass_is_tried_again(ended: Exit) -> None:
    assert decisions([ended] * 3) == [Restart] * 3


def test_of_a_group_it_does_not_matter_which_worker_failed_first() -> None:
    exits = [said("rank 3: no data at /x", worker=3), said("rank 0: no data at /x", worker=0)]
    assert decisions(exits, of_group=True) == [Restart, GiveUp]
    assert decisions(exits) == [Restart, Restart]


def test_the_same_failure_on_another_machine_is_not_tried_again() -> None:
    here, there = (Restarts(RestartPolicy(), min_workers=2) for _ in range(2))
    first = said("rank 3: no data at /x", worker=3)
    there.decide(first, running=1, now_s=0.0, chance=0.5, of_group=True)
    here.count_elsewhere(1, signature=there.last_of_group, now_s=0.0)
    again = here.decide(said("rank 0: no data at /x"), running=1, now_s=0.0, chance=0.5, of_group=True)
    assert isinstance(again, GiveUp)
