"""Rolling upgrades with real images: one container after the other is replaced while training goes on."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from strata.coordinator.journal.etcd.records import FORMAT
from tests.testbed.containers.engine import ROOT, Engine
from tests.testbed.containers.production import NODES, REPLICAS, production_of
from tests.testbed.containers.stack import Stack, stack_of
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("containers"), pytest.mark.timeout(1800), pytest.mark.xdist_group("containers")]
WORKERS = 2
# The release before does not slow down as much as this machine may need; so there is more to train.
EPOCHS = 24


@pytest.fixture(scope="module")
def before(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tag of images of the last release, in which journals in etcd have the format before that of today."""
    sources = unpack_last_release(tmp_path_factory.mktemp("release") / "sources")
    records = sources / "src/strata/coordinator/journal/etcd/records.py"
    text, count = re.subn(r"^FORMAT = \d+$", f"FORMAT = {FORMAT - 1}", records.read_text(), flags=re.MULTILINE)
    assert count == 1
    records.write_text(text)
    for image, dockerfile in (("coordinator", "Dockerfile"), ("worker", "Dockerfile.worker")):
        engine.build(f"strata-{image}:before", dockerfile, "--build-arg=VERSION=before", context=sources)
    return "before"


def test_the_release_before_is_upgraded_container_by_container(engine: Engine, before: str) -> None:
    """The coordinator first, as docs/deployment.md says; then old and new workers train in one job for a while."""
    with stack_of(engine, tag=before, epochs=EPOCHS) as stack:
        stack.up_apart("coordinator", "dashboard", "worker", workers=WORKERS)
        stack.wait_trains(workers=WORKERS)
        assert stack.label("coordinator") == before
        stack.environment["STRATA_TAG"] = "local"
        stack.replace("coordinator", workers=WORKERS)
        stack.wait_trains(workers=WORKERS)
        stack.replace("dashboard", workers=WORKERS)
        replace_workers(stack)
        stack.wait_finished()
        stack.prove()


def test_replicas_and_workers_are_upgraded_from_the_format_before(engine: Engine, before: str, tmp_path: Path) -> None:
    """The journal in etcd is of the format before until an upgraded coordinator leads."""
    with production_of(engine, tmp_path, tag=before, epochs=EPOCHS) as stack:
        # The image of the release before makes no secrets.
        stack.make_secrets(tag="local")
        stack.up_apart(*NODES, "s3")
        stack.up_apart(*REPLICAS)
        stack.environment["STRATA_TAG"] = "local"
        stack.up_apart("tokens", "dashboard")
        wait_until(lambda: not stack.is_running("tokens"), "the tokens", timeout_s=180)
        stack.environment["STRATA_TAG"] = before
        stack.up_apart("worker", workers=WORKERS)
        stack.environment["STRATA_TAG"] = "local"
        stack.sign_in()
        stack.wait_trains(workers=WORKERS)
        # Standbys first: each change of the leader costs a takeover.
        leader = stack.leader()
        assert stack.journal_format() == FORMAT - 1
        for service in sorted(REPLICAS, key=lambda each: each == leader):
            stack.replace(service)
            stack.wait_ready(service)
            stack.wait_trains(workers=WORKERS)
        assert stack.leader() != leader
        assert stack.journal_format() == FORMAT
        replace_workers(stack)
        stack.wait_finished()
        stack.prove()


def replace_workers(stack: Stack) -> None:
    for number in range(1, WORKERS + 1):
        stack.replace("worker", number, workers=WORKERS)
        stack.wait_trains(workers=WORKERS)
        assert stack.label("worker", number) == "0.0.0"


def unpack_last_release(folder: Path) -> Path:
    """Return the sources of the commit that gave the newest dated version in CHANGELOG.md its heading."""
    heading = re.search(r"^## \d+\.\d+\.\d+ - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    commit = git("log", "-1", "--format=%H", f"-S{heading[0]}", "--", "CHANGELOG.md").decode().strip()
    assert commit, f"the clone is too shallow: it lacks the commit of {heading[0]!r}"
    with tarfile.open(fileobj=BytesIO(git("archive", "--format=tar", commit))) as archive:
        archive.extractall(folder, filter="data")
    # It is not in git; the page of today will do, for it is not what is upgraded here.
    page = "src/strata/dashboard/static"
    shutil.copytree(ROOT / page, folder / page)
    return folder


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout
