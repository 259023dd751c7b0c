"""A command about a checkpoint changes it only in the phase and the generation that it is meant for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from strata.cluster import commands as c
from strata.cluster import events as e
from strata.cluster.values import CommitRecord, Meeting, PartReport
from strata.errors import CommitRefusedError, StepTakenError, StrataError
from tests.unit.cluster.commit_steps import commit, confirm, report
from tests.unit.cluster.conftest import Bench

STEP = 10
GENERATION = 3
FORGED = '[{"dataset":{"dataset_id":"d","total_samples":30,"shard_size":10},"order":"sticky","epoch":9,"consumed":[]}]'
WORKERS = "abc"


def fresh() -> Bench:
    """A job in its third generation that has committed step 1 and seen some samples since."""
    bench = Bench()
    bench.join(*WORKERS)
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=30, shard_size=10))
    assert bench.generation == GENERATION
    commit(bench, 1)
    seen = {"dataset_id": "d", "epoch": 0, "step": STEP, "spans": ((0, 0, 5),)}
    bench.say(c.ReportProgress, "a", sequence=1, **seen)
    return bench


def collect(bench: Bench) -> None:
    for worker in "ab":
        report(bench, worker, STEP, progress=worker == "a")


def write(bench: Bench) -> None:
    collect(bench)
    report(bench, "c", STEP)


def write_and_be_joined(bench: Bench) -> None:
    """All parts are durable, and another generation has begun since."""
    write(bench)
    bench.join("d")


def finish(bench: Bench) -> None:
    write(bench)
    confirm(bench, "a", STEP)


def abort(bench: Bench) -> None:
    collect(bench)
    bench.apply(c.AbortCheckpoint(step=STEP, reason="too slow"))


def give_up(bench: Bench) -> None:
    write(bench)
    bench.say(c.GiveUpCheckpoint, "a", step=STEP, generation=GENERATION, reason="torn")


def reject(bench: Bench) -> None:
    finish(bench)
    bench.join("d")
    bench.say(c.AskRestorePoint, "a")
    bench.say(c.RejectCheckpoint, "a", step=STEP, reason="a byte flipped")


def rewind(bench: Bench) -> None:
    write(bench)
    bench.apply(c.RewindJob(number=1, to_step=1, reason="loss spike"))


def forget(bench: Bench) -> None:
    finish(bench)
    commit(bench, STEP + 10)
    bench.apply(c.ForgetCheckpoints(steps=(STEP,)))


def begin_nothing(bench: Bench) -> None:
    """Nobody has said anything of the step."""


PHASES: dict[str, Callable[[Bench], None]] = {
    "unknown": begin_nothing,
    "collecting": collect,
    "writing": write,
    "writing, another generation": write_and_be_joined,
    "committed": finish,
    "aborted": abort,
    "given up": give_up,
    "rejected": reject,
    "rewound": rewind,
    "deleted": forget,
}
# Of the checkpoint's own generation, of an older and a newer one, and of the one that the job is in by now.
GENERATIONS: dict[str, Callable[[Bench], int]] = {
    "own": lambda _: GENERATION,
    "older": lambda _: GENERATION - 1,
    "newer": lambda bench: bench.generation + 1,
    "present": lambda bench: bench.generation,
}
OWN = {"worker_id": "b", "incarnation": "1", "step": STEP}
COMMANDS: dict[str, Callable[[int], c.JobCommand]] = {
    "confirm": lambda generation: c.ConfirmCommit(
        **OWN, generation=generation, epoch=0, manifest="step_10/metadata.json", cursors=FORGED
    ),
    "give up": lambda generation: c.GiveUpCheckpoint(**OWN, generation=generation, reason="full"),
    "reject": lambda generation: c.RejectCheckpoint(**OWN, generation=generation, reason="torn"),
    "report again": lambda generation: c.ReportPart(
        **OWN, generation=generation, epoch=0, report=PartReport("step_10/another", 7, "b")
    ),
    "adopt": lambda _: c.AdoptCheckpoints(checkpoints=(CommitRecord(STEP, 0, "step_10/metadata.json", FORGED),)),
    "forget": lambda _: c.ForgetCheckpoints(steps=(STEP,)),
    "abort": lambda _: c.AbortCheckpoint(step=STEP, reason="operator"),
}
# Where each command does something: in these phases, and of these generations.
MEANT_FOR = {
    ("confirm", "writing", "own"),
    ("confirm", "writing", "present"),
    ("confirm", "writing, another generation", "own"),
    *product(("give up",), ("unknown", "collecting", "writing", "aborted", "given up"), ("own", "present")),
    ("give up", "writing, another generation", "own"),
    # Nobody saves these in this generation any more, and that is noted; it says nothing of a later one.
    *product(("give up",), ("rejected", "rewound"), ("present",)),
    *product(("give up",), ("deleted",), ("own", "present")),
    # Another attempt at the step.
    *product(("report again",), ("unknown", "aborted"), ("own", "present")),
    # A rejected step is saved again.
    *product(("report again",), ("rejected", "rewound"), ("present",)),
    # Storage holds the truth about what nobody is writing.
    *product(("adopt",), ("unknown", "collecting", "aborted", "given up"), GENERATIONS),
    *product(("abort",), ("collecting",), GENERATIONS),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_command_changes_a_checkpoint_only_in_its_phase_and_generation(
    command: str, phase: str, generation: str
) -> None:
    bench = fresh()
    PHASES[phase](bench)
    before, events = bench.cluster.snapshot(), bench.cluster.events.since(0)[1]
    try:
        _, effects = bench.apply(COMMANDS[command](GENERATIONS[generation](bench)))
    except StrataError:
        effects = []
    is_changed = bench.cluster.snapshot() != before
    assert is_changed == ((command, phase, generation) in MEANT_FOR)
    assert is_changed or (effects == [] and bench.cluster.events.since(0)[1] == events)


@pytest.mark.parametrize("phase", [phase for phase in PHASES if not phase.startswith("writing")])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_confirmation_is_done_already_or_refused_for_good(phase: str, generation: str) -> None:
    bench = fresh()
    PHASES[phase](bench)
    command = COMMANDS["confirm"](GENERATIONS[generation](bench))
    if phase == "committed":
        assert bench.apply(command)[1] == []
        return
    with pytest.raises(CommitRefusedError, match="step 10 of job 'default' is not committed") as caught:
        bench.apply(command)
    assert caught.value.recovery.value == "stop"


def test_the_index_holds_the_coordinator_s_own_data_position_whatever_the_confirmation_says() -> None:
    bench = fresh()
    write(bench)
    own = bench.job.commits.pending[STEP].cursors
    (announced,) = bench.apply(COMMANDS["confirm"](GENERATION))[1]
    assert isinstance(announced, e.CheckpointCommitted)
    record = bench.restarted().job.commits.committed[STEP]
    assert (record.cursors, record.manifest) == (own, "step_10/metadata.json")
    assert own != FORGED


def test_a_confirmation_of_nothing_leaves_the_audit_as_it_is() -> None:
    """It made the audit report all samples missing: a restore went to a data position that nobody had reached."""
    bench = fresh()
    missing = bench.job.ledger.audit("d", 0).missing.count
    with pytest.raises(CommitRefusedError, match="no worker has reported a part of it"):
        bench.say(c.ConfirmCommit, "b", step=999, epoch=0, generation=GENERATION, manifest="m", cursors="[]")
    assert bench.job.ledger.audit("d", 0).missing.count == missing
    assert max(bench.job.commits.committed) == 1


def test_a_listing_with_the_manifest_that_is_wanted_commits_it() -> None:
    bench = fresh()
    write(bench)
    own = bench.job.commits.pending[STEP].cursors
    assert own is not None
    bench.apply(c.AdoptCheckpoints(checkpoints=(CommitRecord(STEP, 0, "step_10/metadata.json", own),)))
    assert bench.job.commits.pending == {}
    assert bench.job.commits.committed[STEP].cursors == own


def test_a_second_part_of_a_worker_is_refused_and_not_asked_after_for_ever() -> None:
    bench = fresh()
    collect(bench)
    with pytest.raises(StepTakenError):
        report(bench, "b", STEP, path="step_10/another")
    assert bench.job.commits.pending[STEP].reports["b"].path == "step_10/b"


def test_an_epoch_is_over_when_it_is_over_for_all() -> None:
    bench = fresh()
    for worker, epoch in (("a", 3), ("b", 2), ("c", 3)):
        part = PartReport(f"step_10/{worker}", 5, worker)
        bench.say(c.ReportPart, worker, step=STEP, epoch=epoch, report=part)
    confirm(bench, "a", STEP)
    assert bench.job.commits.committed[STEP].epoch == 2


def test_a_release_is_taken_of_a_worker_that_offered_it_alone() -> None:
    bench = fresh()
    release = {"name": "meet", "round": 1, "payloads": (b"forged",), "waited_s": 0.0}
    bench.say(c.ArriveAtBarrier, "a", name="meet")
    assert bench.say(c.BringRelease, "b", **release)[1] == []
    (wanted,) = bench.say(c.OfferReleases, "b", meetings=(Meeting("meet", 1),))[1]
    assert isinstance(wanted, e.ReleaseWanted)
    assert bench.say(c.BringRelease, "c", **release)[1] == []
    (released,) = bench.say(c.BringRelease, "b", **release)[1]
    assert isinstance(released, e.BarrierReleased)


# Journals of before.

BEFORE = {"epoch": 0, "manifest": "m", "generation": GENERATION, "worker_id": "a", "incarnation": "1"}


def test_a_journal_of_before_replays_to_the_decisions_of_then() -> None:
    """What was accepted then would be refused now: a replay that decided anew could not read the journal."""
    bench = fresh()
    for command in (
        c.ConfirmCommit(**BEFORE, step=40, cursors="[]"),
        c.GiveUpCheckpoint(worker_id="a", incarnation="1", step=50, generation=99, reason="full"),
        c.AdoptCheckpoints(checkpoints=(CommitRecord(45, 0, "m", FORGED),)),
    ):
        bench.cluster.apply(command, bench.now_s, rules=0)
    assert sorted(bench.job.commits.committed) == [1, 40, 45]
    with pytest.raises(CommitRefusedError):
        bench.apply(c.ConfirmCommit(**BEFORE, step=60, cursors="[]"))
