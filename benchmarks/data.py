"""Loading shuffled batches: Strata beside LitData, WebDataset, torch, pyarrow, Grain, torchdata's nodes and Ray Data.

python -m benchmarks.data [--samples 40000] [--batch-sizes 256,32] [--rounds 3] [--workers 0,2] [--only parquet]
                          [--with-mosaic] [--only-deep-resume] [--folder DIR] [--json FILE]

Contestants take turns, each in a process of its own, on the same samples and batch size. Cold is opening and the first
epoch with nothing in the page cache, imports, indexing and starting Ray not counted; warm is the epoch after it, in the
same process. Memory and CPU are those of the process with the loop, without worker processes and Ray's. A peer that is
not installed is left out. Mosaic has an environment of its own: it needs a torchvision that fits no other torch.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers.data_peers import CONTESTANTS, MODULES, SAMPLE_BYTES, WRITERS, batch_length, drop_cache
from benchmarks.peers.library_peers import LIBRARY_CONTESTANTS, LIBRARY_MODULES, LIBRARY_STARTS
from benchmarks.peers.media_peers import MEDIA_CONTESTANTS, MEDIA_WRITERS, PICTURE_BYTES
from benchmarks.tools.measure import measure

MILLION = 1_000_000
MB = 1 << 20
# Whose order is not shuffled is no peer, but the limit.
LIMIT = "pyarrow in order"
CONTESTANTS |= MEDIA_CONTESTANTS
for _kind, _contestants in LIBRARY_CONTESTANTS.items():
    CONTESTANTS[_kind] |= _contestants
MODULES |= LIBRARY_MODULES
WRITERS |= MEDIA_WRITERS
LITDATA_FOLDERS = ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER")
MOSAIC = Path(__file__).parent / "peers" / "data_mosaic.py"
MOSAIC_PACKAGES = ("mosaicml-streaming==0.13.0", "torch")
CONSTRAINTS = Path(__file__).parents[1] / "requirements" / "torch.txt"


class ChildFailedError(Exception):
    """A contestant's process ended with an error."""


def main() -> None:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--batch-sizes", default="256,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="0,2", help="worker processes; 0 is all in one")
    parser.add_argument("--only", choices=CONTESTANTS, action="append")
    parser.add_argument("--with-mosaic", action="store_true", help="make its environment in the cache directory")
    parser.add_argument("--folder", type=Path, help="where the data goes; it should be on the disk to measure")
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--resume", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--only-deep-resume", action="store_true", help="restore in the middle of 100 million rows")
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        kind, target, samples = arguments.write
        WRITERS[kind](Path(target), int(samples))
        return
    if arguments.run:
        _run_one(*arguments.run)
        return
    if arguments.resume:
        _resume_one(*arguments.resume)
        return
    results: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        if arguments.only_deep_resume:
            _measure_deep_resume(folder, arguments.rounds)
            return
        formats = arguments.only or list(CONTESTANTS)
        for kind in formats:
            (folder / kind).mkdir()
            _write(kind, folder / kind, arguments.samples)
        left_out = {name for kind in formats for name in CONTESTANTS[kind] if not _is_installed(name)}
        if left_out:
            print(f"{', '.join(sorted(left_out))}: not installed and left out; make bench installs them")
        mosaic = _prepare_mosaic(folder, formats, arguments.samples) if arguments.with_mosaic else None
        if mosaic is None:
            print("mosaicml-streaming is left out; --with-mosaic brings it")
        for batch_size, workers in itertools.product(
            map(int, arguments.batch_sizes.split(",")), map(int, arguments.workers.split(","))
        ):
            results += _measure(folder, formats, batch_size, workers, arguments, mosaic)
        if "parquet" in formats:
            results += _measure_resume(folder / "parquet", arguments.rounds)
            results += _measure_deep_resume(folder, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


def _write(kind: str, folder: Path, samples: int) -> None:
    # In another process, so that no library of a peer is in this one.
    command = [sys.executable, "-m", "benchmarks.data", "--write", kind, str(folder), str(samples)]
    # LitData empties its folders for the while, which are /tmp/data and /tmp/chunks unless it is told others.
    folders = {name: str(folder.with_name(f"tmp-{name.lower()}")) for name in LITDATA_FOLDERS}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **folders})
    if done.returncode:
        raise SystemExit(f"{kind} could not be written:\n{done.stderr[-2000:]}")
    if not kind.startswith("litdata"):
        # Peers with a format of their own index it when they write it.
        index = [sys.executable, "-m", "strata", "data", "index", str(folder)]
        subprocess.run(index, check=True, capture_output=True)


