"""The majority of replicas, decided by ranks: majorities of single blocks may form a state that no rank held. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strata.checkpoint.format.manifest import StoredSlice


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a tensor that several parts hold alike."""

    tensor: str
    start: tuple[int, ...]
    shape: tuple[int, ...]

    def overlaps(self, stored: StoredSlice) -> bool:
        """Whether a stored slice has elements of this block."""
        sides = zip(self.start, self.shape, stored.start, stored.shape, strict=True)
        return all(start < begin + size and begin < start + extent for start, extent, begin, size in sides)


@dataclass(frozen=True, slots=True)
class Replicas:
    """What the digests say of replicas. ``outside`` are the parts that are not in the majority of their group.

    ``differing`` has the blocks that parts hold with different values, by tensor. ``right`` has the parts that hold
    what the majority holds of such a block; they are none if there is no majority.
    """

    outside: frozenset[int]
    differing: Mapping[str, tuple[Block, ...]]
    right: Mapping[Block, frozenset[int]]

    def is_right(self, tensor: str, holder: int, stored: StoredSlice) -> bool:
        """Whether a part holds what the majority holds, where a slice lies."""
        blocks = self.differing.get(tensor, ())
        return all(holder in self.right[block] for block in blocks if block.overlaps(stored))


def compare_replicas(digests: Mapping[Block, Mapping[int, bytes]]) -> Replicas:
    """Compare what parts hold alike, by the digests of each part.

    Parts that hold the same blocks are a group. Its majority are more than half of its parts that agree on all of
    those blocks. Without a majority, the largest number that agree, or those of the lowest part, count as the others.
    """
    groups: dict[frozenset[int], list[Block]] = {}
    for block, by_part in digests.items():
        groups.setdefault(frozenset(by_part), []).append(block)
    outside: set[int] = set()
    differing: dict[str, list[Block]] = {}
    right: dict[Block, frozenset[int]] = {}
    for holders, blocks in groups.items():
        differ = [block for block in blocks if len(set(digests[block].values())) > 1]
        if not differ:
            continue
        usual = _find_largest(holders, differ, digests)
        outside |= holders - usual
        has_majority = 2 * len(usual) > len(holders)
        for block in differ:
            differing.setdefault(block.tensor, []).append(block)
            held = digests[block][min(usual)]
            right[block] = frozenset(p for p in holders if digests[block][p] == held) if has_majority else frozenset()
    return Replicas(frozenset(outside), {name: tuple(each) for name, each in differing.items()}, right)


def _find_largest(
    holders: Iterable[int], blocks: Sequence[Block], digests: Mapping[Block, Mapping[int, bytes]]
) -> frozenset[int]:
    """Return the most parts that agree on all blocks; of equally many those with the lowest part."""
    agreeing: dict[tuple[bytes, ...], list[int]] = {}
    for part in sorted(holders):
        agreeing.setdefault(tuple(digests[block][part] for block in blocks), []).append(part)
    largest = max(agreeing.values(), key=lambda parts: (len(parts), -parts[0]))
    return frozenset(largest)
