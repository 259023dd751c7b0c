"""What a process is doing, written down: Python stacks by faulthandler, native ones where py-spy is installed."""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PY_SPY_S = 15.0
# A frame of one of these says that a rank is inside a collective of its framework, or in what ends with one.
_COLLECTIVE_FILES = ("torch/distributed/", "torch/autograd/", "torch/nn/parallel/", "mpi4py", "horovod")


def dump_stacks(folder: Path, name: str) -> Path:
    """Write the stacks of all threads of this process to a new file of the folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    with path.open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.flush()
        program = shutil.which("py-spy")
        if program is not None:
            file.write("\npy-spy dump --native:\n")
            file.flush()
            try:
                subprocess.run(  # noqa: S603 - a program that the user installed, on this very process
                    [program, "dump", "--native", "--pid", str(os.getpid())],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=PY_SPY_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                file.write(f"py-spy did not answer within {PY_SPY_S:g} s\n")
    return path


def place_of(thread: int) -> str:
    """Return file, line and function of the innermost frame of a thread that is not of Strata or the library."""
    frame = sys._current_frames().get(thread)
    innermost = ""
    while frame is not None:
        path = frame.f_code.co_filename
        where = f"{Path(path).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        innermost = innermost or where
        if is_users(path):
            return where
        frame = frame.f_back
    return innermost or "unknown"


def is_users(path: str) -> bool:
    """Whether a file is the user's own, and not of Strata, an installed package, or Python itself."""
    resolved = os.path.realpath(path)
    homes = (str(Path(__file__).parents[2]), str(Path(os.__file__).parent.resolve()))
    if path.startswith("<") or "site-packages" in resolved or "dist-packages" in resolved:
        return False
    return not any(resolved.startswith(home + os.sep) for home in homes)


def is_in_collective(thread: int) -> bool:
    """Whether a thread is inside a collective, or a backward pass, which ends with some."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        if any(part in path for part in _COLLECTIVE_FILES):
            return True
        frame = frame.f_back
    return False


def count_collectives() -> float | None:
    """Return how many collectives this process has entered in all process groups of torch; None without torch's."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return None
    try:
        return float(sum(group._get_sequence_number_for_group() for group in list(c10d._world.pg_map)))
    except (AttributeError, RuntimeError):
        return None  # a backend, or a version of torch, that does not count
