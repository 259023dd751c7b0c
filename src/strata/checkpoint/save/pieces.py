"""Pieces: what of a state this worker writes into its part, and what it holds that others hold too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from strata.checkpoint.format.blocks import Share, choose_backups, choose_writers
from strata.checkpoint.format.digest import PARALLEL_BYTES, THREADS, digest_bytes
from strata.checkpoint.format.sharded import Sharded, cut_rows, replicate, widen
from strata.checkpoint.format.tensors import Tensor, bring_to_host, is_on_host
from strata.checkpoint.format.tree import Leaf
from strata.cluster.values import MAX_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from strata.checkpoint.format.manifest import CopyRecord
    from strata.checkpoint.format.tree import FlatState


@dataclass(frozen=True, slots=True)
class Copy:
    """A block of a tensor that other workers may hold as well, so that their values can be compared.

    ``entry`` is its name in the part file if all of it is written there. ``position`` is this worker's number among the
    ``holders`` of the block, and ``group`` names their ranks; neither is known for a tensor that nobody says to be
    sharded.
    """

    name: str
    start: tuple[int, ...]
    tensor: Tensor
    entry: str | None
    position: int = 0
    holders: int = 0
    group: tuple[int, ...] = ()

    def is_due(self, step: int) -> bool:
        """Whether this holder is one of the two that compare the block at this step: another pair each time."""
        first = int.from_bytes(digest_bytes(f"{self.name}:{step}".encode())[:8], "little") % max(1, self.holders)
        return self.position in (first, (first + 1) % max(1, self.holders))


@dataclass(frozen=True, slots=True)
class Pieces:
    """A worker's part before it has bytes: ``entries`` are the tensors of the file, by their names there.

    ``whole`` names the tensor that an entry is a piece of, and ``tensors`` gives all tensors with type and shape, also
    those of which other workers write all.
    """

    entries: dict[str, Leaf] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    copies: tuple[Copy, ...] = ()
    # What others write and this worker keeps in memory until the commit, and the tensor that each is a piece of.
    backups: dict[str, Leaf] = field(default_factory=dict)
    backup_of: dict[str, str] = field(default_factory=dict)

    def without_values(self) -> Pieces:
        """The same without the state's tensors, so that nothing here keeps them alive."""
        entries = {
            name: Leaf(_without_values(leaf.tensor), leaf.shape, leaf.start) for name, leaf in self.entries.items()
        }
        copies = tuple(replace(copy, tensor=_without_values(copy.tensor)) for copy in self.copies)
        return Pieces(entries, self.whole, self.tensors, copies)


def _without_values(tensor: Tensor) -> Tensor:
    return Tensor(tensor.kind, tensor.dtype, tensor.shape, None)


def digest_live(
    copies: Sequence[Copy], step: int, is_wanted: Callable[[Tensor], bool] = lambda tensor: True
) -> dict[int, bytes]:
    """The digests of blocks that others write, by their number, from the state itself: it must not change meanwhile.

    On an accelerator two holders of a block do so, others each time: to bring all of it to the host would take longer
    than the save.
    """
    due = [
        (number, copy)
        for number, copy in enumerate(copies)
        if copy.entry is None and is_wanted(copy.tensor) and (is_on_host(copy.tensor) or copy.is_due(step))
    ]

    def digest(each: tuple[int, Copy]) -> tuple[int, bytes]:
        return each[0], digest_bytes(bring_to_host(each[1].tensor).data)

    if sum(copy.tensor.nbytes for _, copy in due) < PARALLEL_BYTES:
        return dict(map(digest, due))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="strata-digest") as threads:
        return dict(threads.map(digest, due))


