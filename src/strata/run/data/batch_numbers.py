"""Which batch of a data order is which: in the global order batches have numbers that mean the same for any team."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata.checkpoint.commit.protocol import LEDGER
from strata.sharding import GlobalCursor, cursor_from_json

# Under this name a manifest's cursors say how each dataset is cut into batches. No dataset can have it.
BATCHES = "@batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """The batches of a dataset in the global order, counted from 1 on over all epochs."""

    total_samples: int
    batch_size: int
    drop_last: bool

    @property
    def per_epoch(self) -> int:
        """How many batches an epoch has."""
        batches, rest = divmod(self.total_samples, self.batch_size)
        return batches + (1 if rest and not self.drop_last else 0)

    def count(self, cursors: Mapping[str, Any], name: str) -> int | None:
        """Return how many batches of the dataset are behind a checkpoint; None if its position is between batches."""
        rows = [row for row in cursors.get(LEDGER, []) if row["dataset"]["dataset_id"] == name]
        if not rows and name in cursors:
            rows = [cursors[name]]
        found = [cursor_from_json(row) for row in rows]
        if not found:
            return 0
        # Epochs follow each other: those before the last one are over.
        last = max(found, key=lambda cursor: cursor.epoch)
        if not isinstance(last, GlobalCursor):
            return None
        behind = min(-(-last.position // self.batch_size), self.per_epoch)
        return last.epoch * self.per_epoch + behind

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps of it."""
        return {"total_samples": self.total_samples, "batch_size": self.batch_size, "drop_last": self.drop_last}


def read_numbers(cursors: Mapping[str, Any]) -> dict[str, BatchNumbers | None]:
    """Return the datasets of a checkpoint, with None for those in an order in which batches have no numbers."""
    found = cursors.get(BATCHES, {})
    return {name: None if row is None else BatchNumbers(**row) for name, row in found.items()}
