"""Which replica is right: decided by ranks, never block by block, so that no mixture passes for a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.commit.merge import merge_reports
from strata.checkpoint.format.digest import digest_bytes, digest_part
from strata.checkpoint.format.manifest import CopyRecord, Extent, Manifest, PartRecord, StoredSlice, StoredTensor
from strata.cluster.values import Divergence

# The value of each block, as each rank holds it.
Held = Sequence[Sequence[int]]


def report(rank: int, held: Sequence[int], writers: Sequence[Sequence[int]], **fields: object) -> Manifest:
    """Return what a rank reports that holds one tensor for each block, and writes those that it is a writer of."""
    written = [block for block, ranks in enumerate(writers) if rank in ranks]
    data = bytes(held[block] for block in written)
    chunks = (digest_bytes(data),) if data else ()
    path = f"step_1/model-{rank + 1:05}-of-00009.safetensors"
    return Manifest(
        job_id="default",
        step=1,
        epoch=0,
        created_s=1.0,
        parts=(PartRecord(len(data), digest_part(chunks), chunks, (Extent(path, 0, len(data)),)),),
        tensors={
            f"w{block}": StoredTensor(
                "uint8", (1,), (StoredSlice(0, written.index(block), (0,), (1,)),) if block in written else ()
            )
            for block in range(len(held))
        },
        structure={"dict": [[f"w{block}", {"tensor": f"w{block}", "as": "numpy"}] for block in range(len(held))]},
        copies=tuple(
            CopyRecord(f"w{block}", (0,), (1,), digest_bytes(bytes([value]))) for block, value in enumerate(held)
        ),
    )


def merge(held: Held, writers: Sequence[Sequence[int]]) -> tuple[Divergence | None, list[int]]:
    """Return how the replicas differ, and what a restore reads of each block."""
    manifest = merge_reports([report(rank, values, writers) for rank, values in enumerate(held)])
    read = [manifest.tensors[f"w{block}"].slices[0].part for block in range(len(held[0]))]
    return manifest.diverged, [held[part][block] for block, part in enumerate(read)]


@st.composite
def replicas(draw: st.DrawFn) -> tuple[Held, Sequence[Sequence[int]]]:
    ranks, blocks = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    held = [[draw(st.sampled_from([0, 0, 0, 1, 2])) for _ in range(blocks)] for _ in range(ranks)]
    several = st.lists(st.integers(0, ranks - 1), min_size=1, unique=True)
    return held, [draw(several) for _ in range(blocks)]


@given(replicas())
def test_a_checkpoint_that_is_not_suspect_is_the_state_that_most_ranks_held(
    found: tuple[Held, Sequence[Sequence[int]]],
) -> None:
    held, writers = found
    diverged, read = merge(held, writers)
    if diverged is None:
        assert len({tuple(values) for values in held}) == 1
    elif not diverged.suspect:
        assert sum(list(values) == read for values in held) > len(held) / 2


@given(replicas())
def test_a_checkpoint_is_suspect_only_if_the_majority_has_no_say_in_what_was_written(
    found: tuple[Held, Sequence[Sequence[int]]],
) -> None:
    held, writers = found
    diverged, read = merge(held, writers)
    state, votes = Counter(tuple(values) for values in held).most_common(1)[0]
    has_majority = votes > len(held) / 2
    if has_majority:
        outside = tuple(rank for rank, values in enumerate(held) if tuple(values) != state)
        assert (() if diverged is None else diverged.ranks) == outside
    if diverged is not None and diverged.suspect and has_majority:
        wrong = [block for block, value in enumerate(read) if value != state[block]]
        assert wrong
        assert all(held[rank][block] != state[block] for block in wrong for rank in writers[block])


def test_a_majority_for_each_block_is_none_if_no_two_ranks_held_all_of_it() -> None:
    diverged, read = merge([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[1], [2], [0]])
    assert read == [0, 0, 0]
    assert diverged == Divergence((1, 2), "w0", 3, suspect=True)


def test_what_several_ranks_wrote_is_read_from_one_of_the_majority() -> None:
    diverged, read = merge([[1], [0], [0]], [[0, 1, 2]])
    assert (diverged, read) == (Divergence((0,), "w0", 1), [0])


def test_two_replicas_that_differ_have_no_majority() -> None:
    diverged, _ = merge([[0], [1]], [[0]])
    assert diverged == Divergence((1,), "w0", 1, suspect=True)
