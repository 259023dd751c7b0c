"""What is put into shared memory comes out as it was, and stays when the next value is put."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from strata.data.loading.shared_arrays import SharedMemory
from strata.data.loading.work_processes import WorkProcesses

DTYPES = st.one_of(
    arrays.integer_dtypes(), arrays.floating_dtypes(), arrays.boolean_dtypes(), st.just(np.dtype("M8[s]"))
)
VALUES = st.dictionaries(
    st.text(max_size=3),
    st.one_of(
        arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0, max_side=70)),
        st.lists(st.binary(max_size=200)).map(lambda items: np.array([*items, None], object)[:-1]),
    ),
    max_size=4,
)


def show(value: dict[str, Any]) -> list[Any]:
    return [
        (name, each.dtype, each.shape, each.tolist() if each.dtype == object else each.tobytes())
        for name, each in value.items()
    ]


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_values_come_out_as_they_were_put(values: list[dict[str, Any]]) -> None:
    memory = SharedMemory()
    taken = [memory.take(memory.put(value)) for value in values]
    assert [show(value) for value in taken] == [show(value) for value in values]
    for value in taken:
        for each in value.values():
            assert each.flags.writeable


def test_arrays_of_any_layout_are_taken_over() -> None:
    memory = SharedMemory()
    table = np.arange(24).reshape(4, 6)
    value = {"columns": table.T, "every other": table[:, ::2], "pictures": np.array([table, table[:1], None], object)}
    taken = memory.take(memory.put(value))
    assert taken["columns"].tolist() == table.T.tolist()
    assert taken["every other"].tolist() == table[:, ::2].tolist()
    assert taken["pictures"][1].tolist() == table[:1].tolist()
    assert memory.take(memory.put(None)) is None


def double(value: Any) -> Any:
    return value * 2


def test_another_process_finds_what_was_put_also_after_the_memory_has_grown() -> None:
    processes = WorkProcesses(double, 1, memories=1)
    try:
        for size in (10, 1_000_000, 3):
            assert np.array_equal(processes.submit(np.arange(size)).result(), 2 * np.arange(size))
    finally:
        processes.close()


def test_memory_has_no_name_that_could_be_left_behind() -> None:
    assert os.fstat(SharedMemory()._descriptor).st_nlink == 0


def test_a_value_that_cannot_be_sent_is_an_error_and_leaves_its_memory_to_the_next() -> None:
    processes = WorkProcesses(str, 1, memories=1)
    try:
        # Were the only memory still taken, the second would wait for it without end.
        for _ in range(2):
            with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
                processes.submit(lambda: 0)
    finally:
        processes.close()
