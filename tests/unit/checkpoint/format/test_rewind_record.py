"""The records of rewinds: what is skipped, which checkpoints are left behind, and what is no record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.checkpoint.format.rewind_record import Rewind, find_skips, is_left_behind, show_batches
from strata.errors import DamagedRecordError

SAMPLE = Rewind(
    number=3, from_step=30, to_step=10, at_s=1.5, dataset="d", skips=((12, 12), (14, 16)), set_aside=(20, 30)
)


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_record_comes_back_equal(*, is_finished: bool) -> None:
    record = replace(SAMPLE, is_finished=is_finished)
    assert Rewind.from_json(record.to_json()) == record


def test_a_rewind_is_told_in_words() -> None:
    assert str(SAMPLE) == "rewound from step 30 to step 10, skipped batches 12, 14..16 of d"
    assert str(replace(SAMPLE, skips=())) == "rewound from step 30 to step 10"
    assert show_batches(SAMPLE.skips) == "12, 14..16"


def test_the_last_rewind_says_what_is_skipped_after_its_step() -> None:
    def record(number: int, to_step: int, *skips: tuple[int, int]) -> Rewind:
        return Rewind(number=number, from_step=99, to_step=to_step, at_s=0.0, dataset="d", skips=skips)

    first, second = record(1, 10, (12, 14), (40, 41)), record(2, 20, (25, 26))
    assert find_skips([first], "d") == ((12, 14), (40, 41))
    assert find_skips([first, second], "d") == ((12, 14), (25, 26))
    assert find_skips([first, second], "e") == ()
    assert is_left_behind(11, 0, [first, second])
    assert not is_left_behind(10, 0, [first, second])
    assert not is_left_behind(15, 1, [first, second])
    assert is_left_behind(21, 1, [first, second])
    assert not is_left_behind(99, 2, [first, second])


@pytest.mark.parametrize(
    "record",
    [
        None,
        3,
        {},
        {"number": 1},
        *(
            {**Rewind(number=1, from_step=2, to_step=1, at_s=0).to_json(), "skips": [skip]}
            for skip in ([3, 2], [0, 2], [3], [3, "4"], 5)
        ),
    ],
)
def test_a_record_that_is_none_is_not_believed(record: object) -> None:
    with pytest.raises(DamagedRecordError):
        Rewind.from_json(record)
