"""What a client concludes from what a coordinator says of itself."""

from __future__ import annotations

import pytest

from strata.client.description import leads
from strata.wire._generated import coordinator_pb2 as pb


@pytest.mark.parametrize(
    ("description", "does"),
    [
        (pb.Description(is_leader=True, term=3, leader="a:1"), True),
        (pb.Description(is_leader=False, term=3, leader="b:1"), False),
        # A standby that has just started knows neither leader nor term.
        (pb.Description(is_leader=False), False),
        # A version that had no replicas, or one that did not say so explicitly.
        (pb.Description(), True),
        (pb.Description(term=3), False),
    ],
)
def test_only_who_says_so_leads_and_who_knows_nothing_of_replicas(description: pb.Description, does: bool) -> None:
    assert leads(pb.Description.FromString(description.SerializeToString())) is does
