"""From files to batches: readers per format, the index, the loader and the ledger.

Order and position come from the sharding package, bytes from the storage package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strata.data.dataset import Dataset, open_dataset
    from strata.data.loading.merging import merge_states

__all__ = ["Dataset", "merge_states", "open_dataset"]

_HOMES = {"Dataset": "dataset", "merge_states": "loading.merging", "open_dataset": "dataset"}


def __getattr__(name: str) -> Any:
    # On first use: a reader of one format needs nothing of the loader.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
