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

    from strata.data.formats.protocol import Integers
    from strata.data.rows.columns import Columns
    from strata.data.rows.row_sequence import DatasetRows

_PLACE = "strata.place"


def deal_rows(rows: DatasetRows, schema: pa.Schema, edges: Sequence[int], seed: int, folder: Path, piece: int) -> None:
    """Go through all rows and append each to the file of its place; the order depends on seed and count alone.

    Every order is as likely as the next, as far as the keyed shuffle of the sharding package is. The price is a second
    copy of the data in ``folder`` for the while, written with ``schema``.
    """
    for start in range(0, rows.num_rows, piece):
        stop = min(rows.num_rows, start + piece)
        places = permute(np.arange(start, stop), rows.num_rows, seed)
        _deal(tensors.encode(rows.read(start, stop), schema), places, edges, folder)


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


def gather_rows(path: Path, schema: pa.Schema, piece: int) -> Iterator[Columns]:
    """Yield the rows that were dealt to a file, in their places."""
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
