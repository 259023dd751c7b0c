"""A few faults of ``make test-ha`` on three coordinators, three etcd nodes and eight workers that train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ha.trial import run_trial
from tests.testbed.network.namespaces import why_not

SEED = 20


@pytest.mark.parametrize("faults", [5, pytest.param(10, marks=pytest.mark.slow, id="one of each kind")])
@pytest.mark.part("etcd")
@pytest.mark.timeout(1_500)
def test_whatever_fails_among_coordinators_and_etcd_the_run_goes_on_and_nothing_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: int
) -> None:
    if (problem := why_not()) is not None:
        pytest.skip(problem)
    monkeypatch.setenv("JOBS_PATH", str(tmp_path / "jobs"))
    said: list[str] = [f"seed {SEED}"]
    wrong = run_trial(tmp_path, faults=faults, seed=SEED, epochs=60, quorum_s=12.0, say=said.append)
    assert not wrong, "\n".join([*said, *wrong])
