"""Which worker gets which samples in which order, and the data position of a job, as pure code on arrays.

No clock, disk, network or chance may be used here: every answer follows from its arguments alone.
"""

from strata.sharding.assignment import Assignment, assign, assign_some
from strata.sharding.cursor import GlobalCursor, StickyCursor, cursor_from_json, span_positions, spans_of
from strata.sharding.order import DataOrder, EpochOrder
from strata.sharding.permutation import permute, unpermute
from strata.sharding.ranges import RangeSet
from strata.sharding.shard_layout import DatasetParams, ShardAssignment, ShardLayout

__all__ = [
    "Assignment",
    "DataOrder",
    "DatasetParams",
    "EpochOrder",
    "GlobalCursor",
    "RangeSet",
    "ShardAssignment",
    "ShardLayout",
    "StickyCursor",
    "assign",
    "assign_some",
    "cursor_from_json",
    "permute",
    "span_positions",
    "spans_of",
    "unpermute",
]
