"""Where work on files runs: in processes of this machine, or on a Ray cluster; the result is the same."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

from strata.data.process_pool import start_pool
from strata.errors import DataError, MissingExtraError, RayUnavailableError

log = logging.getLogger(__name__)

Engine: TypeAlias = Literal["local", "ray"]
ENGINES = ("local", "ray")
# How often a Ray cluster of one's own is started before its failure is reported.
START_ATTEMPTS = 3
REACH_TIMEOUT_S = 20.0
T = TypeVar("T")


def check_engine(engine: str) -> None:
    """Raise a clear error now, and not after minutes of reading, if the engine is not there."""
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; use one of {', '.join(ENGINES)}")
    if engine == "ray":
        _import_ray()


def start_engine(engine: str) -> None:
    """Start or reach what the tasks will need, or raise a clear error before any work is done for them."""
    if engine == "ray":
        _connect_to_ray()


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


def _run_on_ray(function: Callable[..., T], tasks: Sequence[tuple[Any, ...]]) -> Iterator[T]:
    ray = _connect_to_ray()
    try:
        remote = ray.remote(function)
        # As many as the cluster can do, twice over; more would only fill its memory.
        limit = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
        waiting = list(reversed(tasks))
        pending: list[Any] = []
        while waiting or pending:
            while waiting and len(pending) < limit:
                pending.append(remote.remote(*waiting.pop()))
            done, pending = ray.wait(pending, num_returns=1)
            yield ray.get(done[0])
    except ray.exceptions.RayTaskError as error:
        # The task's own error: Ray's has the traceback of the other machine in its message.
        raise (error.cause if isinstance(error.cause, Exception) else error.as_instanceof_cause()) from error
    except ray.exceptions.RayError as error:
        raise DataError(f"a task on the Ray cluster was lost: {_first_line(error)}; run it again") from error


def _connect_to_ray() -> Any:
    """Return Ray, connected to the cluster of RAY_ADDRESS or of this machine if there is one, else to one of its own.

    One of its own is started without a dashboard, and again if that failed: Ray gives up when one of its processes
    takes longer than 15 s to start, as on a busy machine, and cannot be told to wait (its issue 65983).
    """
    ray = _import_ray()
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "")
    _check_reachable(address)
    for attempts_left in reversed(range(START_ATTEMPTS)):
        try:
            ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False)
            break
        except Exception as error:
            # Ray raises OSError, ValueError, its own and others; a plain one says that a process did not start in time.
            ray.shutdown()
            if type(error) is not Exception or not attempts_left:
                raise RayUnavailableError(address, _first_line(error)) from error
            log.warning("Ray did not start, and is started again: %s", _first_line(error))
    return ray


def _check_reachable(address: str) -> None:
    """Raise at once if nothing listens at this address of a cluster: Ray itself would try for many minutes."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.scheme in ("", "ray") and parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), timeout=REACH_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise RayUnavailableError(address, str(error)) from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", needed_for="preparing data with --engine ray") from error
    return ray
