"""Batches: cut from pages, in the order dealt, each with the rows of work that it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from strata.data.loading.pages import Page
from strata.data.loading.position import Row
from strata.data.option_checks import check_choice
from strata.data.rows.columns import Array, Columns
from strata.errors import MissingExtraError
from strata.sharding.cursor import Spans

Arrays: TypeAlias = dict[str, Array]
# What the training loop gets: NumPy arrays, torch tensors or JAX arrays by column.
Batch: TypeAlias = dict[str, Any]
Target: TypeAlias = Literal["numpy", "torch", "jax"]
TARGETS: tuple[Target, ...] = ("numpy", "torch", "jax")


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Rows of one batch, and the work (shard, start, stop) that they are; fewer rows than work if some were skipped."""

    work: list[Row]
    columns: Columns


def cut_batches(
    pages: Iterable[tuple[Spans, Page]], *, batch_size: int, row_is_batch: bool, drop_last: bool
) -> Iterator[RawBatch]:
    """Yield batches of ``batch_size`` rows, or, with ``row_is_batch``, one for each row of work.

    A batch within one page copies nothing; one across pages is joined in one copy. With ``drop_last``, what is left at
    the end and is no whole batch is not delivered.
    """
    work: list[Row] = []
    parts: list[Columns] = []
    missing = batch_size
    for spans, page in pages:
        offset = 0
        for shard, start, stop in spans.tolist():
            if row_is_batch:
                yield RawBatch([(shard, start, stop)], page.slice(offset, offset + stop - start))
                offset += stop - start
                continue
            at = start
            while at < stop:
                size = min(missing, stop - at)
                work.append((shard, at, at + size))
                parts.append(page.slice(offset, offset + size))
                at, offset, missing = at + size, offset + size, missing - size
                if missing == 0:
                    yield RawBatch(work, Columns.concat(parts))
                    work, parts, missing = [], [], batch_size
    if work and not drop_last:
        yield RawBatch(work, Columns.concat(parts))


def convert(arrays: Arrays, target: Target) -> Batch:
    """Return the batch as the training loop wants it, without a copy where the library allows it.

    Text, bytes and lists of varying length have no tensor type: they stay arrays of objects.
    """
    if target == "torch":
        return {name: _to_torch(array) for name, array in arrays.items()}
    if target == "jax":
        return {name: _to_jax(array) for name, array in arrays.items()}
    return arrays


def check_target(target: Target) -> None:
    """Raise a clear error now, and not at the first batch, when the library is not there."""
    check_choice("to", target, TARGETS)
    if target != "numpy":
        try:
            __import__(target)
        except ImportError as error:
            raise MissingExtraError(target, needed_for=f"loading batches as {target}") from error


def _to_torch(array: Any) -> Any:
    import torch

    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufc":
        return array
    # torch has no tensors that must not be written to; memory of a file or of Arrow must not be.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _to_jax(array: Any) -> Any:
    import jax.numpy as jnp

    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufc":
        return array
    return jnp.asarray(array)
