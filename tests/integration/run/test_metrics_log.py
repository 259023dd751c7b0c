"""Metrics in Weights & Biases: the real library writes them offline, and what it wrote is read back."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.run.test_first_minutes import strata

pytestmark = [pytest.mark.timeout(200), pytest.mark.part("metrics")]

BLOCK = 32_768
FULL, LAST = 1, 4
TRAIN = """
import sys, strata
import numpy as np
state = {"x": np.zeros(1)}
with strata.join(checkpoints="checkpoints", save_every="5 steps") as run:
    for step in run.steps(state, until=int(sys.argv[1])):
        with step:
            state["x"] += 1
            step.report(loss=1.0 / step.number)
"""


def read_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file of the library: a log of blocks, as LevelDB writes it, after a head of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all offline runs, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime):
        for data in read_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
                rows.append({name: json.loads(value) for name, value in items.items()})
    return rows


def test_rank_0_writes_every_step_offline_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    for until in ("6", "9"):
        options = ("--standalone", "--nproc", "2", "--job", "j", "--log", "wandb:project")
        done = strata(tmp_path, "run", *options, "train.py", until, WANDB_SILENT="true")
        assert done.returncode == 0, done.stderr
    rows = read_history(tmp_path)
    assert [row["_step"] for row in rows] == list(range(1, 10))
    assert [row["loss"] for row in rows] == [1.0 / step for step in range(1, 10)]
    assert all(row["step_s"] > 0 for row in rows)
