"""The loop over steps: it restores, hands out steps, saves, and begins again when the membership changes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

from strata.errors import Reconfigure
from strata.reported_numbers import ReportedNumbers

if TYPE_CHECKING:
    from strata.data.loading.batches import Batch
    from strata.run.data.blocks import Block
    from strata.run.data.run_dataset import RunDataset
    from strata.run.loop.ending import Ending
    from strata.run.loop.run import Run
    from strata.run.loop.state import State
    from strata.run.watchdog.waits import Waits

log = logging.getLogger(__name__)

# How long the news that a peer is gone may take: the coordinator's grace for a closed connection, and some more.
PEER_S = 5.0
PEER_POLL_S = 0.05
# What torch raises when the connection to another rank breaks. gloo has no class for it.
_OF_A_PEER = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
_PEER_MESSAGE = re.compile(r"(?i)connection (was )?(closed|reset|refused)|broken pipe|timed out")


class Step:
    """One step of training. As a context manager it ends early, without an error, when the membership changes.

    ``batch`` is None where a worker has no more data than the others: in ``sticky`` and ``dynamic`` order it then still
    takes part in what all do together. ``data_wait_s`` is how long the loop waited for the batch.
    """

    def __init__(
        self,
        run: Run,
        dataset: RunDataset | None,
        *,
        epoch: int,
        batch: Batch | None,
        data_wait_s: float,
        numbers: ReportedNumbers,
        find_change: Callable[[BaseException], Reconfigure | None],
    ) -> None:
        self._run = run
        self._find_change = find_change
        self._dataset = dataset
        self._numbers = numbers
        self.number = run.next_step
        self.epoch = epoch
        self.batch = batch
        self.data_wait_s = data_wait_s
        self.metrics: dict[str, float] = {}
        self.interruption: Reconfigure | None = None
        self.failure: BaseException | None = None

    def report(self, /, **metrics: SupportsFloat) -> None:
        """Tell the coordinator of numbers such as the loss; they are shown beside the worker.

        NumPy's numbers and tensors with one element count. Other values are left out with a warning and end nothing.
        """
        self.metrics.update(self._numbers.clean(metrics))

    def blocks(self) -> list[Block]:
        """Return this worker's blocks of the step's global batch, as :meth:`strata.RunDataset.blocks` does."""
        if self._dataset is None or self.batch is None:
            return []
        return self._dataset.blocks(self.batch)

    def seeded(self, block: Block) -> AbstractContextManager[None]:
        """As :meth:`strata.Run.seeded`: random numbers that are the same for any number of workers."""
        return self._run.seeded(block)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        change = error if error is None or isinstance(error, Reconfigure) else self._find_change(error)
        if change is not None:
            self.interruption = change
            return True
        self.failure = error
        return False

    def __repr__(self) -> str:
        return f"Step({self.number}, epoch {self.epoch})"


class Loop:
    """One loop over the steps of a run, in as many generations as that takes."""

    def __init__(
        self,
        run: Run,
        ending: Ending,
        waits: Waits,
        state: State,
        dataset: RunDataset | None,
        *,
        epochs: int,
        until: int | None,
        recover: bool,
    ) -> None:
        if dataset is None and until is None:
            raise ValueError("run.steps(state) needs a dataset, or until=<number of steps>")
        self._run = run
        self._ending = ending
        self._waits = waits
        self._state = state
        self._dataset = dataset
        self._epochs = epochs
        self._until = until
        self._recover = recover
        self._numbers = ReportedNumbers()

    def go_through(self) -> Iterator[Step]:
        """Yield steps until the data, or the number of steps, is over; raise Stopped if this worker is told to stop."""
        follows = self._ending.follows_another_loop()
        while True:
            if not follows:
                self._run.restore(self._state)
            self._ending.begin()
            try:
                self._check_bound()
                if follows or not self._is_over_for_all():
                    yield from self._hand_out()
                self._ending.finish(self._state)
            except Reconfigure as error:
                if self._ending.is_told_to_stop():
                    self._ending.stop()
                if not self._recover:
                    raise self._ending.leave_group(self._explain(error)) from error
                log.info("%s", error)
                follows = False
                continue
            return

    def _is_over_for_all(self) -> bool:
        """Whether the checkpoint that all have just restored is of the end, so that nobody has a step to do."""
        return self._dataset is not None and self._dataset.is_over_for_all(self._epochs)

    def _check_bound(self) -> None:
        bound = self._run.bound_generation
        if not self._recover and bound is not None and bound != self._run.generation:
            raise Reconfigure(bound, "the membership changed after the process group was made")

    def _hand_out(self) -> Iterator[Step]:
        run, dataset, batches = self._run, self._dataset, self._batches()
        while self._until is None or run.step_number < self._until:
            began_s = time.monotonic()
            with self._waits.waiting("the next batch of the dataset", is_on_others=False, part="data"):
                epoch, batch = next(batches)
            data_wait_s = time.monotonic() - began_s
            if batch is None and dataset is not None and self._ending.is_over_without_data(dataset):
                break
            step = Step(
                run,
                dataset,
                epoch=epoch,
                batch=batch,
                data_wait_s=data_wait_s,
                numbers=self._numbers,
                find_change=self._find_change,
            )
            yield from self._ending.hand_out(step)
            if step.interruption is not None:
                raise step.interruption
            run.end_step(step.number, {**step.metrics, "data_wait_s": step.data_wait_s})
            if run.should_save():
                run.save(self._state)
            if run.should_stop():
                self._ending.stop()

    def _find_change(self, error: BaseException) -> Reconfigure | None:
        """Return the change of the membership that made a collective call fail in a step; None if it was not that.

        The connection to a peer breaks before the coordinator knows that the peer is gone.
        """
        return None if self._recover or not is_of_a_peer(error) else self._await_change()

    def _explain(self, change: Reconfigure) -> Reconfigure:
        """Return a change with its reason, which may come after the error that only told of the change."""
        if change.reason != str(change.__cause__):
            return change
        return self._await_change() or Reconfigure(change.generation, "")

    def _await_change(self) -> Reconfigure | None:
        deadline_s = time.monotonic() + PEER_S
        while (change := self._run.find_change()) is None and time.monotonic() < deadline_s:
            time.sleep(PEER_POLL_S)
        return change

    def _batches(self) -> Iterator[tuple[int, Any]]:
        """Yield batches with their epochs, and then None without end."""
        dataset = self._dataset
        while dataset is not None and dataset.epoch < self._epochs:
            epoch = dataset.epoch
            for batch in dataset:
                yield epoch, batch
        while True:
            yield (0 if dataset is None else min(dataset.epoch, self._epochs - 1)), None


def is_of_a_peer(error: BaseException) -> bool:
    """Whether an error of a collective call may only say that another rank is gone."""
    if type(error).__name__ in _OF_A_PEER:
        return True
    return isinstance(error, RuntimeError) and _PEER_MESSAGE.search(str(error)) is not None
