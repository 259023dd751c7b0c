"""What all workers of a generation decide together, at steps that all of them know.

A checkpoint needs every worker to save at the same step. By steps, that follows from the number; by time, one clock
must decide. So they meet at certain steps: rank 0 says whether to save and at which step to meet next, and each says
whether it is about to leave and whether it has data left.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

_WORD = struct.Struct("<BBBxI")
MAX_APART = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What one worker says at a meeting."""

    wants_save: bool = False
    is_leaving: bool = False
    is_out: bool = False
    apart: int = 1
    """After how many steps to meet again; rank 0's counts."""

    def to_bytes(self) -> bytes:
        """Return it as an exchange carries it."""
        return _WORD.pack(self.wants_save, self.is_leaving, self.is_out, self.apart)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what :meth:`to_bytes` wrote."""
        wants_save, is_leaving, is_out, apart = _WORD.unpack(data)
        return cls(wants_save=bool(wants_save), is_leaving=bool(is_leaving), is_out=bool(is_out), apart=apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from what all said; the same for everyone."""

    saves: bool
    is_over: bool
    apart: int


def agree(words: list[Vote]) -> Decision:
    """Return what all do after this meeting.

    Before one leaves, all save: so nothing that was done until now is lost. When one is out of data they meet after
    every step, so that the end comes as soon as the last one is out.
    """
    anyone_out = any(word.is_out for word in words)
    return Decision(
        saves=words[0].wants_save or any(word.is_leaving for word in words),
        is_over=all(word.is_out for word in words),
        apart=1 if anyone_out else words[0].apart,
    )


def steps_apart(step_s: float, *, aim_s: float) -> int:
    """Return after how many steps of this length about ``aim_s`` have passed."""
    return max(1, min(MAX_APART, int(aim_s / max(step_s, 1e-6))))
