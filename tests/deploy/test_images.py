"""The images: what is in them, how they run, and that both hold the same wheel."""

from __future__ import annotations

import signal

import pytest

from tests.testbed.containers.engine import Engine
from tests.testbed.containers.stack import RANDOM_USER
from tests.testbed.waiting import wait_until

pytestmark = [pytest.mark.part("containers"), pytest.mark.timeout(600), pytest.mark.xdist_group("containers")]
IMAGES = ["strata-coordinator:local", "strata-worker:local"]
# With the base of the tests, which has 100 MB. pyarrow is 140 MB of the worker's; the coordinator does without.
LARGEST_BYTES = {"strata-coordinator:local": 280e6, "strata-worker:local": 470e6}
# As strict as a platform can be: nothing may be written but /tmp, no capability, and a user that nobody knows.
STRICT = ["--rm", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", f"--user={RANDOM_USER}", "--network=none"]


def run_python(engine: Engine, image: str, program: str) -> str:
    return engine.podman("run", *STRICT, "--entrypoint=python3", image, "-c", program).strip()


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_small_and_says_what_it_is_and_runs_as_nobody_special(engine: Engine, image: str) -> None:
    found = engine.inspect(image, kind="image")
    assert found["Size"] < LARGEST_BYTES[image]
    assert found["Config"]["User"] == "10001:0"
    labels = found["Config"]["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "MIT"
    assert labels["org.opencontainers.image.title"].startswith("Strata ")
    assert {"version", "revision", "description"} <= {name.rpartition(".")[2] for name in labels}


@pytest.mark.parametrize("image", IMAGES)
def test_a_read_only_image_with_a_random_user_has_strata_and_no_compiler(engine: Engine, image: str) -> None:
    program = (
        "import os, shutil, strata.cli.app\n"
        "found = [name for name in ('cc', 'gcc', 'g++', 'clang', 'make', 'npm', 'node') if shutil.which(name)]\n"
        "print(os.getuid(), os.access('/opt/strata/bin', os.W_OK), found)"
    )
    assert run_python(engine, image, program) == f"{RANDOM_USER.partition(':')[0]} False []"


def test_both_images_hold_the_same_wheel(engine: Engine) -> None:
    program = (
        "import hashlib, importlib.metadata as m\n"
        "lines = sorted(line for line in m.distribution('strata-runtime').read_text('RECORD').splitlines()\n"
        "               if line.startswith('strata/') and '.pyc' not in line)\n"
        "assert any('dashboard/static/index.html' in line for line in lines)\n"
        "print(len(lines), hashlib.sha256('\\n'.join(lines).encode()).hexdigest())"
    )
    one, other = (run_python(engine, image, program) for image in IMAGES)
    assert one == other


def test_the_coordinator_starts_with_a_random_user_is_healthy_and_drains_on_sigterm(engine: Engine) -> None:
    strict = [option for option in STRICT if option != "--rm"]
    command = ["coordinator", "--state=sqlite:///data/journal.db"]
    engine.podman("run", "--detach", "--name=alone", *strict, "--volume=alone:/data", IMAGES[0], *command)
    try:
        wait_until(
            lambda: engine.attempt("podman", "healthcheck", "run", "alone").returncode == 0, "a healthy coordinator"
        )
        engine.podman("stop", "--time=60", "alone")
        state = engine.inspect("alone")["State"]
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), state
        assert signal.SIGTERM.name == engine.inspect(IMAGES[0], kind="image")["Config"].get("StopSignal", "SIGTERM")
        assert "stopping after the pending writes" in engine.attempt("podman", "logs", "alone").stderr
    finally:
        engine.remove_containers()
