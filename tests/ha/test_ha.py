"""Ten faults, one of each kind, on three coordinators, three etcd nodes and eight workers that train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ha.trial import run_trial
from tests.testbed.network.namespaces import why_not

SEED = 20


@pytest.mark.part("etcd")
@pytest.mark.timeout(1_500)
def test_whatever_fails_among_coordinators_and_etcd_the_run_goes_on_and_nothing_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (problem := why_not()) is not None:
        pytest.skip(problem)
    monkeypatch.setenv("JOBS_PATH", str(tmp_path / "jobs"))
    said: list[str] = [f"seed {SEED}"]
    wrong = run_trial(tmp_path, faults=10, seed=SEED, epochs=60, quorum_s=12.0, say=said.append)
    assert not wrong, "\n".join([*said, *wrong])
