"""Images that are built again: the same layers, and the same page from npm inside as from `make dashboard`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from scripts.parts import find_program
from tests.testbed.containers.engine import PYTHON_IMAGE, ROOT, Engine

pytestmark = [pytest.mark.part("containers"), pytest.mark.timeout(1800), pytest.mark.xdist_group("containers")]
NODE_IMAGE = "docker.io/library/node:20-bookworm-slim"
TIMES = "--timestamp=1577836800"
PAGE = "src/strata/dashboard/static"


def test_two_builds_give_the_same_files(engine: Engine) -> None:
    for number in (1, 2):
        engine.build(f"again:{number}", "Dockerfile", TIMES)
    one, other = (engine.inspect(f"again:{number}", kind="image")["RootFS"]["Layers"] for number in (1, 2))
    assert one == other


def test_npm_in_the_image_builds_the_page_that_make_dashboard_builds(engine: Engine, tmp_path: Path) -> None:
    """It downloads the dashboard's locked packages, as `make dashboard` does."""
    make_node_image(engine, tmp_path / "node")
    options = ("--network=host", "--build-arg=DASHBOARD=build", "--target=dashboard-build")
    engine.build("page:npm", "Dockerfile", *options)
    mounted = Path(engine.podman("image", "mount", "page:npm").strip())
    built, here = (files_in(root / PAGE) for root in (mounted / "build", ROOT))
    assert built == here


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_node_image(engine: Engine, folder: Path) -> None:
    """Put node and npm of this machine on the base, under the name that the Dockerfiles have: no registry is asked."""
    node, npm = find_program("node"), find_program("npm")
    assert node is not None
    assert npm is not None
    package = next(path for path in Path(npm).resolve().parents if path.name == "npm")
    shutil.copytree(package, folder / "npm", symlinks=True)
    shutil.copy(Path(node).resolve(), folder / "node")
    # What this machine trusts: a mirror of npm may have a certificate of its own.
    trusted = os.environ.get("NODE_EXTRA_CA_CERTS")
    shutil.copy(trusted, folder / "authorities.pem") if trusted else (folder / "authorities.pem").touch()
    (folder / "Dockerfile").write_text(
        f"FROM {PYTHON_IMAGE}\n"
        "COPY node /usr/bin/node\n"
        "COPY npm /usr/lib/node_modules/npm\n"
        "COPY authorities.pem /etc/authorities.pem\n"
        "RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/bin/npm\n"
        f"{'ENV NODE_EXTRA_CA_CERTS=/etc/authorities.pem' if trusted else ''}\n"
    )
    engine.build(NODE_IMAGE, "Dockerfile", context=folder)
