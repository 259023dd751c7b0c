"""The loop over steps: it restores, hands out steps, saves, and begins again when the membership changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from strata.errors import Reconfigure

if TYPE_CHECKING:
    from strata.data.batches import Batch
    from strata.run.data import RunDataset
    from strata.run.run import Run
    from strata.run.state import State

log = logging.getLogger(__name__)


class Step:
    """One step of training. As a context manager it ends early, without an error, when the membership changes.

    ``batch`` is None where a worker has no more data than the others: in ``sticky`` and ``dynamic`` order it then still
    takes part in what all do together.
    """

    def __init__(self, number: int, epoch: int, batch: Batch | None) -> None:
        self.number = number
        self.epoch = epoch
        self.batch = batch
        self.metrics: dict[str, float] = {}
        self.interruption: Reconfigure | None = None

    def report(self, **metrics: float) -> None:
        """Tell the coordinator of numbers such as the loss; they are shown beside the worker."""
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Reconfigure):
            self.interruption = error
            return True
        return False

    def __repr__(self) -> str:
        return f"Step({self.number}, epoch {self.epoch})"


def go_through(run: Run, state: State, dataset: RunDataset | None, *, epochs: int, until: int | None) -> Iterator[Step]:
    """Yield steps until the data, or the number of steps, is over, in as many generations as that takes."""
    if dataset is None and until is None:
        raise ValueError("run.steps(state) needs a dataset, or until=<number of steps>")
    while True:
        run.restore(state)
        try:
            yield from _go_on(run, state, dataset, epochs=epochs, until=until)
        except Reconfigure as error:
            log.info("%s", error)
            continue
        return


def _go_on(run: Run, state: State, dataset: RunDataset | None, *, epochs: int, until: int | None) -> Iterator[Step]:
    batches = _batches(dataset, epochs)
    while until is None or run.step_number < until:
        epoch, batch = next(batches)
        if batch is None and dataset is not None and run.is_over_without_data(dataset):
            break
        step = Step(run.step_number + 1, epoch, batch)
        yield step
        if step.interruption is not None:
            raise step.interruption
        run.step(step.number, **step.metrics)
        if run.should_save():
            run.save(state)
        if run.may_leave():
            run.leave(state)
            return
    run.finish(state)


def _batches(dataset: RunDataset | None, epochs: int) -> Iterator[tuple[int, Any]]:
    """Yield batches with their epochs, and then None without end."""
    while dataset is not None and dataset.epoch < epochs:
        epoch = dataset.epoch
        for batch in dataset:
            yield epoch, batch
    while True:
        yield (0 if dataset is None else min(dataset.epoch, epochs - 1)), None
