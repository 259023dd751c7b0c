"""Rewinds: how an operator has a job go on from an older checkpoint, and pass over batches of its data. Pure.

The records of a job are numbered from 1 on. A manifest holds the records that the process which saved it knew, so a
checkpoint of a process that did not know of a rewind is told from those of the line that the job continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strata.errors import DamagedRecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Batches first to last of a data order, both included, counted from 1 on.
BatchRange = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """The job went back from ``from_step`` to the checkpoint of ``to_step``, and passes over ``skips`` of a dataset.

    ``set_aside`` are the newer checkpoints that it left behind. Until ``is_finished`` they may still be in their place.
    """

    number: int
    from_step: int
    to_step: int
    at_s: float
    dataset: str = ""
    skips: tuple[BatchRange, ...] = ()
    set_aside: tuple[int, ...] = ()
    is_finished: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as values that JSON can hold."""
        return {
            "number": self.number,
            "from_step": self.from_step,
            "to_step": self.to_step,
            "at_s": self.at_s,
            "dataset": self.dataset,
            "skips": [list(each) for each in self.skips],
            "set_aside": list(self.set_aside),
            "finished": self.is_finished,
        }

    @classmethod
    def from_json(cls, record: object) -> Rewind:
        """Return what :meth:`to_json` wrote, or raise DamagedRecordError."""
        match record:
            case {
                "number": int(number),
                "from_step": int(from_step),
                "to_step": int(to_step),
                "at_s": int() | float() as at_s,
                "dataset": str(dataset),
                "skips": list(skips),
                "set_aside": list(set_aside),
                "finished": bool(is_finished),
            } if all(_is_range(each) for each in skips) and all(type(step) is int for step in set_aside):
                return cls(
                    number=number,
                    from_step=from_step,
                    to_step=to_step,
                    at_s=float(at_s),
                    dataset=dataset,
                    skips=tuple((first, last) for first, last in skips),
                    set_aside=tuple(set_aside),
                    is_finished=is_finished,
                )
        raise DamagedRecordError("rewind", f"{str(record)[:80]!r} has not the fields of a rewind")

    def __str__(self) -> str:
        skipped = f", skipped batches {show_batches(self.skips)} of {self.dataset}" if self.skips else ""
        return f"rewound from step {self.from_step} to step {self.to_step}{skipped}"


def show_batches(ranges: Sequence[BatchRange]) -> str:
    """Show ranges of batches as the command line takes them."""
    return ", ".join(str(first) if first == last else f"{first}..{last}" for first, last in ranges)


def find_skips(rewinds: Sequence[Rewind], dataset: str) -> tuple[BatchRange, ...]:
    """Return which batches of a dataset the job passes over.

    A rewind says anew what is passed over after its step: what an earlier one said of that holds no longer.
    """
    found: list[BatchRange] = []
    for rewind in rewinds:
        found = [each for each in found if each[1] <= rewind.to_step]
        found += rewind.skips if rewind.dataset == dataset else ()
    return tuple(sorted(found))


def is_left_behind(step: int, known: int, rewinds: Sequence[Rewind]) -> bool:
    """Whether a checkpoint, saved when ``known`` rewinds were known, is of a line that the job does not continue."""
    return any(step > rewind.to_step for rewind in rewinds if rewind.number > known)


def _is_range(value: object) -> bool:
    match value:
        case [int(first), int(last)]:
            return 1 <= first <= last
    return False
