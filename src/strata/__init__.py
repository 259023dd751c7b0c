"""Strata: the runtime under a distributed training run.

This module holds the public names and nothing else. They are resolved on first use, so that
``import strata`` costs a few milliseconds and loads no library that a program does not touch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata.checkpoint import CheckpointManager as CheckpointManager
    from strata.compat import DatasetRegistry as DatasetRegistry
    from strata.compat import TrainingOrchestrator as TrainingOrchestrator
    from strata.errors import Reconfigure as Reconfigure
    from strata.errors import StrataError as StrataError
    from strata.run.joining import join as join
    from strata.sharding import ConsistentHash as ConsistentHash
    from strata.sharding import ShardAssignment as ShardAssignment
    from strata.sharding import ShardManager as ShardManager
    from strata.storage import AzureStorage as AzureStorage
    from strata.storage import GCSStorage as GCSStorage
    from strata.storage import LocalStorage as LocalStorage
    from strata.storage import MemoryStorage as MemoryStorage
    from strata.storage import S3Storage as S3Storage
    from strata.storage import open_storage as open_storage
    from strata.storage import storage_from_env as storage_from_env

__version__ = "0.1.0"

_HOMES = {
    "AzureStorage": "strata.storage",
    "CheckpointManager": "strata.checkpoint",
    "ConsistentHash": "strata.sharding",
    "DatasetRegistry": "strata.compat",
    "GCSStorage": "strata.storage",
    "LocalStorage": "strata.storage",
    "MemoryStorage": "strata.storage",
    "Reconfigure": "strata.errors",
    "S3Storage": "strata.storage",
    "ShardAssignment": "strata.sharding",
    "ShardManager": "strata.sharding",
    "StrataError": "strata.errors",
    "TrainingOrchestrator": "strata.compat",
    "join": "strata.run.joining",
    "open_storage": "strata.storage",
    "storage_from_env": "strata.storage",
}

__all__ = [
    "AzureStorage",
    "CheckpointManager",
    "ConsistentHash",
    "DatasetRegistry",
    "GCSStorage",
    "LocalStorage",
    "MemoryStorage",
    "Reconfigure",
    "S3Storage",
    "ShardAssignment",
    "ShardManager",
    "StrataError",
    "TrainingOrchestrator",
    "__version__",
    "join",
    "open_storage",
    "storage_from_env",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'strata' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
