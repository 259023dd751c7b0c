"""Where a worker stands among the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place in one generation of its job; over with that generation."""

    rank: int
    world_size: int
    generation: int
