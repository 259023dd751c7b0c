"""Shuffling more rows than fit into memory: once through in order, dealing each row to its file; then file by file."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from strata.data.formats import tensors
from strata.sharding.permutation import permute

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from strata.data.columns import Columns
    from strata.data.formats.protocol import Integers
    from strata.data.rows import DatasetRows

_PLACE = "strata.place"


def shuffled(
    rows: DatasetRows, schema: pa.Schema, edges: Sequence[int], seed: int, folder: Path, piece: int
) -> Iterator[Iterator[Columns]]:
    """Yield the rows of each file; the order depends on ``seed`` and the number of rows alone.

    Every order is as likely as the next, as far as the keyed shuffle of the sharding package is. Reading is in
    order throughout; the price is a second copy of the data in ``folder`` for the while, written with ``schema``.
    """
    for start in range(0, rows.num_rows, piece):
        stop = min(rows.num_rows, start + piece)
        places = permute(np.arange(start, stop), rows.num_rows, seed)
        _deal(tensors.encode(rows.read(start, stop), schema), places, edges, folder)
    for number in range(len(edges) - 1):
        path = folder / str(number)
        yield _gather(path, schema, piece)
        path.unlink()


def _deal(table: pa.Table, places: Integers, edges: Sequence[int], folder: Path) -> None:
    """Append each row, with its place in the order, to a stream of the file that it goes to."""
    order = np.argsort(places)
    table = table.append_column(_PLACE, pa.array(places)).take(order)
    cuts = np.searchsorted(places[order], edges)
    for number, (low, high) in enumerate(pairwise(cuts)):
        if low == high:
            continue
        # A stream for each piece: so many files need not stay open.
        with (folder / str(number)).open("ab") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(low, high - low))


def _gather(path: Path, schema: pa.Schema, piece: int) -> Iterator[Columns]:
    tables = []
    with pa.memory_map(str(path)) as source:
        while source.tell() < source.size():
            with pa.ipc.open_stream(source) as reader:
                tables.append(reader.read_all())
        table = pa.concat_tables(tables)
        order = np.argsort(table[_PLACE].to_numpy())
        content = table.drop_columns([_PLACE])
        for low in range(0, len(order), piece):
            yield tensors.decode(content.take(order[low : low + piece]), schema)
