"""Small parts of the loop: lazy saves, the span of a recovery, and who is missing in a commit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata.cluster.values import RankInfo
from strata.errors import StateChangedError
from strata.run.loop.ending import name_committers
from strata.run.loop.lazy_saves import LazySaves
from strata.run.loop.recovery import Recovery
from strata.run.team.protocol import JobView, Team, WorkerView
from strata.tracing.trace_names import Span, TraceName
from strata.tracing.traces import NoTraces


def test_saves_are_lazy_until_someone_else_changes_the_state(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched: list[tuple[str, ...]] = []
    monkeypatch.setattr("strata.run.loop.lazy_saves.find_optimizers", lambda _: ["optimizer"])
    saves = LazySaves(cast(Any, SimpleNamespace(watch=lambda *optimizers: watched.append(optimizers))))
    changed = StateChangedError(7, "model/w")
    assert saves.allow({}, None)
    assert saves.allow({}, cast(Any, SimpleNamespace(error=lambda: None)))
    assert not saves.allow({}, cast(Any, SimpleNamespace(error=lambda: changed)))
    assert not saves.allow({}, cast(Any, SimpleNamespace(error=lambda: None)))
    assert watched == [("optimizer",), ("optimizer",), (), ()]
    assert caplog.messages == [f"from now on, saves are staged before they return: {changed}"]


class Recorded(NoTraces):
    """Traces that keep every span."""

    is_on = True

    def __init__(self) -> None:
        self.spans: list[tuple[Span, bool]] = []

    def record(self, trace: TraceName, span: Span, *, leads: bool = False) -> None:
        self.spans.append((span, leads))


RANK_INFO = RankInfo(rank=0, world_size=2, generation=3)


def test_a_recovery_that_fails_is_a_span_that_ends_with_the_error() -> None:
    traces = Recorded()
    with pytest.raises(ValueError, match="no luck"), Recovery(traces).restoring(RANK_INFO):
        raise ValueError("no luck")
    ((span, leads),) = traces.spans
    assert (span.name, span.error, leads) == ("recover", "no luck", True)
    assert [(phase.name, phase.error) for phase in span.children] == [("gather", None), ("restore", "no luck")]
    assert "strata.restored_step" not in span.attributes


def test_a_recovery_that_succeeds_says_from_which_step_it_goes_on() -> None:
    traces = Recorded()
    recovery = Recovery(traces)
    with recovery.restoring(RANK_INFO):
        pass
    assert recovery.end(7) == 7
    ((span, _),) = traces.spans
    assert span.error is None
    assert [phase.name for phase in span.children] == ["gather", "restore", "data"]
    assert span.attributes == {"strata.rank": 0, "strata.world_size": 2, "strata.restored_step": 7}


def team_that_sees(view: JobView | None) -> Team:
    return cast(Team, SimpleNamespace(look=lambda: view))


def test_the_workers_whose_parts_are_missing_are_named_as_far_as_they_are_known() -> None:
    worker = WorkerView(worker_id="w1", rank=1, state="training", step=6, silent_s=2.0, resources={})
    view = JobView(generation=1, workers=(worker,), waits_for=0, barriers={}, commits={7: ("w1", "w2")})
    assert name_committers(team_that_sees(view), 7) == "w1 (rank 1, training, step 6, silent for 2 s), w2"
    assert name_committers(team_that_sees(view), 8) == ""
    assert name_committers(team_that_sees(None), 7) == ""
