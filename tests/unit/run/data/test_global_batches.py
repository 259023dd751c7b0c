"""Every sample of a global batch goes to one worker, in whole blocks, and all workers take as many steps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.run.team.global_batches import cut_blocks

SIZES = st.integers(1, 40)


@given(start=st.integers(0, 100), left=st.integers(0, 300), batch=SIZES, block=SIZES, world=st.integers(1, 9))
def test_the_shares_of_all_workers_make_up_every_batch(
    start: int, left: int, batch: int, block: int, world: int
) -> None:
    shares = [
        cut_blocks(start, start + left, batch_size=batch, block_size=block, rank=rank, world_size=world)
        for rank in range(world)
    ]
    batches = -(-left // batch)
    assert {len(share) for share in shares} == {batches}
    for number in range(batches):
        rows = [share[number] for share in shares]
        begin, end = start + number * batch, min(start + (number + 1) * batch, start + left)
        assert [row[1] for row in rows] == [begin, *(row[2] for row in rows[:-1])]
        assert rows[-1][2] == end
        for _, first, last in rows:
            assert (first - begin) % block == 0 or first == end
            assert (last - begin) % block == 0 or last == end
        blocks = [-(-(last - first) // block) for _, first, last in rows]
        assert max(blocks) - min(blocks) <= 1


@given(left=st.integers(1, 300), batch=SIZES, block=SIZES, world=st.integers(1, 9), rank=st.integers(0, 8))
def test_empty_rows_come_last(left: int, batch: int, block: int, world: int, rank: int) -> None:
    rows = cut_blocks(0, left, batch_size=batch, block_size=block, rank=rank % world, world_size=world)
    filled = rows[:, 2] > rows[:, 1]
    assert np.array_equal(filled, np.sort(filled)[::-1])


def test_what_is_no_whole_batch_can_be_left_out() -> None:
    rows = cut_blocks(0, 25, batch_size=10, block_size=1, rank=0, world_size=1, drop_last=True)
    assert rows.tolist() == [[0, 0, 10], [0, 10, 20]]
