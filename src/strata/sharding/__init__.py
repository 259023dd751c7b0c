"""Which worker gets which samples in which order, and where a job is in its data, as pure code on arrays.

No clock, disk, network or chance may be used here: every answer follows from its arguments alone.
"""

from strata.sharding.arrangement import Arrangement, DatasetParams
from strata.sharding.assignment import Assignment, assign, assign_some
from strata.sharding.consistent_hash import ConsistentHash
from strata.sharding.cursor import GlobalCursor, StickyCursor, cursor_from_json, span_positions, spans_of
from strata.sharding.manager import ShardAssignment, ShardManager
from strata.sharding.order import DataOrder, EpochOrder
from strata.sharding.permutation import permute, unpermute
from strata.sharding.ranges import RangeSet

__all__ = [
    "Arrangement",
    "Assignment",
    "ConsistentHash",
    "DataOrder",
    "DatasetParams",
    "EpochOrder",
    "GlobalCursor",
    "RangeSet",
    "ShardAssignment",
    "ShardManager",
    "StickyCursor",
    "assign",
    "assign_some",
    "cursor_from_json",
    "permute",
    "span_positions",
    "spans_of",
    "unpermute",
]
