"""The folder of a job on this machine: the newest run is found, and old ones do not fill the disk."""

from __future__ import annotations

from pathlib import Path

from strata.cluster.events import Cause
from strata.run.job_folder import KEPT_RUNS, JobFolder, make_folder


def test_a_new_run_is_the_latest_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    old = [f"20200101-0000{number:02}-1" for number in range(KEPT_RUNS + 2)]
    for name in old:
        (tmp_path / "runs" / name / "logs").mkdir(parents=True)
    made = make_folder(tmp_path)
    assert (tmp_path / "latest").resolve() == made.path.resolve()
    assert made.logs.is_dir()
    kept = sorted(each.name for each in (tmp_path / "runs").iterdir())
    assert kept == [*old[-(KEPT_RUNS - 1) :], made.path.name]
    assert made.path.stat().st_mode & 0o077 == 0, "it holds a token"


def test_a_second_run_replaces_the_link_to_the_latest(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("runs/gone")
    assert (tmp_path / "latest").resolve() != make_folder(tmp_path).path
    assert (tmp_path / "latest" / "lives").is_dir()


def test_worker_reads_why_its_launcher_ends_it_and_a_run_without_a_launcher_has_no_such_note(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "launched")
    assert folder.read_why_ended() is None
    folder.note_why_ended(Cause.STOPPED, "Ctrl-C")
    assert folder.read_why_ended() == (Cause.STOPPED, "Ctrl-C")
    assert make_folder(tmp_path / "next").read_why_ended() is None
    alone = JobFolder(tmp_path / "alone")
    alone.note_why_ended(Cause.STOPPED, "Ctrl-C")
    assert alone.read_why_ended() is None


def test_launcher_reads_as_whom_a_process_is_in_the_job_until_it_has_said_goodbye(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert folder.read_membership(worker_id="w") is None
    folder.note_membership("1-a.2", worker_id="w")
    assert folder.read_membership(worker_id="w") == "1-a.2"
    folder.discard_membership(worker_id="w")
    assert folder.read_membership(worker_id="w") is None
