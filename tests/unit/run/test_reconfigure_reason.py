"""What a worker knows of its team: why a generation is over, never by the reason of an older one, and who is there."""

from __future__ import annotations

from typing import Any, cast

import pytest

from strata.cluster.values import RankInfo
from strata.errors import MembershipError, Reconfigure
from strata.run.team.coordinated_team import CoordinatedTeam
from tests.testbed.process import free_ports


class Told:
    """A client that knows of a generation, and why the one before it ended."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.why_changed = "b joined" if generation == 2 else "b hung"


@pytest.mark.parametrize(("known", "reason"), [(2, "generation 2 is over: the answer"), (3, "over: b hung")])
def test_an_answer_that_comes_before_the_news_gives_its_own_reason(known: int, reason: str) -> None:
    team = CoordinatedTeam.__new__(CoordinatedTeam)
    team.client = cast(Any, Told(known))

    def refuse() -> None:
        raise MembershipError("the answer")

    with pytest.raises(Reconfigure, match=reason):
        team._guard(RankInfo(rank=0, world_size=2, generation=2), refuse)


def test_nothing_is_known_of_the_others_while_the_coordinator_is_away() -> None:
    (port,) = free_ports(1)
    team = CoordinatedTeam.__new__(CoordinatedTeam)
    team._url = f"http://127.0.0.1:{port}"
    assert team.look() is None
