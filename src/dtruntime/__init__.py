"""The first import name of Strata: scripts written for ``dtruntime`` run as they are.

Only the names of that API are here; everything they do is in ``strata``.
"""

from strata.checkpoint import CheckpointManager
from strata.compat.dataset_registry import DatasetRegistry
from strata.compat.training_orchestrator import TrainingOrchestrator

__all__ = ["CheckpointManager", "DatasetRegistry", "TrainingOrchestrator"]
