"""``strata doctor`` on machines that have something to mend."""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path

import pytest

from strata.cli import doctor
from strata.cli.app import main
from strata.cli.doctor import Finding, check_disk, check_ports, check_python, check_storage, check_torch
from strata.config import load_settings
from strata.storage import MemoryStorage
from tests.testbed.process import free_ports


@pytest.fixture(autouse=True)
def _small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_BYTES", doctor.BLOCK_BYTES)


def test_without_torch_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert check_torch() == [Finding("torch", "ok", "not installed; it is needed for DDP and FSDP only")]


@pytest.mark.parametrize(("starts_threads", "level"), [(True, "ok"), (False, "warning")])
def test_a_python_that_cannot_finish_saves_at_exit_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, starts_threads: bool, level: str
) -> None:
    monkeypatch.setattr(doctor, "STARTS_THREADS_AT_EXIT", starts_threads)
    (finding,) = check_python()
    assert finding.level == level
    assert ("use 3.12.3 or newer" in finding.mend) is not starts_threads


def test_a_port_that_is_taken_is_a_warning_that_names_its_use() -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        refused, fine = check_ports({taken: "gRPC", free: "HTTP"})
    assert (refused.name, refused.level, refused.found) == (f"port {taken}", "warning", "gRPC: Address already in use")
    assert "give it another port: strata coordinator --help (gRPC)" in refused.mend
    assert fine == Finding(f"port {free}", "ok", "HTTP: free")


def test_a_folder_that_does_not_exist_yet_is_measured_where_it_would_be(tmp_path: Path) -> None:
    *_, disk = check_disk(tmp_path / "not" / "yet")
    assert disk.found.startswith(f"{tmp_path}: ")
    assert list(tmp_path.iterdir()) == [], "the probe is taken away"


# Flags that this system refuses as others refuse O_DIRECT: when a file is opened, and when it is written.
@pytest.mark.parametrize("refused", [os.O_TMPFILE, os.O_RDWR], ids=["at open", "at write"])
def test_a_file_system_without_direct_io_is_measured_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    monkeypatch.setattr(os, "O_DIRECT", refused)
    direct, disk = check_disk(tmp_path)
    assert (direct.name, direct.level) == ("O_DIRECT", "warning")
    assert direct.found == f"refused by the file system of {tmp_path}"
    assert "through the page cache" in direct.mend
    assert "MB/s durable" in disk.found


@pytest.mark.parametrize(
    ("slow_mb_s", "level", "mend"),
    [(0.0, "ok", ""), (1e12, "warning", "checkpoints will take long; use a local NVMe disk or an object store")],
)
def test_a_slow_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_mb_s: float, level: str, mend: str
) -> None:
    monkeypatch.setattr(doctor, "SLOW_DISK_MB_S", slow_mb_s)
    *_, disk = check_disk(tmp_path)
    assert (disk.name, disk.level, disk.mend) == ("disk", level, mend)


def test_a_disk_that_takes_too_few_bytes_is_a_problem(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (doctor.PROBE_BYTES // 2, hard))
    try:
        found = check_disk(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    mend = "free some space, or choose another path"
    assert found == [Finding("disk", "problem", f"{tmp_path}: File too large", mend)]


def test_a_path_that_leaves_no_room_for_file_names_is_a_problem(tmp_path: Path) -> None:
    # A directory of the probe's name fits below it, and no file in that.
    longest = os.pathconf("/", "PC_PATH_MAX") - 1 - len("/.strata-doctor-abcdefgh")
    folder = tmp_path
    while (room := longest - len(str(folder)) - 1) > 0:
        folder /= "x" * (room if room <= 200 else 100)
        folder.mkdir()
    assert len(str(folder)) == longest
    mend = "free some space, or choose another path"
    assert check_disk(folder) == [Finding("disk", "problem", f"{folder}: File name too long", mend)]


class Overwriting(MemoryStorage):
    """A store that breaks the promise of ``write_new``."""

    async def write_new(self, path: str, data: bytes) -> None:
        await self.write(path, data)


def test_a_store_that_overwrites_what_is_to_be_new_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Overwriting()
    monkeypatch.setattr("strata.storage.storage_from_env", lambda: storage)
    (found,) = check_storage(load_settings(storage_backend="memory"))
    assert (found.name, found.level) == ("storage memory", "problem")
    assert found.found == "it overwrites objects that are to be new"
    assert "use a store with put-if-absent" in found.mend


def test_a_store_that_cannot_be_written_is_a_problem_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCAL_STORAGE_PATH", str(tmp_path / "file"))
    (found,) = check_storage(load_settings())
    assert (found.name, found.level) == ("storage local", "problem")
    assert f"{tmp_path / 'file'}: it is a file, or below one" in found.found
    assert found.mend == "see docs/storage.md for its settings"


def test_what_to_mend_is_printed_below_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_STORAGE_PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "check_torch", list)  # importing it takes seconds
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", {port: "HTTP"})
        with pytest.raises(SystemExit) as ended:
            main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(f"warning  port {port:<9} HTTP: Address already in use")
    assert lines[at + 1].lstrip() == (
        "-> a coordinator runs here already, or give it another port: strata coordinator --help (HTTP)"
    )
    assert ended.value.code == 0, "a warning is no problem"
