"""Real runs with tokens: what they leave behind, and what can be seen of them meanwhile, holds no secret."""

from __future__ import annotations

import os
import stat
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest

from strata.wire._generated import coordinator_pb2 as pb
from strata.wire._generated import coordinator_pb2_grpc as stubs
from tests.testbed.coordinator import GuardedProcess
from tests.testbed.pace import stretch
from tests.testbed.process import run_program, start
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.full

# One of two workers crashes in its first life. The other notes how all processes of this machine were started.
CRASHING = """
import os, pathlib, sys
from strata.client.client import Client
here, rank = pathlib.Path(sys.argv[0]).parent, os.environ["RANK"]
with Client(os.environ["COORDINATOR_URL"], os.environ["WORKER_ID"]) as client:
    client.wait_registered()
    if rank == "0":
        found = [each.read_bytes() for each in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
        (here / "processes").write_bytes(b"\\n".join(found))
    elif not (here / "crashed").exists():
        (here / "crashed").touch()
        raise RuntimeError("planned")
"""
WAITING = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[0]).parent
(here / "url.new").write_text(os.environ["COORDINATOR_URL"])
(here / "url.new").rename(here / "url")
while not (here / "go").exists():
    time.sleep(0.05)
"""


def environment(home: Path, **fields: str) -> dict[str, str]:
    """What a program of a user with this home sees, and nothing of this test run's own settings."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "XDG_"))}
    return {**outside, "HOME": str(home), **fields}


def launcher(folder: Path, script: str, *options: str) -> list[str]:
    (folder / "train.py").write_text(script)
    return [sys.executable, "-m", "strata", "run", *options, str(folder / "train.py")]


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.timeout(300)
def test_a_run_leaves_its_token_in_no_file_answer_or_list_of_processes(tmp_path: Path) -> None:
    coordinator = GuardedProcess(tmp_path)
    with coordinator.serving():
        token = coordinator.make_token("worker", tenant="default", name="trainers")
        done = run_program(
            launcher(tmp_path, CRASHING, "--nproc", "2", "--max-restarts", "1", "--coordinator", coordinator.url),
            env=environment(tmp_path, STRATA_TOKEN=token),
            cwd=tmp_path,
            capture_output=True,
            timeout=stretch(120),
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        found = {"stdout": done.stdout, "stderr": done.stderr}
        for path in ("/metrics", "/api/status", "/api/dashboard", "/api/events", "/api/workers"):
            asked = urllib.request.Request(
                coordinator.http_url + path, headers={"Authorization": f"Bearer {coordinator.admin}"}
            )
            with urllib.request.urlopen(asked, timeout=stretch(20)) as answer:
                found[path] = answer.read()
        admin = coordinator.admin
    found |= {str(path): data for path, data in files_below(tmp_path).items() if path.name != "admin-token"}
    # It was looked where there is something to find.
    assert b"trainers" in found["/api/events"]
    assert any(b"planned" in data for name, data in found.items() if name not in ("stdout", "stderr")), sorted(found)
    assert b"coordinator" in found[str(tmp_path / "processes")]
    assert {"j.db", "coordinator.log"} <= {Path(name).name for name in found}
    for secret in (token, admin):
        hidden = secret.rpartition("_")[2].encode()
        assert [name for name, data in found.items() if hidden in data] == []


@pytest.mark.timeout(300)
def test_a_standalone_run_has_a_token_of_its_own_that_other_users_do_not_have(tmp_path: Path) -> None:
    home, stranger = tmp_path / "home", tmp_path / "stranger"
    home.mkdir()
    stranger.mkdir()
    command = ["sh", "-c", 'umask 000; exec "$@"', "sh", *launcher(tmp_path, WAITING, "--standalone")]
    with (tmp_path / "output").open("wb") as output:
        process = start(command, env=environment(home), cwd=tmp_path, stdout=output, stderr=output)
    try:
        wait_until((tmp_path / "url").exists, lambda: (tmp_path / "output").read_text(errors="replace"))
        url = (tmp_path / "url").read_text()
        kept = [path for path in (home / ".local").rglob("*") if path.is_file() and path.parent.name == "tokens"]
        assert kept
        assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
        # All the way from the home, whatever the user's umask.
        ways = {folder for path in kept for folder in path.parents if home in folder.parents}
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in ways} == {0o700}
        token = kept[0].read_text().split()[0]

        with (
            grpc.insecure_channel(url.removeprefix("http://")) as channel,
            pytest.raises(grpc.RpcError) as refused,
        ):
            stubs.CoordinatorStub(channel).GetStatus(pb.GetStatus(), timeout=stretch(10))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        for user, lets_in in ((home, True), (stranger, False)):
            shown = run_program(
                [sys.executable, "-m", "strata", "status", "--coordinator", url],
                env=environment(user),
                cwd=tmp_path,
                capture_output=True,
                timeout=stretch(60),
                check=False,
            )
            assert (shown.returncode == 0) is lets_in, shown.stderr
        (tmp_path / "go").touch()
        assert process.wait(stretch(60)) == 0
    finally:
        process.kill()
        process.wait(stretch(20))
    assert not any(path.exists() for path in kept), "it ends with the run"
    hidden = token.rpartition("_")[2].encode()
    assert {path.name for path, data in files_below(tmp_path).items() if hidden in data} <= {"admin-token"}
