"""One line says where a job is, how long it takes, and what a failure would cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.run.launch.display import Display
from strata.run.launch.job_progress import Progress, format_duration, read_progress
from strata.wire._generated import coordinator_pb2 as pb


def test_the_line_has_what_people_on_call_look_at() -> None:
    workers = [
        pb.WorkerStatus(
            worker_id=f"w{rank}",
            rank=rank,
            state="training",
            step=120,
            epoch=1,
            resources={
                "step_s": 0.5,
                "samples_per_s": 100.0,
                "tokens_per_s": 1_000.0,
                "loss": 2.5,
                "data_wait_s": 0.05,
                "total_steps": 1_320,
                **({"stalled_s": 40.0} if rank else {}),
            },
        )
        for rank in range(2)
    ]
    gone = pb.WorkerStatus(worker_id="w2", rank=2, state="failed")
    job = pb.JobStatus(job_id="j", workers=[*workers, gone], checkpoints=[pb.CommitRecord(step=100)])
    progress = read_progress(pb.Status(jobs=[job]), "j", restarts=3)
    assert str(progress) == (
        "step 120/1320 · epoch 1 · 2 workers · 10 min left · 200 samples/s · 2,000 tokens/s · loss 2.5 · data wait 10%"
        " · saved step 100 (20 at risk) · 3 restarts · stalled: rank 1 for 40 s"
    )


def test_before_the_first_step_there_is_nothing_to_show() -> None:
    assert read_progress(pb.Status(), "j", restarts=0) is None
    job = pb.JobStatus(job_id="j", workers=[pb.WorkerStatus(worker_id="w", state="initializing")])
    assert read_progress(pb.Status(jobs=[job]), "j", restarts=0) is None


def test_what_is_not_known_is_left_out() -> None:
    assert str(Progress(step=7, epoch=0, workers=1)) == "step 7 · epoch 0 · 1 worker · nothing saved yet"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (3_600, "60 min"), (11_100, "3 h 5 min"), (190_000, "2 d 5 h")],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


FULL = Progress(
    step=120,
    epoch=1,
    workers=2,
    step_s=0.5,
    total_steps=1_320,
    samples_per_s=200.0,
    tokens_per_s=2_000.0,
    loss=2.5,
    data_wait=0.1,
    saved_step=100,
    stalled=("rank 1 for 40 s",),
    restarts=3,
)


@given(width=st.integers(1, 300))
def test_the_line_fits_any_terminal_and_never_cuts_a_part_while_it_can_drop_one(width: int) -> None:
    line = FULL.fit(width)
    assert len(line) <= width
    parts = str(FULL).split(" · ")
    assert line == parts[0][:width] or all(part in parts for part in line.split(" · "))


def test_on_80_columns_the_line_keeps_what_is_urgent() -> None:
    assert FULL.fit(79) == "step 120/1320 · saved step 100 (20 at risk) · stalled: rank 1 for 40 s"


def test_in_a_log_the_progress_is_a_plain_line_every_30_seconds(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    now_s = 1_000.0
    display = Display(is_live=False, clock=lambda: now_s)
    for seconds in range(0, 95, 5):
        now_s = 1_000.0 + seconds
        display.show(FULL)
    display.close()
    written = capsysbinary.readouterr().err
    assert written.decode() == f"strata run: {FULL}\n" * 3


def test_at_a_terminal_lines_of_workers_scroll_above_one_live_line(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    display = Display(is_live=True)
    display.show(Progress(step=1, epoch=0, workers=2))
    display.print_line("stderr", b"[0] hello")
    display.show(Progress(step=2, epoch=0, workers=2))
    assert _screen(capsysbinary.readouterr().err) == ["[0] hello", "step 2 · epoch 0 · 2 workers · nothing saved yet"]
    display.close()
    assert _screen(capsysbinary.readouterr().err) == [""]


def _screen(written: bytes) -> list[str]:
    """Return what a terminal shows, which knows how to begin a line anew and to erase it."""
    return [re.sub(r".*\r\x1b\[K", "", line) for line in written.decode().split("\n")]


@pytest.mark.parametrize(
    ("said", "stalled"),
    [
        # Its steps take twelve seconds, so ten of them are nothing.
        ({"step_s": 12.0, "stalled_s": 10.0, "limit_s": 120.0}, ()),
        ({"step_s": 12.0, "stalled_s": 37.0, "limit_s": 120.0}, ("rank 0 for 37 s",)),
        ({"step_s": 0.1, "stalled_s": 5.0, "limit_s": 120.0, "waiting": 1.0}, ()),
        ({"step_s": 0.1, "stalled_s": 5.0, "limit_s": 120.0, "paused": 1.0}, ()),
    ],
)
def test_only_a_step_that_takes_much_longer_than_usual_is_called_stalled(
    said: dict[str, float], stalled: tuple[str, ...]
) -> None:
    worker = pb.WorkerStatus(worker_id="w0", rank=0, state="training", step=3, resources=said)
    progress = read_progress(pb.Status(jobs=[pb.JobStatus(job_id="j", workers=[worker])]), "j", restarts=0)
    assert progress is not None
    assert progress.stalled == stalled
