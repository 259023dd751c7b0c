"""The coordinator's state machine: jobs, membership, barriers, commits and datasets, as pure code.

No clock, disk, network or chance may be used here: time comes in as an
argument, and what must happen next comes out as a value.
"""

from strata.cluster.cluster import Cluster
from strata.cluster.limits import Limits

__all__ = ["Cluster", "Limits"]
