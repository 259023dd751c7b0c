"""The splits of a dataset: a place with training and test files holds several datasets, of which one is read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from strata.data.files.listed import ListedSource
from strata.data.formats.registry import CODECS, FORMATS
from strata.errors import DatasetNotFoundError, SeveralSplitsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from strata.data.files.cache import Cache
    from strata.data.files.random_access import ByteFile
    from strata.data.files.source import FileInfo, Source

# What splits are usually called. Two of these words in the same place of names show that the place names splits.
WORDS = frozenset(["train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation"])
# As a choice: files of all splits, as one dataset.
ALL = "all"
# What the ``datasets`` library writes beside the folders of the splits of a saved DatasetDict.
_SAVED_DICT = "dataset_dict.json"
_ENDINGS = tuple({ending for entry in FORMATS.values() for ending in entry.endings} | set(CODECS))
_WORD = re.compile(r"[^\W\d_]+")

# A word's place in a path: the segment and the word in it, each counted from its beginning or (negative) from its end.
_Place = tuple[int, int]


class SplitSource:
    """The files of another source that are of one split."""

    def __init__(self, source: Source, split: str) -> None:
        self.url = source.url
        # It names the index, and each split has its own.
        self.selection = source.selection if split == ALL else f"{source.selection}\0split={split}"
        self.name_of = source.name_of
        self._source = source
        self._split = split

    def __reduce__(self) -> tuple[type[SplitSource], tuple[Source, str]]:
        return SplitSource, (self._source, self._split)

    def list(self) -> Sequence[FileInfo]:
        """Return the files of the split; one that is not there is an error that names those that are."""
        files = self._source.list()
        if self._split == ALL:
            return files
        paths = [info.path for info in files]
        marked = find_saved_dict(self._source, paths)
        found = marked or find_splits(paths)
        wanted = self._split.split("+")
        chosen: set[str] = set()
        for word in wanted:
            mine = found.get(word) or (find_word(paths, word) if not found else [])
            if not mine:
                hint = f"there are {', '.join(found)}" if found else "leave out split to read all of its files"
                raise DatasetNotFoundError(self.url, f"it has no split {word!r}", hint=hint)
            chosen.update(mine)
        return [info for info in files if info.path in chosen]

    def open(self, info: FileInfo, cache: Cache | None) -> ByteFile:
        """Open a file where it lies."""
        return self._source.open(info, cache)

    def needs_cache(self, info: FileInfo) -> bool:
        """Whether the file's place gives no random access."""
        return self._source.needs_cache(info)

    def read_beside(self, name: str) -> bytes | None:
        """Return a small file that lies beside the data."""
        return self._source.read_beside(name)

    def write_beside(self, name: str, data: bytes) -> bool:
        """Put a small file beside the data."""
        return self._source.write_beside(name, data)


def select_split(source: Source, split: str | None) -> Source:
    """Return the source with the files of this split alone; with None, as it is."""
    if split is None:
        return source
    if not split:
        raise ValueError(f"split is {split!r}; name a split, such as 'train', or {ALL!r} for all files")
    return SplitSource(source, split)


def check_one_split(source: Source, listed: Iterable[FileInfo], files: Sequence[FileInfo]) -> None:
    """Raise SeveralSplitsError if the ``files`` are of several splits and nothing says which of them is meant.

    Who lists addresses means all of them, so each address is checked by itself. ``listed`` has what lies beside the
    files, too.
    """
    if isinstance(source, SplitSource):
        return
    groups: dict[str, list[str]] = {}
    for info in files:
        address = info.path.partition("/")[0] if isinstance(source, ListedSource) else ""
        groups.setdefault(address, []).append(info.path)
    beside = [info.path for info in listed if info.path.rpartition("/")[2] == _SAVED_DICT]
    for paths in groups.values():
        splits = find_saved_dict(source, [*paths, *beside]) or find_splits(paths)
        if len(splits) > 1:
            raise SeveralSplitsError(source.url, list(splits))


def find_splits(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the paths by split, if at least two usual words for splits stand in the same place of their names.

    Any other word in that place is a split, too, such as ``unsupervised`` beside ``train`` and ``test``.
    """
    by_place: dict[_Place, dict[str, list[str]]] = {}
    for path in paths:
        for place, word in _words_of(path):
            by_place.setdefault(place, {}).setdefault(word, []).append(path)
    several = [words for words in by_place.values() if len(WORDS & words.keys()) > 1]
    if not several:
        return {}
    # The place in which most files have such a word; for the others it may stand there by chance.
    best = max(several, key=lambda words: sum(len(words[word]) for word in WORDS & words.keys()))
    return dict(sorted(best.items()))


def find_word(paths: Sequence[str], word: str) -> list[str]:
    """Return the paths that have the word in their names."""
    return [path for path in paths if any(found == word for _, found in _words_of(path))]


def find_saved_dict(source: Source, paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the paths of a saved DatasetDict by split, which is the name of a folder; empty if it is none."""
    arrows = [path for path in paths if path.endswith(".arrow")]
    if not any("/" in path for path in arrows):
        return {}
    homes = {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] == _SAVED_DICT}
    # A pattern does not list what lies beside the files.
    if not homes and source.selection and source.read_beside(_SAVED_DICT) is not None:
        homes = {""}
    splits: dict[str, list[str]] = {}
    for home in homes:
        start = f"{home}/" if home else ""
        for path in arrows:
            folder, slash, _ = path.removeprefix(start).partition("/")
            if path.startswith(start) and slash:
                splits.setdefault(folder, []).append(path)
    return dict(sorted(splits.items()))


def _words_of(path: str) -> Iterator[tuple[_Place, str]]:
    """Yield each word of a path with its places."""
    segments = path.split("/")
    for number, segment in enumerate(segments):
        name = segment
        if number == len(segments) - 1:
            while ending := next((each for each in _ENDINGS if name.lower().endswith(each)), ""):
                name = name[: -len(ending)]
        elif "=" in name:
            # A column of Hive's: environments may be called test and dev, and the column tells them apart.
            key, _, value = name.partition("=")
            name = value if key.lower() == "split" else ""
        words = _WORD.findall(name.lower())
        for at, word in enumerate(words):
            for segment_place in (number, number - len(segments)):
                yield (segment_place, at), word
                yield (segment_place, at - len(words)), word