def _measure(
    folder: Path, formats: list[str], batch_size: int, workers: int, arguments: argparse.Namespace, mosaic: Any
) -> list[dict[str, Any]]:
    contestants = [
        (kind, name)
        for kind in formats
        for name in CONTESTANTS[kind]
        if not (workers and name == LIMIT) and _is_installed(name)
    ]
    found: dict[tuple[str, str], list[dict[str, float]]] = {each: [] for each in contestants}
    for _ in range(arguments.rounds):
        for kind, name in list(found):
            if name not in CONTESTANTS.get(kind, ()):
                continue
            command = [sys.executable, "-m", "benchmarks.data", "--run", kind, name, str(folder / kind)]
            try:
                found[kind, name].append(_child([*command, str(batch_size), str(workers)]))
            except ChildFailedError as error:
                if name.startswith("strata"):
                    raise
                # One peer that fails does not end the run of the others.
                print(f"{name} on {kind} is left out: {str(error).strip().splitlines()[-1]}")
                del found[kind, name]
        for kind, data in _mosaic_folders(folder, formats) if mosaic is not None else ():
            command = [str(mosaic), str(MOSAIC), "read", str(data), str(batch_size), str(workers)]
            found.setdefault((kind, "mosaicml-streaming"), []).append(_child(command))
    print(f"\nbatches of {batch_size}, " + (f"{workers} worker processes" if workers else "one process"))
    print(f"{'':9} {'':20} {'cold':>12} {'warm':>12} {'warm':>10} {'CPU':>8} {'memory':>9} {'first batch':>12}")
    for (kind, name), runs in found.items():
        size_bytes = PICTURE_BYTES if kind == "jpeg" else SAMPLE_BYTES
        each = {field: statistics.median(run[field] for run in runs) for field in runs[0]}
        print(
            f"{kind:9} {name:20} {each['cold_samples_s']:>10,.0f}/s {each['warm_samples_s']:>10,.0f}/s "
            f"{each['warm_samples_s'] * size_bytes / MB:>5,.0f} MB/s {each['warm_cpu_s']:>6.2f} s "
            f"{each['peak_bytes'] / MB:>6,.0f} MB {each['first_s'] * 1000:>9,.0f} ms"
        )
    _check_counts(found)
    _print_ratios(found)
    return [
        {"format": kind, "name": name, "batch_size": batch_size, "workers": workers, "runs": runs}
        for (kind, name), runs in found.items()
    ]


