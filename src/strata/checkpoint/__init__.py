"""Checkpoints from state to storage and back: layout, manifest, staging, writer, reader, delta, retention.

The commit point is the manifest in storage, written once; a coordinator may drive it but is never the truth.
"""

from strata.checkpoint.handle import CheckpointInfo, SaveHandle
from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.restore import Restored
from strata.checkpoint.retention import Best, Verdict
from strata.checkpoint.saver import Counters
from strata.checkpoint.tensors import Slice

__all__ = [
    "Best",
    "CheckpointInfo",
    "CheckpointManager",
    "Counters",
    "Restored",
    "SaveHandle",
    "Slice",
    "Verdict",
]
