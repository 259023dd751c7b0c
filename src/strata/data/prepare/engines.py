"""Where work on files runs: in processes of this machine, or on a Ray cluster; the result is the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, TypeAlias, TypeVar

from strata.data.process_pool import start_pool
from strata.errors import DataError, MissingExtraError

Engine: TypeAlias = Literal["local", "ray"]
ENGINES = ("local", "ray")
T = TypeVar("T")


def check_engine(engine: str) -> None:
    """Raise a clear error now, and not after minutes of reading, if the engine is not there."""
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; use one of {', '.join(ENGINES)}")
    if engine == "ray":
        _import_ray()


def count_processes(processes: int | None) -> int:
    """Return how many processes are meant; by default one for each core that this process may use."""
    if processes is not None and processes < 1:
        raise ValueError(f"processes is {processes}; use 1 or more")
    return processes or len(os.sched_getaffinity(0))


def run_tasks(
    engine: str, function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], *, processes: int | None = None
) -> Generator[T]:
    """Call the function with each task's arguments, many at once, and yield what it returns as each is done.

    Each task must depend on its arguments alone, and may be done more than once. The first that fails ends all.
    """
    check_engine(engine)
    if engine == "ray":
        yield from _run_on_ray(function, tasks)
        return
    count = min(count_processes(processes), len(tasks))
    if count <= 1:
        for task in tasks:
            yield function(*task)
        return
    pool = start_pool(count, _prepare_process)
    try:
        for done in as_completed([pool.submit(function, *task) for task in tasks]):
            yield done.result()
    except BrokenProcessPool as error:
        raise DataError(
            f"one of the {count} processes was killed (is there enough memory?); run it again, or with fewer processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_process() -> None:
    # There is a process for each core already; tokenizers would start as many threads in each.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _run_on_ray(function: Callable[..., T], tasks: Sequence[tuple[Any, ...]]) -> Generator[T]:
    ray = _import_ray()
    if not ray.is_initialized():
        # The cluster of RAY_ADDRESS or of this machine if there is one, else one of its own.
        ray.init(logging_level="ERROR", log_to_driver=False)
    remote = ray.remote(function)
    # As many as the cluster can do, twice over; more would only fill its memory.
    limit = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
    waiting = list(reversed(tasks))
    pending: list[Any] = []
    while waiting or pending:
        while waiting and len(pending) < limit:
            pending.append(remote.remote(*waiting.pop()))
        done, pending = ray.wait(pending, num_returns=1)
        try:
            yield ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from error
        except ray.exceptions.RayError as error:
            raise DataError(
                f"a task on the Ray cluster was lost: {str(error).splitlines()[0]}; run it again"
            ) from error


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", needed_for="preparing data with --engine ray") from error
    return ray
