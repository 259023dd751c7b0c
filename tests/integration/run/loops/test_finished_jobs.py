"""A job that is finished and started again has nothing to do, and does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testbed.coordinator import CoordinatorProcess
from tests.testbed.job import ORDERS, Job

pytestmark = [pytest.mark.full, pytest.mark.timeout(200), pytest.mark.xdist_group("whole runs")]


@pytest.mark.parametrize("order", ORDERS)
def test_the_loop_of_a_finished_job_yields_no_step_and_saves_nothing(tmp_path: Path, order: str) -> None:
    service = CoordinatorProcess(tmp_path)
    with service.serving(), Job(tmp_path, service.url, order=order, epochs=1, num_rows=203, pace_s=0.0) as job:
        job.start("w0", "w1")
        job.check_finished()
        saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("*/checkpoints/*"))
        assert saved
        job.start("w0", "w1")
        job.check_finished()
        assert not [said for worker in job.workers.values() for said in worker.said if "step" in said]
        assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*/checkpoints/*")) == saved
