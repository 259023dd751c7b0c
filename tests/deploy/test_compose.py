"""The training run of docker-compose.yml in containers: started by one command, killed, rescaled, and proved."""

from __future__ import annotations

import urllib.request

import pytest

from tests.testbed.containers.stack import Stack

pytestmark = [pytest.mark.part("containers"), pytest.mark.timeout(600), pytest.mark.xdist_group("containers")]


def test_a_run_in_containers_survives_kills_and_rescaling_to_the_bit(stack: Stack) -> None:
    stack.up(workers=4)
    stack.wait_trains(workers=4)
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.port}/", timeout=60) as page:
        assert b"<title>Strata" in page.read()
    stack.engine.podman("healthcheck", "run", stack.container("coordinator"))
    stack.engine.podman("healthcheck", "run", stack.container("dashboard"))
    # Each container is started again by its restart policy.
    stack.kill("worker", 2)
    stack.wait_trains(workers=4)
    stack.kill("coordinator")
    stack.wait_trains(workers=4)
    stack.up(workers=6)
    stack.wait_trains(workers=6)
    stack.wait_finished()
    assert "to the bit" in stack.prove()
