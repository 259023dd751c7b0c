"""Replicas that differ are repaired before the manifest is written, and no worker that dies holds the commit up."""

from __future__ import annotations

import pytest

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.values import PartReport
from strata.errors import CommitRefusedError, StaleIncarnationError
from tests.unit.cluster.commit_steps import confirm
from tests.unit.cluster.conftest import LIMITS, Bench

REPAIR = PartReport("step_10/repair", 3, "r")


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.join("a", "b", "c")
    return bench


def report(bench: Bench, worker: str, replicas: str, step: int = 10) -> list[e.Effect]:
    part = PartReport(f"step_{step}/{worker}", 5, worker, replicas)
    effects: list[e.Effect] = bench.say(c.ReportPart, worker, step=step, epoch=0, report=part)[1]
    return effects


def diverge(bench: Bench) -> list[e.Effect]:
    report(bench, "a", "g:1,h:1")
    report(bench, "b", "g:1")
    return report(bench, "c", "g:2,i:3")


def repair(bench: Bench, worker: str, part: PartReport | None = None, incarnation: str = "1") -> list[e.Effect]:
    fields = {"step": 10, "generation": bench.generation, "repair": part}
    effects: list[e.Effect] = bench.say(c.ReportRepair, worker, incarnation, **fields)[1]
    return effects


def wanted(effects: list[e.Effect]) -> e.ManifestWanted:
    (found,) = [effect for effect in effects if isinstance(effect, e.ManifestWanted)]
    return found


def phase(bench: Bench) -> tuple[str, tuple[str, ...]]:
    progress = bench.say(c.AskCommit, "a", step=10, path="step_10/a")[0]
    return progress.phase, progress.missing


def test_groups_that_agree_are_committed_as_ever_whatever_others_hold(bench: Bench) -> None:
    report(bench, "a", "g:1,h:1")
    report(bench, "b", "g:1")
    assert wanted(report(bench, "c", "i:2")).repairs == ()


def test_all_workers_are_asked_to_repair_and_the_manifest_is_written_when_all_have_answered(bench: Bench) -> None:
    (asked,) = diverge(bench)
    assert isinstance(asked, e.RepairWanted)
    assert (asked.to, [each.path for each in asked.reports]) == (("a", "b", "c"), [f"step_10/{w}" for w in "abc"])
    assert repair(bench, "c") == []
    assert phase(bench) == ("repairing", ("a", "b"))
    assert repair(bench, "b", REPAIR) == []
    assert repair(bench, "b") == [], "what comes twice counts once"
    assert [each.path for each in wanted(repair(bench, "a")).repairs] == ["", REPAIR.path, ""]
    assert phase(bench)[0] == "writing"
    confirm(bench, "a")
    assert phase(bench)[0] == "committed"


def test_a_worker_that_dies_ends_the_repair_with_what_was_repaired_until_then(bench: Bench) -> None:
    diverge(bench)
    repair(bench, "b", REPAIR)
    _, effects = bench.apply(c.FailWorkers(workers=(("c", "1"),), reason="killed"))
    assert [each.path for each in wanted(effects).repairs] == ["", REPAIR.path, ""]


def test_a_worker_that_joins_does_not_end_a_repair(bench: Bench) -> None:
    generation = bench.generation
    diverge(bench)
    bench.join("d")
    assert phase(bench)[0] == "repairing"
    for worker in "ab":
        bench.say(c.ReportRepair, worker, step=10, generation=generation)
    assert wanted(bench.say(c.ReportRepair, "c", step=10, generation=generation)[1]).repairs == ()


def test_a_worker_that_never_answers_ends_the_repair_when_its_time_is_over(bench: Bench) -> None:
    diverge(bench)
    repair(bench, "b", REPAIR)
    effects: list[e.Effect] = []
    for _ in range(int(LIMITS.repair_s) + 1):
        assert effects == []
        for worker in "abc":
            bench.beat(worker, step=10, epoch=0)
        effects = bench.pass_time(1.0)
    assert [each.path for each in wanted(effects).repairs] == ["", REPAIR.path, ""]
    assert repair(bench, "a", REPAIR) == [], "it comes too late"
    assert repair(bench.restarted(), "a", REPAIR) == [], "also for a coordinator that was restarted"


def test_a_repair_survives_a_restart_of_the_coordinator_and_is_asked_for_again(bench: Bench) -> None:
    diverge(bench)
    repair(bench, "b", REPAIR)
    again = bench.restarted()
    _, effects = again.apply(c.RegisterWorker(worker_id="c", incarnation="1"))
    assert phase(again) == ("repairing", ("a", "c"))
    asked = [effect for effect in effects if isinstance(effect, e.RepairWanted)]
    assert [effect.to for effect in asked] == [("c",)]


def test_a_repair_of_another_generation_or_of_nothing_changes_nothing(bench: Bench) -> None:
    assert repair(bench, "a", REPAIR) == []
    diverge(bench)
    fields = {"step": 10, "generation": bench.generation + 1, "repair": REPAIR}
    assert bench.say(c.ReportRepair, "a", **fields)[1] == []
    assert phase(bench) == ("repairing", ("a", "b", "c"))


def test_who_has_no_part_of_a_checkpoint_repairs_nothing_of_it(bench: Bench) -> None:
    diverge(bench)
    generation = bench.generation
    bench.join("d")
    before = bench.cluster.snapshot()
    bench.say(c.ReportRepair, "d", step=10, generation=generation, repair=REPAIR)
    assert bench.cluster.snapshot() == before


def test_a_process_that_does_not_count_any_more_repairs_nothing(bench: Bench) -> None:
    diverge(bench)
    generation = bench.generation
    bench.join("a", incarnation="2")
    with pytest.raises(StaleIncarnationError):
        bench.say(c.ReportRepair, "a", "1", step=10, generation=generation, repair=REPAIR)


def test_a_checkpoint_is_not_confirmed_while_it_is_repaired(bench: Bench) -> None:
    diverge(bench)
    with pytest.raises(CommitRefusedError, match="the repairs of a, b, c are missing"):
        confirm(bench, "a")


def test_time_in_which_the_coordinator_was_away_ends_no_repair(bench: Bench) -> None:
    diverge(bench)
    bench.now_s += LIMITS.repair_s
    again = bench.restarted()
    again.pass_time(2.0)
    assert phase(again)[0] == "repairing"
