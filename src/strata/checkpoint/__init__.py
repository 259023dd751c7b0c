"""Checkpoints from state to storage and back: layout, manifest, staging, writer, reader, delta, retention.

The commit point is the manifest in storage, written once; a coordinator may drive it but is never the truth.
"""

from strata.checkpoint.format.tensors import Slice
from strata.checkpoint.keep.retention import Best, RetentionPolicy, Verdict
from strata.checkpoint.load.restore import Restored
from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.save.handle import CheckpointInfo, SaveHandle
from strata.checkpoint.save.save_policy import SavePolicy
from strata.checkpoint.save.saver import Counters

__all__ = [
    "Best",
    "CheckpointInfo",
    "CheckpointManager",
    "Counters",
    "Restored",
    "RetentionPolicy",
    "SaveHandle",
    "SavePolicy",
    "Slice",
    "Verdict",
]
