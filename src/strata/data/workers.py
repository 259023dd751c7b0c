"""The user's filter and transform, run beside the training loop: on threads, or in processes if they are heavy."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from strata.data.batches import Arrays, RawBatch
from strata.data.position import Row
from strata.data.threads import Threads
from strata.errors import TransformProcessError

Filter: TypeAlias = Callable[[Arrays], Any]
Transform: TypeAlias = Callable[[Arrays], Mapping[str, Any]]

# For each worker one batch in the making and one that waits, so that none is idle while the loop takes a batch.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Work:
    """What is done to each batch: rows that the filter does not want go, then the transform makes the batch anew.

    Of a batch without rows nothing is made, unless ``keep_empty``: in ``global`` order all ranks must take equal steps.
    """

    filter: Filter | None = None
    transform: Transform | None = None
    keep_empty: bool = False

    def __call__(self, arrays: Arrays) -> Mapping[str, Any] | None:
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


class Workers:
    """Do the work on several batches at once and give them back in their order.

    An error of the work comes out in place of its batch, after all batches before it. A process that dies is a
    TransformProcessError and never a wait without end; the next iteration starts new ones.
    """

    def __init__(self, work: Work, *, threads: int, processes: int) -> None:
        if processes:
            _check_picklable(work)
        self._work = work
        self._count = processes or threads
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._threads: Threads | None = None

    def run(self, batches: Iterator[RawBatch]) -> Iterator[tuple[list[Row], Mapping[str, Any] | None]]:
        """Yield each batch with the work done on it."""
        pool = self._executor()
        pending: deque[tuple[list[Row], Future[Mapping[str, Any] | None]]] = deque()
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
                        pending.append((batch.work, pool.submit(_call(pool, self._work), batch.columns.to_numpy())))
                if not pending:
                    break
                work, future = pending.popleft()
                yield work, future.result()
        except BrokenProcessPool as error:
            self.close()
            raise TransformProcessError(self._processes) from error
        finally:
            if isinstance(pool, Threads):
                pool.close()
            else:
                for _, future in pending:
                    future.cancel()
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Let the threads of an iteration that is over end."""
        if self._threads is not None:
            self._threads.close()

    def close(self) -> None:
        """End threads and processes; the next iteration would start new ones."""
        self.abandon()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _executor(self) -> Threads | ProcessPoolExecutor:
        if not self._processes:
            self._threads = Threads(self._count, name="strata-work")
            return self._threads
        if self._pool is None:
            # Not fork: a copy of a process with threads may hold locks that nobody will ever release.
            self._pool = ProcessPoolExecutor(
                self._processes,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_prepare_process,
                initargs=(self._work,),
            )
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool


def _call(pool: Threads | ProcessPoolExecutor, work: Work) -> Callable[[Arrays], Mapping[str, Any] | None]:
    # A process has the work since its start, so that it does not travel with each batch.
    return _work_in_process if isinstance(pool, ProcessPoolExecutor) else work


_process_work: Work


def _prepare_process(work: Work) -> None:
    global _process_work
    _process_work = work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is gone, which a pool of processes does not notice by itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _work_in_process(arrays: Arrays) -> Mapping[str, Any] | None:
    return _process_work(arrays)


def _check_picklable(work: Work) -> None:
    for name, function in (("filter", work.filter), ("transform", work.transform)):
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{name} cannot be sent to other processes: {error}; define it at the top of a module, without lambda "
                "and without what it closes over, or set processes=0"
            ) from error
