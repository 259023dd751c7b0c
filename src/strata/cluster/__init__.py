"""The coordinator's state machine: jobs, membership, barriers, commits and datasets, as pure code.

No clock, disk, network or chance may be used here: time comes in as an
argument, and what must happen next comes out as a value.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strata.cluster.cluster import Cluster
    from strata.cluster.limits import Limits

__all__ = ["Cluster", "Limits"]

_HOMES = {"Cluster": "cluster", "Limits": "limits"}


def __getattr__(name: str) -> Any:
    # On first use: a worker's checkpoints need the values of this package and nothing of the state machine.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
