"""Strata: the runtime under a distributed training run.

This module holds the public names and nothing else. They are resolved on first use, so that
``import strata`` costs a few milliseconds and loads no library that a program does not touch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata.checkpoint import CheckpointManager as CheckpointManager
    from strata.checkpoint import SaveHandle as SaveHandle
    from strata.checkpoint import Slice as Slice
    from strata.compat.consistent_hash import ConsistentHash as ConsistentHash
    from strata.compat.dataset_registry import DatasetRegistry as DatasetRegistry
    from strata.compat.shard_manager import ShardManager as ShardManager
    from strata.compat.training_orchestrator import TrainingOrchestrator as TrainingOrchestrator
    from strata.data import open_dataset as open_dataset
    from strata.data.mixture import Mixture as Mixture
    from strata.errors import Reconfigure as Reconfigure
    from strata.errors import StrataError as StrataError
    from strata.run.data.run_dataset import RunDataset as RunDataset
    from strata.run.exits import Stopped as Stopped
    from strata.run.join import join as join
    from strata.run.loop.cadence import Cadence as Cadence
    from strata.run.loop.run import Run as Run
    from strata.run.loop.steps import Step as Step
    from strata.sharding import ShardAssignment as ShardAssignment
    from strata.storage import AzureStorage as AzureStorage
    from strata.storage import GCSStorage as GCSStorage
    from strata.storage import LocalStorage as LocalStorage
    from strata.storage import MemoryStorage as MemoryStorage
    from strata.storage import S3Storage as S3Storage
    from strata.storage import open_storage as open_storage
    from strata.storage import storage_from_env as storage_from_env

__version__ = "0.2.0"

_HOMES = {
    "AzureStorage": "strata.storage",
    "Cadence": "strata.run.loop.cadence",
    "CheckpointManager": "strata.checkpoint",
    "ConsistentHash": "strata.compat.consistent_hash",
    "DatasetRegistry": "strata.compat.dataset_registry",
    "GCSStorage": "strata.storage",
    "LocalStorage": "strata.storage",
    "MemoryStorage": "strata.storage",
    "Mixture": "strata.data.mixture",
    "Reconfigure": "strata.errors",
    "Run": "strata.run.loop.run",
    "RunDataset": "strata.run.data.run_dataset",
    "S3Storage": "strata.storage",
    "SaveHandle": "strata.checkpoint",
    "ShardAssignment": "strata.sharding",
    "ShardManager": "strata.compat.shard_manager",
    "Slice": "strata.checkpoint",
    "Step": "strata.run.loop.steps",
    "Stopped": "strata.run.exits",
    "StrataError": "strata.errors",
    "TrainingOrchestrator": "strata.compat.training_orchestrator",
    "join": "strata.run.join",
    "open_dataset": "strata.data",
    "open_storage": "strata.storage",
    "storage_from_env": "strata.storage",
}

__all__ = [
    "AzureStorage",
    "Cadence",
    "CheckpointManager",
    "ConsistentHash",
    "DatasetRegistry",
    "GCSStorage",
    "LocalStorage",
    "MemoryStorage",
    "Mixture",
    "Reconfigure",
    "Run",
    "RunDataset",
    "S3Storage",
    "SaveHandle",
    "ShardAssignment",
    "ShardManager",
    "Slice",
    "Step",
    "Stopped",
    "StrataError",
    "TrainingOrchestrator",
    "__version__",
    "join",
    "open_dataset",
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
