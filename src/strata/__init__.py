"""Strata: the runtime under a distributed training run.

This module holds the public names and nothing else. They are resolved on first use, so that
``import strata`` costs a few milliseconds and loads no library that a program does not touch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata.errors import StrataError as StrataError
    from strata.sharding import ConsistentHash as ConsistentHash
    from strata.sharding import ShardAssignment as ShardAssignment
    from strata.sharding import ShardManager as ShardManager

__version__ = "0.1.0"

_HOMES = {
    "ConsistentHash": "strata.sharding",
    "ShardAssignment": "strata.sharding",
    "ShardManager": "strata.sharding",
    "StrataError": "strata.errors",
}

__all__ = ["ConsistentHash", "ShardAssignment", "ShardManager", "StrataError", "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'strata' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
