"""Loading shuffled batches: Strata beside LitData, WebDataset, torch over pyarrow, and pyarrow in order as the limit.

python -m benchmarks.data [--samples 40000] [--batch-sizes 256,32] [--rounds 3] [--workers 0,2] [--only parquet]
                          [--with-mosaic] [--folder DIR] [--json FILE]

Contestants take turns, each in a process of its own, on the same samples and batch size. Cold is opening and the first
epoch with nothing in the page cache, imports and indexing not counted; warm is the epoch after it, in the same process.
Memory is the peak beyond what the process had before, without that of worker processes. Mosaic has an environment of
its own, because it needs a torchvision that fits no other torch.
"""

from __future__ import annotations

import argparse
import importlib
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

from benchmarks.data_peers import CONTESTANTS, MODULES, SAMPLE_BYTES, WRITERS, batch_length, drop_cache
from benchmarks.measure import measure

MILLION = 1_000_000
MB = 1 << 20
# Whose order is not shuffled is no peer, but the limit.
LIMIT = "pyarrow in order"
MOSAIC = Path(__file__).parent / "data_mosaic.py"
MOSAIC_PACKAGES = ("mosaicml-streaming==0.13.0", "torch")
CONSTRAINTS = Path(__file__).parents[1] / "requirements" / "torch.txt"


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
        formats = arguments.only or list(CONTESTANTS)
        for kind in formats:
            (folder / kind).mkdir()
            _write(kind, folder / kind, arguments.samples)
        mosaic = _prepare_mosaic(folder / "mosaic", arguments.samples) if arguments.with_mosaic else None
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
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{kind} could not be written:\n{done.stderr[-2000:]}")
    if kind != "litdata":
        # Peers with a format of their own index it when they write it.
        index = [sys.executable, "-m", "strata", "data", "index", str(folder)]
        subprocess.run(index, check=True, capture_output=True)


def _measure(
    folder: Path, formats: list[str], batch_size: int, workers: int, arguments: argparse.Namespace, mosaic: Any
) -> list[dict[str, Any]]:
    contestants = [(kind, name) for kind in formats for name in CONTESTANTS[kind] if not (workers and name == LIMIT)]
    found: dict[tuple[str, str], list[dict[str, float]]] = {each: [] for each in contestants}
    for _ in range(arguments.rounds):
        for kind, name in contestants:
            command = [sys.executable, "-m", "benchmarks.data", "--run", kind, name, str(folder / kind)]
            found[kind, name].append(_child([*command, str(batch_size), str(workers)]))
        if mosaic is not None:
            command = [str(mosaic), str(MOSAIC), "read", str(folder / "mosaic"), str(batch_size), str(workers)]
            found.setdefault(("mds", "mosaicml-streaming"), []).append(_child(command))
    print(f"\nbatches of {batch_size}, " + (f"{workers} worker processes" if workers else "one process"))
    print(f"{'':9} {'':20} {'cold':>12} {'warm':>12} {'warm':>10} {'CPU':>8} {'memory':>9} {'first batch':>12}")
    for (kind, name), runs in found.items():
        each = {field: statistics.median(run[field] for run in runs) for field in runs[0]}
        print(
            f"{kind:9} {name:20} {each['cold_samples_s']:>10,.0f}/s {each['warm_samples_s']:>10,.0f}/s "
            f"{each['warm_samples_s'] * SAMPLE_BYTES / MB:>5,.0f} MB/s {each['warm_cpu_s']:>6.2f} s "
            f"{each['peak_bytes'] / MB:>6,.0f} MB {each['first_s'] * 1000:>9,.0f} ms"
        )
    _print_ratios(found)
    return [
        {"format": kind, "name": name, "batch_size": batch_size, "workers": workers, "runs": runs}
        for (kind, name), runs in found.items()
    ]


def _print_ratios(found: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    speed = {each: statistics.median(run["warm_samples_s"] for run in runs) for each, runs in found.items()}
    for kind in dict.fromkeys(kind for kind, _ in speed):
        if (kind, "strata") not in speed:
            continue
        mine = speed[kind, "strata"]
        peers = [each for each in speed if each[0] in (kind, "litdata", "mds") and not each[1].startswith("strata")]
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
    """Time to open a token file of twelve million rows and get the first batch after ten million of them."""
    from strata.data import open_dataset

    path, length = folder / "tokens.bin", 64
    with path.open("wb") as file:
        file.truncate(12 * MILLION * length * 2)  # sparse: it takes no room
    results = []
    for order in ("sticky", "global"):
        runs = []
        for _ in range(rounds):
            started = time.perf_counter()
            options = {"dtype": "uint16", "sequence_length": length}
            with open_dataset(path, batch_size=256, order=order, options=options) as dataset:
                state = dataset.state_dict()
                state |= {"position": 10 * MILLION} if order == "global" else {"consumed": [0, 10 * MILLION]}
                dataset.load_state_dict(state)
                next(iter(dataset))
                runs.append({"first_s": time.perf_counter() - started})
        first_s = statistics.median(run["first_s"] for run in runs)
        print(f"  {f'{order}, after 10 million rows':28} {first_s * 1000:>9,.1f} ms, with opening")
        results.append({"format": "tokens", "name": f"resume after 10 million: {order}", "runs": runs})
    return results


def _child(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run_one(kind: str, name: str, folder: str, batch_size: str, workers: str) -> None:
    make = CONTESTANTS[kind][name]
    for module in (*MODULES[name], *(["strata.integrations.torch_data"] if int(workers) and "strata" in name else [])):
        importlib.import_module(module)
    drop_cache(Path(folder))
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


def _prepare_mosaic(folder: Path, samples: int) -> Path:
    """Return the interpreter of an environment that has mosaicml-streaming, with its data written."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "strata-benchmarks" / "mosaic"
    interpreter = home / "bin" / "python"
    if not (home / "ready").exists():
        print(f"making an environment for mosaicml-streaming in {home}")
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [str(interpreter), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *MOSAIC_PACKAGES]
        subprocess.run(install, check=True)
        (home / "ready").touch()
    subprocess.run([str(interpreter), str(MOSAIC), "write", str(folder), str(samples), "0"], check=True)
    return interpreter


if __name__ == "__main__":
    main()
