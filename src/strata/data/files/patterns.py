"""Patterns of paths: ``*``, ``?`` and ``[...]`` within a name, ``**`` over directories, braces that name many paths."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

_WILD = frozenset("*?[")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
# More than this is a slip of the keyboard.
MAX_EXPANDED = 1_000_000


def expand_braces(text: str) -> list[str]:
    """Return the paths that ``{000..999}`` and ``{a,b}`` stand for, in their order; a path without braces is itself."""
    found = _BRACES.search(text)
    if found is None:
        return [text]
    inner = _RANGE.fullmatch(found[1])
    if inner is not None:
        first, last = int(inner[1]), int(inner[2])
        if abs(last - first) >= MAX_EXPANDED:
            raise ValueError(f"{found[0]} stands for {abs(last - first) + 1} paths; use at most {MAX_EXPANDED}")
        # As in a shell: a leading zero says that all are as wide as the widest.
        is_padded = any(len(each) > 1 and each.startswith("0") for each in inner.groups())
        width = max(map(len, inner.groups())) if is_padded else 0
        step = 1 if last >= first else -1
        values = [f"{number:0{width}}" for number in range(first, last + step, step)]
    elif "," in found[1]:
        values = found[1].split(",")
    else:
        # As in a shell, what is neither a range nor a choice is a part of the name.
        head = text[: found.end()]
        return [head + rest for rest in expand_braces(text[found.end() :])]
    rests = expand_braces(text[found.end() :])
    if len(values) * len(rests) > MAX_EXPANDED:
        raise ValueError(f"{text!r} stands for more than {MAX_EXPANDED} paths; name fewer")
    return [f"{text[: found.start()]}{value}{rest}" for value in values for rest in rests]


def has_wildcard(text: str) -> bool:
    """Whether the path is a pattern."""
    return bool(_WILD & set(text))


def split_pattern(path: str) -> tuple[str, str]:
    """Split before the first segment with a wildcard."""
    segments = path.split("/")
    wild = next((number for number, segment in enumerate(segments) if has_wildcard(segment)), len(segments))
    return "/".join(segments[:wild]), "/".join(segments[wild:])


def is_selected(path: str, selection: str) -> bool:
    """Whether a path is the one that is selected, or fits the pattern; an empty selection is all of them."""
    return not selection or path == selection or _compiled(selection).fullmatch(path) is not None


@lru_cache(maxsize=64)
def _compiled(selection: str) -> re.Pattern[str]:
    parts = []
    segments = selection.split("/")
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if segment == "**":
            parts.append(".*" if is_last else "(?:[^/]+/)*")
            continue
        # The translation of a name lets a star cross a slash; of segments, none may.
        one = translate(segment).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z")
        parts.append(one.replace("(?>.*?", "(?>[^/]*?").replace(".*", "[^/]*") + ("" if is_last else "/"))
    return re.compile("".join(parts), re.DOTALL)
