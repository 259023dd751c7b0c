"""All that makes batches of rows, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from strata.data.loading.function_names import name_function
from strata.data.loading.loader import LoaderOptions
from strata.data.loading.position import State
from strata.data.loading.shares import BatchCut, Share, count_sticky_batches
from strata.data.option_checks import check_choice, check_names
from strata.data.rows.column_types import Nulls
from strata.sharding.shard_layout import ShardLayout

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that makes a loader of rows: equal plans over equal rows deliver equal batches.

    ``files`` names what the numbers of samples mean, where they are rows of files; ``split`` says which files.
    """

    layout: ShardLayout
    options: LoaderOptions
    global_batch_size: int
    share: Share
    files: str = ""
    split: str | None = None
    columns: tuple[str, ...] | None = None
    on_error: OnError = "raise"
    nulls: Nulls = "mask"

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ("raise", "skip"))
        check_names("columns", self.columns)
        if self.global_batch_size < self.share.world_size:
            raise ValueError(
                f"global_batch_size is {self.global_batch_size} for {self.share.world_size} ranks; use one sample for "
                "each or more"
            )

    @property
    def cut(self) -> BatchCut:
        """How an epoch becomes this share's batches."""
        return BatchCut(global_batch_size=self.global_batch_size, share=self.share, drop_last=self.options.drop_last)

    def count_batches(self) -> int | None:
        """Return how many batches the share gets of an epoch from its beginning; None where only the loop can tell."""
        if self.layout.is_global:
            return self.cut.count(0, self.layout.total_samples)
        is_open = self.options.filter is not None or self.on_error == "skip"
        return None if is_open else count_sticky_batches(self.layout, self.cut)

    def agreement(self) -> dict[str, Any]:
        """Return all that decides which worker gets which sample, as values that JSON can hold.

        Workers that share the dataset must have the same. The transform is not among it, for it only says what a sample
        looks like, nor is ``on_error``: what one worker skips is counted as skipped, and another would fail.
        """
        decided: dict[str, Any] = {
            "split": self.split,
            "order": str(self.layout.data_order),
            "total_samples": self.layout.total_samples,
            "shard_size": self.layout.shard_size,
            "seed": self.layout.seed,
            "shuffle": self.layout.shuffle,
            "columns": None if self.columns is None else list(self.columns),
            "filter": name_function(self.options.filter),
            "drop_last": self.options.drop_last,
            **self.layout.describe_window(),
        }
        if self.layout.is_global:
            decided["global_batch_size"] = self.global_batch_size
        elif self.options.drop_last:
            # What is left at the end and dropped depends on it; else ranks may have batches of their own size.
            decided["batch_size"] = self.options.batch_size
        if self.options.filter is not None:
            # A filter sees 0 or NaN in place of what is missing.
            decided["nulls"] = self.nulls
        return decided

    def fingerprint(self) -> State:
        """Return what a saved position depends on, as values that JSON can hold."""
        return {
            "total_samples": self.layout.total_samples,
            "shard_size": self.layout.shard_size,
            "seed": self.layout.seed,
            "shuffle": self.layout.shuffle,
            "files": self.files,
            **self.layout.describe_window(),
        }

    def advise(self, saved: Mapping[str, Any]) -> str:
        """Return what to do about a saved position with another fingerprint, or "" if nothing special is known."""
        return ""
