"""mosaicml-streaming in benchmarks/data.py: a program of its own, because it runs in another environment.

python data_mosaic.py write FOLDER SAMPLES mds|jpeg
python data_mosaic.py read FOLDER BATCH_SIZE WORKERS
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np


class _StandIn(ModuleType):
    """In place of torchvision, whose builds fit no torch but one: streaming imports it, and nothing here uses it."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for _name in ("", ".datasets", ".datasets.vision", ".transforms", ".transforms.functional"):
    _module = sys.modules[f"torchvision{_name}"] = _StandIn(f"torchvision{_name}")
    _module.__spec__ = ModuleSpec(_module.__name__, None)

from PIL import Image  # noqa: E402 - after the stand-ins
from streaming import MDSWriter, StreamingDataset  # noqa: E402 - after the stand-ins
from torch.utils.data import DataLoader  # noqa: E402 - after the stand-ins

SAMPLE_BYTES = 8_192
SIDE = 256


class Pictures(StreamingDataset):
    """Pictures that are stored as they are in files, and decoded by Pillow."""

    def __getitem__(self, at: int) -> dict[str, object]:
        found = super().__getitem__(at)
        if "jpg" not in found:
            return found
        return {"x": np.asarray(Image.open(io.BytesIO(found["jpg"])).convert("RGB"))}


def write_pictures(folder: str, samples: int) -> None:
    """Write a tenth as many pictures as samples, as media_peers does."""
    with MDSWriter(out=folder, columns={"jpg": "bytes"}, size_limit=32 << 20) as out:
        for at in range(max(8, samples // 10)):
            rng = np.random.default_rng(at)
            small = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            sink = io.BytesIO()
            small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(sink, "JPEG", quality=90)
            out.write({"jpg": sink.getvalue()})


def write(folder: str, samples: int) -> None:
    """Write the samples as MDS shards."""
    rng = np.random.default_rng(0)
    with MDSWriter(out=folder, columns={"id": "int", "x": "ndarray"}, size_limit=32 << 20) as out:
        for at in range(samples):
            out.write({"id": at, "x": rng.integers(0, 256, SAMPLE_BYTES, dtype=np.uint8)})


def read(folder: str, batch_size: int, workers: int) -> None:
    """Go through two epochs and print what the first and the second cost."""
    for path in Path(folder).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    data = Pictures(local=folder, shuffle=True, batch_size=batch_size)
    batches = DataLoader(data, batch_size=batch_size, num_workers=workers, persistent_workers=workers > 0)
    first_s = 0.0
    seen = 0
    for batch in batches:
        first_s = first_s or time.perf_counter() - started
        seen += len(batch["x"])
    cold_s = time.perf_counter() - started
    cpu, started = sum(os.times()[:4]), time.perf_counter()
    again = sum(len(batch["x"]) for batch in batches)
    warm_s = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {
                "cold_samples_s": seen / cold_s,
                "warm_samples_s": again / warm_s,
                "warm_cpu_s": sum(os.times()[:4]) - cpu,
                "peak_bytes": (peak - memory) * 1024,
                "first_s": first_s,
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "write":
        {"mds": write, "jpeg": write_pictures}[sys.argv[4]](sys.argv[2], int(sys.argv[3]))
    else:
        read(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
