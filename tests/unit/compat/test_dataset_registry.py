"""DatasetRegistry counts the rows of its files where the script does not say how many samples there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata import DatasetRegistry
from strata.errors import DatasetNotFoundError


def test_without_a_number_of_samples_the_rows_of_the_files_are_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(95)}), tmp_path / "part.parquet")
    registry = DatasetRegistry()
    registry.register("d", str(tmp_path), shard_size=10)
    assert [shard.end_index for shard in registry.get_shard("d", 0)][-1] == 95


def test_with_a_number_of_samples_nothing_is_read() -> None:
    registry = DatasetRegistry()
    registry.register("d", "nowhere", total_samples=20, shard_size=10)
    assert len(registry.get_shard("d", 0)) == 2


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="nowhere"):
        DatasetRegistry().register("d", str(tmp_path / "nowhere"))
