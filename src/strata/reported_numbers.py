"""Numbers that training scripts report: of any library in, plain Python numbers out. What is no number never raises."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from decimal import Decimal
from numbers import Rational

__all__ = ["MAX_NAME", "MAX_NUMBERS", "ReportedNumbers", "plain_number"]

log = logging.getLogger(__name__)

# What the coordinator accepts of one worker.
MAX_NUMBERS = 64
MAX_NAME = 64
# Dates and complex numbers of NumPy, whose item() is or looks like another number.
_NO_NUMBERS = "mMcSU"


def plain_number(value: object) -> bool | int | float | None:
    """Return the number that a value is, NaN and infinity included; None if it is none.

    NumPy's scalars count, and arrays and tensors of any library with one element; of text and dates nothing does.
    """
    if isinstance(value, bool | int | float):
        return value if type(value) in (bool, int, float) else _base(value)
    try:
        if not hasattr(value, "item"):
            return float(value) if isinstance(value, Decimal | Rational) else None
        if getattr(getattr(value, "dtype", None), "kind", "?") in _NO_NUMBERS:
            return None
        item = value.item()
        if isinstance(item, bool | int | float):
            return _base(item)
        # NumPy's longdouble and the small floats of ml_dtypes have no Python number of their own.
        return None if isinstance(item, complex | str | bytes) or item is None else float(item)
    except Exception:  # noqa: BLE001 - code of any library; whatever it raises, the value is no number
        return None


def _base(value: float) -> bool | int | float:
    kind: type[int | float] = int if isinstance(value, int) else float
    return value if isinstance(value, bool) else kind(value)


class ReportedNumbers:
    """Makes plain floats of what is reported; what cannot be one is left out, with one warning for each name."""

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._is_limit_told = False

    def clean(self, reported: Mapping[str, object]) -> dict[str, float]:
        """Return the numbers, NaN and infinity as they are."""
        found: dict[str, float] = {}
        for name, value in reported.items():
            number = value if type(value) is float else _as_float(value)
            if number is None:
                self._warn(name, f"it is {_describe(value)}; report a number, or a tensor with one element")
            else:
                found[name] = number
        return found

    def fit(self, numbers: Mapping[str, object], *, limit: int = MAX_NUMBERS) -> dict[str, float]:
        """Return those numbers that a worker may send to the coordinator."""
        found = self.clean(numbers)
        for name in [name for name in found if not is_name(name)]:
            self._warn(name, f"its name is not one of 1 to {MAX_NAME} printable characters")
            del found[name]
        if len(found) <= limit:
            return found
        if not self._is_limit_told:
            self._is_limit_told = True
            log.warning("%d metrics are reported, and the first %d are sent to the coordinator", len(found), limit)
        return dict(list(found.items())[:limit])

    def _warn(self, name: str, why: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            log.warning("the metric %.80r is left out: %s", name, why)


def is_name(name: str) -> bool:
    """Whether the coordinator accepts a number of this name."""
    return 0 < len(name) <= MAX_NAME and name.isprintable()


def _as_float(value: object) -> float | None:
    try:
        # Text that is a number has always counted as one.
        number = float(value) if isinstance(value, str) else plain_number(value)
        return None if number is None else float(number)
    except (ValueError, OverflowError):
        return None


def _describe(value: object) -> str:
    shape = getattr(value, "shape", None)
    of_shape = f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""
    return "an integer beyond all floats" if isinstance(value, int) else f"of type {type(value).__name__}{of_shape}"
