"""Writing and reading objects, local and S3: Strata beside dd, plain files, obstore, boto3 and awscrt.

python -m benchmarks.storage [--sizes 1,10,100,1024] [--rounds 5] [--only "s3 write"] [--json FILE]

Contestants take turns, each in a process of its own, and every object is new. Ratios are of medians over the
rounds, to the fastest peer; Strata itself is no peer. Peak memory is what the work needed beyond the object
that it was given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.storage_peers import CONTESTANTS, Place, aligned
from strata.storage import LocalStorage, S3Storage
from tests.testbed import servers

if TYPE_CHECKING:
    from strata.storage import Storage

MB = 1 << 20


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--sizes", default="1,10,100,1024", help="MiB, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=CONTESTANTS, action="append")
    parser.add_argument("--folder", type=Path, help="where to write; it should be on the disk to measure")
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        _run_one(*arguments.run)
        return
    sizes = [int(size) * MB for size in arguments.sizes.split(",")]
    works = arguments.only or list(CONTESTANTS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        place, storages = _open(stack, folder, needs_s3=any(work.startswith("s3") for work in works))
        samples = [
            sample
            for work in works
            for size in sizes
            for sample in _measure(work, size, arguments.rounds, place, storages[work.split()[0]])
        ]
    if arguments.json:
        arguments.json.write_text(json.dumps(samples, indent=1))


def _open(stack: ExitStack, folder: Path, *, needs_s3: bool) -> tuple[Place, dict[str, Storage]]:
    data = folder / "local"
    data.mkdir()
    place = Place(str(data), "")
    storages: dict[str, Storage] = {"local": LocalStorage(data)}
    if needs_s3:
        server = stack.enter_context(servers.seaweedfs(folder))
        keys = {"access_key": server.access_key, "secret_key": server.secret_key}
        place = Place(str(data), "", server.endpoint, server.bucket, **keys)
        storages["s3"] = S3Storage(
            server.bucket,
            "us-east-1",
            server.endpoint,
            access_key_id=server.access_key,
            secret_access_key=server.secret_key,
        )
    return place, storages


def _measure(work: str, size: int, rounds: int, place: Place, storage: Storage) -> list[dict[str, Any]]:
    samples = []
    for round_number in range(rounds):
        for name in CONTESTANTS[work]:
            key = uuid.uuid4().hex
            if work.endswith("read"):
                asyncio.run(storage.write(key, aligned(size)))
            target = Place(**(asdict(place) | {"key": key}))
            command = [sys.executable, "-m", "benchmarks.storage", "--run", work, name, str(size)]
            result = subprocess.run(
                [*command, json.dumps(asdict(target))], check=True, stdout=subprocess.PIPE, text=True
            )
            asyncio.run(storage.delete(key))
            cost = json.loads(result.stdout)
            samples.append({"work": work, "size": size, "contestant": name, "round": round_number, **cost})
    _print_table(work, size, samples)
    return samples


def _print_table(work: str, size: int, samples: list[dict[str, Any]]) -> None:
    def median(name: str, field: str) -> float:
        return statistics.median(sample[field] for sample in samples if sample["contestant"] == name)

    elapsed_s = {name: median(name, "elapsed_s") for name in CONTESTANTS[work]}
    best_peer = min(value for name, value in elapsed_s.items() if not name.startswith("strata"))
    print(f"\n| {work}, {size // MB} MiB | GB/s | of best peer | peak memory, MB | CPU, s |")
    print("|---|---:|---:|---:|---:|")
    for name, seconds in elapsed_s.items():
        speed, ratio = size / seconds / 1e9, best_peer / seconds
        peak_mb, cpu_s = median(name, "peak_bytes") / 1e6, median(name, "cpu_s")
        print(f"| {name} | {speed:.2f} | {ratio:.2f} | {peak_mb:.0f} | {cpu_s:.2f} |", flush=True)


def _run_one(work: str, name: str, size: str, place: str) -> None:
    cost = CONTESTANTS[work][name](Place(**json.loads(place)), int(size))
    print(json.dumps(asdict(cost)), flush=True)
    # Raw obstore aborts about 1 interpreter in 10 that ends right after a call; that is not what is measured.
    os._exit(0)


if __name__ == "__main__":
    main()
