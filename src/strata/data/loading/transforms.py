"""The user's filter and transform, run beside the training loop: on threads, or in processes if they are heavy."""

from __future__ import annotations

import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from strata.data.loading.batches import Arrays, RawBatch
from strata.data.loading.position import Row
from strata.data.loading.threads import Threads
from strata.data.loading.work_processes import WorkProcesses
from strata.errors import TransformProcessError

Filter: TypeAlias = Callable[[Arrays], Any]
TransformFn: TypeAlias = Callable[[Arrays], Mapping[str, Any]]
# A batch as the user wants it; None where nothing is left of it.
Made: TypeAlias = Mapping[str, Any] | None

# For each worker one batch in the making and one that waits, so that none is idle while the loop takes a batch.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Transform:
    """What is done to each batch: rows that the filter does not want go, then the transform makes the batch anew.

    Of a batch without rows nothing is made, unless ``keep_empty``: in ``global`` order all ranks must take equal steps.
    """

    filter: Filter | None = None
    transform: TransformFn | None = None
    keep_empty: bool = False

    def __call__(self, arrays: Arrays) -> Made:
        """Return the batch as the user wants it."""
        num_rows = len(next(iter(arrays.values()), ()))
        if self.filter is not None:
            mask = np.asarray(self.filter(arrays))
            if mask.dtype != np.bool_ or mask.shape != (num_rows,):
                raise ValueError(
                    f"filter returned {mask.dtype} of shape {mask.shape} for a batch of {num_rows} rows; return one "
                    "boolean for each row"
                )
            if not mask.all():
                arrays = {name: array[mask] for name, array in arrays.items()}
                num_rows = int(np.count_nonzero(mask))
        if num_rows == 0 and not self.keep_empty:
            return None
        if self.transform is None:
            return arrays
        made = self.transform(arrays)
        if not isinstance(made, Mapping):
            raise TypeError(f"transform returned {type(made).__name__}; return a dict of arrays by name")
        return made


class Task(Protocol):
    """A batch in the making."""

    def result(self) -> Made:
        """Return the batch, or raise what the work raised."""
        ...

    def cancel(self) -> object:
        """Leave it undone if it was not begun."""
        ...


class TransformPool:
    """Do the work on several batches at once and give them back in their order.

    An error of the work comes out in place of its batch, after all batches before it. A process that dies is a
    TransformProcessError and never a wait without end; the next iteration starts new ones.
    """

    def __init__(self, work: Transform, *, threads: int, processes: int) -> None:
        if processes:
            _check_picklable(work)
        self._work = work
        self._count = processes or threads
        self._processes = processes
        self._pool: WorkProcesses | None = None
        self._threads: Threads | None = None
        self._pending: deque[tuple[list[Row], Task]] = deque()

    def run(self, batches: Iterator[RawBatch], locate: Callable[[list[Row]], str]) -> Iterator[tuple[list[Row], Made]]:
        """Yield each batch with the work done on it; an error is told of which rows the batch was."""
        threads, submit = self._start()
        self._pending = pending = deque[tuple[list[Row], Task]]()
        failure: Exception | None = None
        more = True
        try:
            while True:
                while more and len(pending) < self._count * _AHEAD:
                    try:
                        batch = next(batches)
                    except StopIteration:
                        more = False
                    except Exception as error:  # noqa: BLE001 - it is raised below, after the batches before it
                        failure, more = error, False
                    else:
                        pending.append((batch.work, submit(batch.columns.to_numpy())))
                if not pending:
                    break
                work, task = pending.popleft()
                yield work, _result_of(task, work, locate)
        except BrokenProcessPool as error:
            self.close()
            raise TransformProcessError(self._processes) from error
        finally:
            # Those of this iteration: another one may have begun by the time that this one is thrown away.
            if threads is not None:
                threads.close()
            _cancel(pending)
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Let go what an iteration that is over has begun; someone may still hold it, and never end it."""
        if self._threads is not None:
            self._threads.close()
        _cancel(self._pending)

    def close(self) -> None:
        """End threads and processes; the next iteration would start new ones."""
        self.abandon()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _start(self) -> tuple[Threads | None, Callable[[Arrays], Task]]:
        if not self._processes:
            self._threads = threads = Threads(self._count, name="strata-work")
            return threads, lambda arrays: threads.submit(self._work, arrays)
        if self._pool is None:
            # So many memories that none is waited for, unless an iteration was left whose work is still being done.
            self._pool = WorkProcesses(self._work, self._processes, memories=self._count * _AHEAD)
            weakref.finalize(self, self._pool.close)
        return None, self._pool.submit


def _cancel(pending: deque[tuple[list[Row], Task]]) -> None:
    while pending:
        pending.popleft()[1].cancel()


def _result_of(task: Task, work: list[Row], locate: Callable[[list[Row]], str]) -> Made:
    try:
        return task.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        # A note and not another type: who catches the errors of their own transform still does.
        error.add_note(f"while filter and transform were run on {locate(work)}")
        raise


def _check_picklable(work: Transform) -> None:
    for name, function in (("filter", work.filter), ("transform", work.transform)):
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{name} cannot be sent to other processes: {error}; define it at the top of a module, without lambda "
                "and without what it closes over, or set processes=0"
            ) from error
