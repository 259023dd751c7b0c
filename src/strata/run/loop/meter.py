"""What a run measures of its steps: speed, where the time goes, what the script reports, and where that is logged."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strata.cluster.values import RankInfo, WorkerAccount
from strata.reported_numbers import MAX_NUMBERS, ReportedNumbers
from strata.run.loop.account import TimeAccount
from strata.run.loop.save_notes import SaveNotes
from strata.run.metrics_log import MetricsLog, open_metrics_log
from strata.run.team.host import memory_numbers

if TYPE_CHECKING:
    from strata.checkpoint import SaveHandle

log = logging.getLogger(__name__)

# A moving average: a few steps count, one slow step does not rule.
_WEIGHT = 0.1
LOOK_S = 1.0
# Room for what Strata itself reports of a worker: speed, memory, a stall.
OWN_NUMBERS = 16


class Meter:
    """The numbers of one worker; rank 0 also writes them to TensorBoard or Weights & Biases, if it is told to."""

    def __init__(self, account: TimeAccount, *, log_to: str | None, job_id: str) -> None:
        self._account = account
        self._saves = SaveNotes()
        self._looked_s = float("-inf")
        self._memory_numbers: dict[str, float] = {}
        self._log_to = log_to
        self._job_id = job_id
        self._log: MetricsLog | None = None
        self._steps = 0
        self._samples = 0.0
        self._tokens = 0.0
        self.total_steps: int | None = None
        """How many steps the loop has, if that is known."""
        self.metrics: dict[str, float] = {}
        self.sent: dict[str, float] = {}
        """Those of the metrics that the coordinator is told of."""
        self._numbers = ReportedNumbers()

    def begin(self, step: int, *, rank: int) -> None:
        """The run goes on after this step."""
        self._account.restored(step, time.monotonic())
        if self._log_to is not None and rank == 0 and self._log is None:
            self._log = open_metrics_log(self._log_to, job_id=self._job_id, step=step)

    def add(self, step: int, *, step_s: float, samples: int, reported: Mapping[str, object]) -> None:
        """Note a step: how long steps take, how many samples it had, and what the script reports of it."""
        self._account.done(step, time.monotonic(), samples=samples)
        per_s = 1 / max(step_s, 1e-9)
        self._steps += 1
        weight = max(_WEIGHT, 1 / self._steps)
        self._samples += weight * (samples - self._samples)
        own = {"step_s": step_s, "samples_per_s": self._samples * per_s}
        numbers = self._numbers.clean(reported)
        if "tokens" in numbers:
            # A NaN would stay in the average for the rest of the run.
            if math.isfinite(numbers["tokens"]):
                self._tokens += weight * (numbers["tokens"] - self._tokens)
            own["tokens_per_s"] = self._tokens * per_s
        if self.total_steps is not None:
            own["total_steps"] = self.total_steps
        self.metrics = {**own, **numbers}
        self.sent = {**own, **self._numbers.fit(numbers, limit=MAX_NUMBERS - OWN_NUMBERS)}
        self._write_log(step)

    def note_save(self, handle: SaveHandle) -> None:
        """Follow a save, to tell how it went."""
        self._saves.add(handle)

    def report(self, rank_info: RankInfo) -> dict[str, Any]:
        """Return what a heartbeat says of this worker's numbers, and of where its time went until now."""
        self._account.blocked(self._saves.look())
        account, rank = self._account, (rank_info.generation, rank_info.rank)
        counts = account.steps, account.repeated_steps, account.samples
        times = account.read(time.monotonic())
        return {
            "resources": {**self.sent, **self._memory()},
            "account": WorkerAccount._make((*times, *counts, *rank, self._saves.recent())),
        }

    def _write_log(self, step: int) -> None:
        if self._log is None:
            return
        try:
            self._log.write(step, self.metrics)
        except Exception:
            # Code of a library, and a disk that may be full: training goes on without its log.
            log.exception(
                "the metrics of step %d could not be logged; nothing more is logged to %s", step, self._log_to
            )
            self._log = None

    def _memory(self) -> dict[str, float]:
        """Return how much memory is used, looked at once a second: steps may be short."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s, self._memory_numbers = now_s, memory_numbers()
        return self._memory_numbers

    def close(self) -> None:
        """Write what is left of the log."""
        if self._log is not None:
            try:
                self._log.close()
            except Exception:
                log.exception("the metrics could not be written to the end to %s", self._log_to)
            self._log = None