def spread_replicas(flat: FlatState, patterns: Sequence[str], *, part: int, parts: int) -> FlatState:
    """The same state, with the tensors that the patterns name marked as held by all parts alike.

    A slice stays as it is, and so does a sharded tensor whose mesh has all parts, or whose siblings are not known.
    """
    if parts == 1 or not patterns:
        return flat

    def is_named(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    spread = replace(flat, leaves={}, sharded=dict(flat.sharded))
    for name, leaf in flat.leaves.items():
        if is_named(name) and leaf.shape == leaf.tensor.shape:
            spread.sharded[name] = replicate(leaf.tensor, part, parts)
        else:
            spread.leaves[name] = leaf
    for name, sharded in flat.sharded.items():
        if is_named(name):
            spread.sharded[name] = widen(sharded, part, parts)
    return spread


def cut_pieces(flat: FlatState, *, is_alone: bool = False, keeps_backups: bool = False) -> Pieces:
    """Decide what this worker writes of a state, from the layout of all its tensors; alone, it holds no copies."""
    pieces = Pieces()
    copies: list[Copy] = []
    names = {*flat.leaves, *flat.sharded}
    for name, leaf in flat.leaves.items():
        pieces.entries[name], pieces.whole[name] = leaf, name
        pieces.tensors[name] = leaf.tensor.dtype, leaf.shape
        if not is_alone:
            copies.append(Copy(name, leaf.start, leaf.tensor, name))
    # By name: the keys of a dict may be in another order on another worker.
    held = {name: sharded.held for name, sharded in sorted(flat.sharded.items()) if sharded.held is not None}
    writers = dict(zip(held, choose_writers(tuple(held.values())), strict=True))
    for name, sharded in flat.sharded.items():
        pieces.tensors[name] = sharded.dtype, sharded.shape
        for entry, leaf in _cut(name, sharded, writers.get(name), names):
            pieces.entries[entry], pieces.whole[entry] = leaf, name
        if sharded.held is not None and sharded.is_compared and not is_alone:
            copies += _find_copies(name, sharded, pieces)
            if keeps_backups:
                for leaf in _find_backups(sharded, writers[name]):
                    entry = _name_piece(name, leaf.start, pieces.backups)
                    pieces.backups[entry], pieces.backup_of[entry] = leaf, name
    return replace(pieces, copies=tuple(copies))


def _cut(
    name: str, sharded: Sharded, writers: dict[tuple[int, ...], tuple[Share, ...]] | None, names: Container[str]
) -> Iterator[tuple[str, Leaf]]:
    entry: str | None = name
    for local in sharded.locals:
        rows = local.block.shape[0] if local.block.shape else 1
        shares = (Share(0, rows, sharded.me),) if writers is None else writers[local.block.start]
        for share in shares:
            if share.writer == sharded.me:
                tensor, start = cut_rows(sharded.kind, sharded.dtype, local, share.row, share.rows)
                yield entry or _name_piece(name, start, names), Leaf(tensor, sharded.shape, start)
                entry = None


def _name_piece(name: str, start: tuple[int, ...], taken: Container[str]) -> str:
    """Name one more piece of a tensor in the part file; the manifest alone says what it is."""
    piece = f"{name}@{','.join(map(str, start))}"
    while piece in taken:
        piece += "@"
    return piece


def _find_copies(name: str, sharded: Sharded, pieces: Pieces) -> Iterator[Copy]:
    written = {
        (leaf.start, leaf.tensor.shape): entry for entry, leaf in pieces.entries.items() if pieces.whole[entry] == name
    }
    for local in sharded.locals:
        block = local.block
        if len(block.holders) > 1:
            yield Copy(
                name,
                block.start,
                Tensor(sharded.kind, sharded.dtype, block.shape, local.source),
                written.get((block.start, block.shape)),
                block.holders.index(sharded.me),
                len(block.holders),
                tuple(sharded.held.mesh[holder] for holder in block.holders) if sharded.held is not None else (),
            )


def _find_backups(sharded: Sharded, writers: dict[tuple[int, ...], tuple[Share, ...]]) -> Iterator[Leaf]:
    """Find what this worker keeps of the blocks that others write; nothing on an accelerator, where few compare."""
    for local in sharded.locals:
        block = local.block
        for share in writers[block.start]:
            if share.writer != sharded.me and sharded.me in choose_backups(block.holders, share.writer):
                tensor, start = cut_rows(sharded.kind, sharded.dtype, local, share.row, share.rows)
                if is_on_host(tensor):
                    yield Leaf(tensor, sharded.shape, start)


def describe_replicas(copies: Sequence[Copy], records: Sequence[CopyRecord]) -> str:
    """Return the digests of what each group of ranks holds alike, for the report of a part.

    A group is left out if it could not be repaired: one of two, or one that does not compare all its blocks.
    """
    digests = {(record.name, record.start, record.shape): record.digest for record in records}
    groups: dict[tuple[int, ...], list[Copy]] = {}
    for copy in copies:
        groups.setdefault(copy.group, []).append(copy)
    found: list[str] = []
    for group, held in groups.items():
        blocks = sorted((copy.name, copy.start, copy.tensor.shape) for copy in held)
        if len(group) > 2 and all(block in digests for block in blocks):
            text = repr([(*block, digests[block]) for block in blocks])
            found.append(f"{_short(repr(group))}:{_short(text)}")
    while len(text := ",".join(found)) > MAX_REPLICAS:
        found.pop()
    return text


def _short(text: str) -> str:
    return digest_bytes(text.encode()).hex()[:16]
