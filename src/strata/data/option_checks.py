"""What users may give for each option of a dataset: a wrong value is named at once, with what was expected."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any


class OptionTypeError(TypeError, ValueError):
    """An option has a value of the wrong type; on a command line, where all is text, that is just a wrong value."""


def check_whole(name: str, value: object, *, least: int, most: int | None = None, or_none: bool = False) -> int:
    """Return a whole number, also one of NumPy, or raise an error that names the option."""
    if value is None and or_none:
        return 0
    # True is a number to Python, but nobody means a batch of True samples.
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        none = " or None" if or_none else ""
        raise OptionTypeError(f"{name} is {value!r}, which is {_kind(value)}; use a whole number{none}")
    whole = operator.index(value)
    if whole < least:
        raise ValueError(f"{name} is {whole}; use {least} or more")
    if most is not None and whole > most:
        raise ValueError(f"{name} is {whole}; use at most {most}")
    return whole


def check_flag(name: str, value: object) -> None:
    """Raise an error unless the value is True or False: the text 'False' would count as true."""
    if not isinstance(value, bool):
        raise OptionTypeError(f"{name} is {value!r}, which is {_kind(value)}; use True or False")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise an error unless the value is one of these words."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is {value!r}; use one of {', '.join(known)}")


def check_callable(name: str, value: object) -> None:
    """Raise an error unless the value is None or can be called with a batch."""
    if value is not None and not callable(value):
        raise OptionTypeError(
            f"{name} is {value!r}, which is {_kind(value)}; use a function that takes a batch, or None"
        )


def check_names(name: str, value: object) -> None:
    """Raise an error unless the value is None or a sequence of words without repetition; one word alone is not."""
    if value is None:
        return
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionTypeError(f"{name} is {value!r}, which is {_kind(value)}; use a list of names, such as ['text']")
    for each in value:
        if not isinstance(each, str):
            raise OptionTypeError(f"{name} has {each!r}, which is {_kind(each)}; use a list of names")
    if not value:
        raise ValueError(f"{name} is empty; name at least one, or leave it out for all")


def check_weights(name: str, value: Any, *, count: int) -> tuple[float, ...]:
    """Return a weight for each of ``count`` datasets, or raise an error that names the one that is wrong."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionTypeError(
            f"{name} is {value!r}, which is {_kind(value)}; use a list of numbers, in the order of the datasets"
        )
    if len(value) != count:
        raise ValueError(f"{count} datasets and {len(value)} {name}; give each dataset its weight")
    for at, weight in enumerate(value):
        if isinstance(weight, bool) or not isinstance(weight, numbers.Real):
            raise OptionTypeError(f"{name}[{at}] is {weight!r}, which is {_kind(weight)}; use a number")
        if not 0 < float(weight) < math.inf:
            raise ValueError(f"{name}[{at}] is {weight}; use a number greater than 0")
    return tuple(map(float, value))


def _kind(value: object) -> str:
    name = "None" if value is None else type(value).__name__
    return name if name == "None" else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
