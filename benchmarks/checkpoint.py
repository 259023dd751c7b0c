"""Checkpoints beside their peers: durable save, blocked time, restore, and what a delta saves.

    CHECKPOINT_SIZE_MB=1024 python -m benchmarks.checkpoint [--rounds 5] [--folder DIR] [--json FILE]

Every contestant runs in its own process, on the same state (float32 tensors of 16 MiB) and the same disk. Times are
the best of the rounds. "save" ends when the bytes are on the device. "blocked" is how long the caller of an
asynchronous save is held up; for the raw contestant it is a plain copy into warm memory. "restore" fills tensors
that are there already, with the page cache emptied of the files first. Ratios are to the raw contestant: O_DIRECT in
four threads, without digests, names or anything to be atomic about; its save begins with bytes that are staged.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import mmap
import multiprocessing
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

TENSOR_BYTES = 16 << 20
CHUNK_BYTES = 8 << 20


class Contestant(Protocol):
    """One way to keep a state; ``save`` returns when it is durable, and ``blocked`` says for how long it blocks."""

    def setup(self, folder: Path, state: dict[str, Any]) -> None: ...
    def save(self, step: int) -> None: ...
    def blocked(self, step: int) -> float | None: ...
    def restore(self, step: int) -> None: ...


class Raw:
    """What the device and the memory can do: nothing but aligned writes, reads and copies."""

    def setup(self, folder: Path, state: dict[str, Any]) -> None:
        import numpy as np

        self._folder = folder
        size = sum(tensor.nbytes for tensor in state.values())
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._staged = np.frombuffer(self._memory, np.uint8)
        self._sources = [tensor.numpy().view(np.uint8).reshape(-1) for tensor in state.values()]
        self._copy()

    def _copy(self) -> None:
        import numpy as np

        position = 0
        for source in self._sources:
            np.copyto(self._staged[position : position + len(source)], source)
            position += len(source)

    def save(self, step: int) -> None:
        view = memoryview(self._memory)
        fd = os.open(self._path(step), os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        os.posix_fallocate(fd, 0, len(view))
        self._in_threads(lambda start: os.pwrite(fd, view[start : start + CHUNK_BYTES], start))
        os.fsync(fd)
        os.close(fd)

    def blocked(self, step: int) -> float | None:
        return timed(self._copy)

    def restore(self, step: int) -> None:
        import numpy as np

        view = memoryview(self._memory)
        fd = os.open(self._path(step), os.O_RDONLY | os.O_DIRECT)

        def read(start: int) -> None:
            # The tensors are not aligned, so a device cannot write to them: each chunk is copied when it is there.
            os.preadv(fd, [view[start : start + CHUNK_BYTES]], start)
            low = start % TENSOR_BYTES
            target = self._sources[start // TENSOR_BYTES][low : low + CHUNK_BYTES]
            np.copyto(target, self._staged[start : start + CHUNK_BYTES])

        self._in_threads(read)
        os.close(fd)

    def _in_threads(self, work: Callable[[int], object]) -> None:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(0, len(self._memory), CHUNK_BYTES)))

    def _path(self, step: int) -> Path:
        return self._folder / f"{step}.raw"


class Strata:
    """strata.checkpoint, digests and all."""

    def setup(self, folder: Path, state: dict[str, Any]) -> None:
        from strata.checkpoint import CheckpointManager

        self._state = state
        self._manager = CheckpointManager(folder, keep_count=2)

    def save(self, step: int) -> None:
        self._manager.save(self._state, step)

    def blocked(self, step: int) -> float | None:
        self._manager.wait_pending()
        started = time.perf_counter()
        handle = self._manager.save_background(self._state, step)
        blocked_s = time.perf_counter() - started
        handle.result()
        self._manager.wait_pending()
        return blocked_s

    def restore(self, step: int) -> None:
        self._manager.load(step, self._state)

    def settle(self) -> None:
        """Wait for what goes on after a save has returned."""
        self._manager.wait_pending()


class TorchSave:
    """torch.save and fsync."""

    def setup(self, folder: Path, state: dict[str, Any]) -> None:
        self._folder, self._state = folder, state

    def save(self, step: int) -> None:
        import torch

        with (self._folder / f"{step}.pt").open("wb") as file:
            torch.save(self._state, file)
            file.flush()
            os.fsync(file.fileno())

    def blocked(self, step: int) -> float | None:
        return None

    def restore(self, step: int) -> None:
        import torch

        loaded = torch.load(self._folder / f"{step}.pt", weights_only=True)
        for name, tensor in self._state.items():
            tensor.copy_(loaded[name])


class Safetensors:
    """safetensors.torch.save_file and fsync."""

    def setup(self, folder: Path, state: dict[str, Any]) -> None:
        self._folder, self._state = folder, state

    def save(self, step: int) -> None:
        from safetensors.torch import save_file

        path = self._folder / f"{step}.safetensors"
        save_file(self._state, path)
        with path.open("rb+") as file:
            os.fsync(file.fileno())

    def blocked(self, step: int) -> float | None:
        return None

    def restore(self, step: int) -> None:
        from safetensors.torch import load_file

        loaded = load_file(self._folder / f"{step}.safetensors")
        for name, tensor in self._state.items():
            tensor.copy_(loaded[name])


class TorchDcp:
    """torch.distributed.checkpoint in one process, with its own fsync; async_save for the blocked time."""

    def setup(self, folder: Path, state: dict[str, Any]) -> None:
        import torch.distributed as dist

        self._folder, self._state = folder, state
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def save(self, step: int) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self._state, checkpoint_id=str(self._folder / str(step)))

    def blocked(self, step: int) -> float | None:
        import torch.distributed.checkpoint as dcp

        started = time.perf_counter()
        pending = dcp.async_save(self._state, checkpoint_id=str(self._folder / str(step)))
        blocked_s = time.perf_counter() - started
        getattr(pending, "upload_completion", pending).result()
        return blocked_s

    def restore(self, step: int) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.load(self._state, checkpoint_id=str(self._folder / str(step)))


class Orbax:
    """orbax.checkpoint.StandardCheckpointer on NumPy arrays; its save is asynchronous, and then waited for."""

    def setup(self, folder: Path, state: dict[str, Any]) -> None:
        import orbax.checkpoint as ocp

        self._folder = folder
        self._state = {name: tensor.numpy() for name, tensor in state.items()}
        self._checkpointer = ocp.StandardCheckpointer()

    def save(self, step: int) -> None:
        self._checkpointer.save(self._folder / str(step), self._state)
        self._checkpointer.wait_until_finished()

    def blocked(self, step: int) -> float | None:
        started = time.perf_counter()
        self._checkpointer.save(self._folder / str(step), self._state)
        blocked_s = time.perf_counter() - started
        self._checkpointer.wait_until_finished()
        return blocked_s

    def restore(self, step: int) -> None:
        import numpy as np

        loaded = self._checkpointer.restore(self._folder / str(step), self._state)
        for name, array in self._state.items():
            np.copyto(array, loaded[name])


CONTESTANTS: dict[str, tuple[Callable[[], Contestant], str]] = {
    "raw O_DIRECT": (Raw, "torch"),
    "strata": (Strata, "torch"),
    "torch.save+fsync": (TorchSave, "torch"),
    "safetensors+fsync": (Safetensors, "safetensors"),
    "torch DCP": (TorchDcp, "torch"),
    "orbax": (Orbax, "orbax"),
}


@dataclass(frozen=True)
class Figures:
    """The best times of one contestant."""

    contestant: str
    size_mb: int
    save_s: float
    blocked_s: float | None
    restore_s: float


def measure(name: str, size_mb: int, rounds: int, folder: Path) -> Figures:
    """Run one contestant in this process, which must be its own."""
    quiet()
    state = make_state(size_mb)
    contestant = CONTESTANTS[name][0]()
    contestant.setup(folder, state)
    saves, blocks, restores = [], [], []
    # The first round is a warm-up: buffers are faulted in, libraries imported.
    for round_ in range(rounds + 1):
        change(state)
        saves.append(timed(lambda step=2 * round_: contestant.save(step)))
        # Whoever still deletes old files would be timed with the restore, which mostly happens in a new process.
        if isinstance(contestant, Strata):
            contestant.settle()
        drop_cache(folder)
        restores.append(timed(lambda step=2 * round_: contestant.restore(step)))
        change(state)
        blocks.append(contestant.blocked(2 * round_ + 1))
        keep_newest(folder, name)
    found = [each for each in blocks[1:] if each is not None]
    return Figures(name, size_mb, min(saves[1:]), min(found) if found else None, min(restores[1:]))


def measure_in_turn(size_mb: int, rounds: int, passes: int, folder: Path) -> dict[str, Figures]:
    """Let all contestants take their turn several times: a device that others share is not the same a minute later."""
    found: dict[str, list[Figures]] = {}
    for _ in range(passes):
        for name, (_, module) in CONTESTANTS.items():
            if importlib.util.find_spec(module) is not None:
                found.setdefault(name, []).append(in_own_process(measure, name, size_mb, rounds, folder=folder))
    return {name: best_of(figures) for name, figures in found.items()}


def best_of(figures: list[Figures]) -> Figures:
    """The best times of one contestant in all of its turns."""
    blocks = [each.blocked_s for each in figures if each.blocked_s is not None]
    return Figures(
        figures[0].contestant,
        figures[0].size_mb,
        min(each.save_s for each in figures),
        min(blocks) if blocks else None,
        min(each.restore_s for each in figures),
    )


@dataclass(frozen=True)
class DeltaFigures:
    """How much a delta wrote of the state, and how long it took beside a full save of the same."""

    workload: str
    written_percent: float
    delta_s: float
    full_s: float


def measure_delta(workload: str, size_mb: int, rounds: int, folder: Path) -> DeltaFigures:
    """Save the same changes with and without delta, taking turns."""
    quiet()
    from strata.checkpoint import CheckpointManager, SavePolicy

    state = make_state(size_mb)
    managers = {
        delta: CheckpointManager(folder / str(delta), keep_count=1, saving=SavePolicy(delta=delta, full_every=1_000))
        for delta in (True, False)
    }
    times: dict[bool, list[float]] = {True: [], False: []}
    written = 0
    for step in range(rounds + 1):
        WORKLOADS[workload](state, step)
        for delta, manager in managers.items():
            times[delta].append(timed(lambda m=manager, s=step: m.save(state, s)))
        written = sum(path.stat().st_size for path in folder.glob(f"True/default/checkpoints/step_{step}/model*"))
        for manager in managers.values():
            manager.wait_pending()
    for manager in managers.values():
        manager.close()
    total = sum(tensor.nbytes for tensor in state.values())
    return DeltaFigures(workload, 100 * written / total, min(times[True][1:]), min(times[False][1:]))


def change_adapter(state: dict[str, Any], step: int) -> None:
    """LoRA, or a frozen base: one percent of the state is trained."""
    last = list(state.values())[-1].view(-1)
    last[: max(1, sum(tensor.numel() for tensor in state.values()) // 100)] += 1


def change_rows(state: dict[str, Any], step: int) -> None:
    """An embedding table: 64 rows of 4 KiB somewhere in every eighth tensor."""
    for tensor in list(state.values())[step % 8 :: 8]:
        rows = tensor.view(-1, 1024)
        rows[(step * 97) % (len(rows) - 64) :][:64] += 1


def change_all(state: dict[str, Any], step: int) -> None:
    """Dense Adam: every value changes."""
    change(state)


WORKLOADS: dict[str, Callable[[dict[str, Any], int], None]] = {
    "adapter (1 %)": change_adapter,
    "embedding rows": change_rows,
    "dense": change_all,
}


def make_state(size_mb: int) -> dict[str, Any]:
    """A state of about this size."""
    import torch

    count = max(1, (size_mb << 20) // TENSOR_BYTES)
    return {f"layer{number}": torch.randn(1024, TENSOR_BYTES // 4096) for number in range(count)}


def change(state: dict[str, Any]) -> None:
    """Train a step."""
    for tensor in state.values():
        tensor.add_(1e-3)


def drop_cache(folder: Path) -> None:
    """Put what the page cache holds of these files out of it."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def keep_newest(folder: Path, name: str) -> None:
    """Make room, outside of what is timed; strata does it by itself."""
    if name != "strata":
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def quiet() -> None:
    """Peers say much on stderr that is not about time."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def timed(call: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def in_own_process(work: Callable[..., Any], *arguments: object, folder: Path) -> Any:
    """Run one measurement where nothing of the others is left, in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as own,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process,
    ):
        return process.submit(work, *arguments, Path(own)).result()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="saves and restores of a contestant in one process")
    parser.add_argument("--passes", type=int, default=3, help="how often all contestants take their turn")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to write")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    size_mb = int(os.environ.get("CHECKPOINT_SIZE_MB", "256"))
    results: list[Any] = []
    raw: Figures | None = None
    count = arguments.rounds * arguments.passes
    print(f"{size_mb} MB, best of {count}; in brackets, the speed as a ratio to raw")
    found_by = measure_in_turn(size_mb, arguments.rounds, arguments.passes, arguments.folder)
    print(f"{'':18} {'save':>22} {'blocked':>20} {'restore':>22}")
    for name, (_, module) in CONTESTANTS.items():
        if name not in found_by:
            print(f"{name:18} not run: {module} is not installed")
            continue
        found = found_by[name]
        raw = raw or found
        results.append(asdict(found))
        blocked = (
            "-" if found.blocked_s is None else f"{found.blocked_s:.3f} s ({shown(raw.blocked_s, found.blocked_s)})"
        )
        print(
            f"{name:18} {found.save_s:>7.3f} s {size_mb / 1000 / found.save_s:>4.2f} GB/s "
            f"({shown(raw.save_s, found.save_s)}) {blocked:>20} {found.restore_s:>7.3f} s "
            f"({shown(raw.restore_s, found.restore_s)})"
        )
    print(f"\n{'delta':18} {'written':>9} {'delta':>10} {'full':>10} {'time':>7}")
    for workload in WORKLOADS:
        delta: DeltaFigures = in_own_process(
            measure_delta, workload, size_mb, arguments.rounds, folder=arguments.folder
        )
        results.append(asdict(delta))
        print(
            f"{workload:18} {delta.written_percent:>7.1f} % {delta.delta_s:>8.3f} s {delta.full_s:>8.3f} s "
            f"{delta.delta_s / delta.full_s:>6.2f}x"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def shown(raw_s: float | None, own_s: float) -> str:
    """A ratio of speeds: 1.00 is as fast as raw."""
    return "-" if raw_s is None else f"{raw_s / own_s:.2f}"


if __name__ == "__main__":
    main()