def _check_counts(found: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    """Say whose epochs have not the samples that Strata's have: its figures are not comparable."""
    for (kind, name), runs in found.items():
        counts = {run["samples"] for run in found.get((kind, "strata"), runs) + runs if "samples" in run}
        if len(counts) > 1:
            print(
                f"  {name} on {kind} has epochs of {' and '.join(f'{count:,.0f}' for count in sorted(counts))} samples"
            )


def _print_ratios(found: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    speed = {each: statistics.median(run["warm_samples_s"] for run in runs) for each, runs in found.items()}
    for kind in dict.fromkeys(kind for kind, _ in speed):
        if (kind, "strata") not in speed:
            continue
        mine = speed[kind, "strata"]
        # Samples in a format of a peer's own are the same bytes, except for pictures; LitData has tokens of its own.
        alike = {"jpeg": (kind,), "tokens": (kind, "mds")}.get(kind, (kind, "litdata", "mds"))
        peers = [each for each in speed if each[0] in alike and not each[1].startswith("strata")]
        told = [f"{mine / speed[each]:.2f} of {each[1]}" for each in peers]
        print(f"  strata on {kind}: {', '.join(told)}")


def _measure_resume(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Time from a saved position in the middle of an epoch to the first batch, and the same by skipping; all open."""
    print("\nfirst batch after a restore at half of the epoch, batches of 256, data in the page cache")
    results = []
    for name in ("strata", "strata global", "strata, skipping", "torch + pyarrow, skipping"):
        runs = [
            _child([sys.executable, "-m", "benchmarks.data", "--resume", name, str(folder), "256"])
            for _ in range(rounds)
        ]
        print(f"  {name:28} {statistics.median(run['first_s'] for run in runs) * 1000:>9,.1f} ms")
        results.append({"format": "parquet", "name": f"resume: {name}", "runs": runs})
    return results


def _measure_deep_resume(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Time to open a token file of a hundred million rows and get the first batch after half of them."""
    from strata.data import open_dataset

    path, length = folder / "tokens.bin", 64
    with path.open("wb") as file:
        file.truncate(100 * MILLION * length * 2)  # sparse: it takes no room
    results = []
    for order in ("sticky", "global"):
        runs = []
        for _ in range(rounds):
            started = time.perf_counter()
            options = {"dtype": "uint16", "sequence_length": length}
            with open_dataset(path, batch_size=256, order=order, options=options) as dataset:
                state = dataset.state_dict()
                state |= {"position": 50 * MILLION} if order == "global" else {"consumed": [0, 50 * MILLION]}
                restored = time.perf_counter()
                dataset.load_state_dict(state)
                next(iter(dataset))
                ended = time.perf_counter()
                runs.append({"first_s": ended - restored, "with_opening_s": ended - started})
        first_s = statistics.median(run["first_s"] for run in runs)
        opening_s = statistics.median(run["with_opening_s"] for run in runs)
        print(f"  {f'{order}, in the middle of 100 million rows':42} {first_s * 1000:>9,.1f} ms,", end=" ")
        print(f"{opening_s * 1000:,.1f} ms with opening")
        results.append({"format": "tokens", "name": f"resume in the middle of 100 million: {order}", "runs": runs})
    return results


def _is_installed(name: str) -> bool:
    return all(importlib.util.find_spec(module.split(".")[0]) is not None for module in MODULES[name])


def _mosaic_folders(folder: Path, formats: list[str]) -> list[tuple[str, Path]]:
    """Return what mosaicml-streaming is measured on: pictures, and the samples that all other formats have."""
    kinds = {"jpeg" if kind == "jpeg" else "mds" for kind in formats}
    return [(kind, folder / f"mosaic-{kind}") for kind in sorted(kinds)]


def _child(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    if done.returncode:
        raise ChildFailedError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run_one(kind: str, name: str, folder: str, batch_size: str, workers: str) -> None:
    make = CONTESTANTS[kind][name]
    for module in (*MODULES[name], *(["strata.integrations.torch_data"] if int(workers) and "strata" in name else [])):
        importlib.import_module(module)
    LIBRARY_STARTS.get(name, lambda: None)()
    for each in Path(folder).parent.glob(f"{Path(folder).name}*"):
        drop_cache(each)
    first_s = 0.0
    with measure() as whole:
        with measure() as cold:
            started = time.perf_counter()
            batches = make(Path(folder), int(batch_size), int(workers))
            seen = 0
            for batch in batches:
                first_s = first_s or time.perf_counter() - started
                seen += batch_length(batch)
        with measure() as warm:
            again = sum(batch_length(batch) for batch in batches)
    assert seen == again, (seen, again)
    print(
        json.dumps(
            {
                "samples": seen,
                "cold_samples_s": seen / cold.elapsed_s,
                "warm_samples_s": again / warm.elapsed_s,
                "warm_cpu_s": warm.cpu_s,
                "peak_bytes": max(cold.peak_bytes, warm.peak_bytes, whole.peak_bytes),
                "first_s": first_s,
            }
        )
    )


def _resume_one(name: str, folder: str, batch_size: str) -> None:
    from strata.data import open_dataset

    def opened() -> Any:
        order = "global" if "global" in name else "sticky"
        return open_dataset(folder, batch_size=int(batch_size), order=order)

    reference = opened()
    half = reference.num_rows // int(batch_size) // 2
    for _ in itertools.islice(reference, half):
        pass
    state = reference.state_dict()
    batches: Any = opened()
    if name.startswith("torch"):
        batches = CONTESTANTS["parquet"]["torch + pyarrow"](Path(folder), int(batch_size), 0)
    started = time.perf_counter()
    if name.endswith("skipping"):
        next(itertools.islice(batches, half, None))
    else:
        batches.load_state_dict(state)
        next(iter(batches))
    print(json.dumps({"first_s": time.perf_counter() - started}))


def _prepare_mosaic(folder: Path, formats: list[str], samples: int) -> Path:
    """Return the interpreter of an environment that has mosaicml-streaming, with its data written."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "strata-benchmarks" / "mosaic"
    interpreter = home / "bin" / "python"
    if not (home / "ready").exists():
        print(f"making an environment for mosaicml-streaming in {home}")
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [str(interpreter), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *MOSAIC_PACKAGES]
        subprocess.run(install, check=True)
        (home / "ready").touch()
    for kind, data in _mosaic_folders(folder, formats):
        subprocess.run([str(interpreter), str(MOSAIC), "write", str(data), str(samples), kind], check=True)
    return interpreter


if __name__ == "__main__":
    main()
