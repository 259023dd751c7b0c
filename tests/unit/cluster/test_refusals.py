"""A refused command changes nothing, to the byte; and what may not be sent is refused at the edge."""

from __future__ import annotations

import math
from dataclasses import Field, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.cluster import Cluster, validation
from strata.cluster import commands as c
from strata.cluster.access import Role
from strata.cluster.access import administration as t
from strata.cluster.access.quotas import Quotas
from strata.cluster.validation import check_fields
from strata.cluster.values import CommitRecord, Divergence, Incarnation, Meeting, PartReport, Span, WorkerAccount
from strata.errors import DamagedRecordError, OutOfOrderError, StrataError, UnknownWorkerError
from strata.sharding import DataOrder
from strata.wire import convert
from tests.unit.cluster.conftest import LIMITS, Bench

WORKERS = st.sampled_from(["a", "b", "", "nobody"])
NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 99]) | st.integers(-2, 2**63 - 1)
ROW = '{"dataset":{"dataset_id":"%s","total_samples":95,"shard_size":10,"shuffle":true,"seed":1,"data_order":"sticky"},'
CURSORS = st.sampled_from(
    ["[]", "null", "{}", "[1]", "not JSON", "[[]]", ROW % "d" + "}", f"[{ROW % 'd'}}}]"]
    + [f'[{ROW % name}"order":"sticky","epoch":0,"consumed":[0,{seen}]}}]' for name in "dex" for seen in (10, 10**9)]
)
DIVERGED = st.none() | st.builds(
    Divergence, st.lists(NUMBERS, max_size=2).map(tuple), st.sampled_from(["w", "", "w\n", "w" * 600]), NUMBERS
)
REPORTS = st.builds(
    PartReport, st.sampled_from(["", "x", "y"]), NUMBERS, st.just(""), st.sampled_from(["", "g:1", "g:2", "g" * 2_000])
)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "job_id": st.just("default"),
    "worker_id": WORKERS,
    "incarnation": st.sampled_from(["1", "2"]),
    "dataset_id": st.sampled_from(["d", "e", "dynamic", "unknown"]),
    "state": st.sampled_from(c.WorkerState),
    "data_order": st.sampled_from(DataOrder),
    "cause": st.sampled_from(list(c.Cause)),
    "shuffle": st.booleans(),
    "allow_suspect": st.booleans(),
    "even_newest": st.booleans(),
    "is_passed_over": st.booleans(),
    "is_over": st.booleans(),
    "total_samples": st.sampled_from([-1, 0, 1, 95, 2**63 - 1]),
    "shard_size": st.sampled_from([-1, 0, 1, 10, 2**62]),
    "timeout_s": st.floats(),
    "resources": st.just({}),
    "payload": st.none() | st.sampled_from([1, 2 << 20]).map(bytes),
    "value": st.sampled_from([0, 1, 300 << 10]).map(bytes),
    "cursors": CURSORS,
    "steps": st.lists(NUMBERS, max_size=3).map(tuple),
    "spans": st.lists(st.builds(Span, NUMBERS, NUMBERS, NUMBERS), max_size=2).map(tuple),
    "workers": st.lists(st.builds(Incarnation, WORKERS, st.just("1")), max_size=2).map(tuple),
    "checkpoints": st.lists(st.builds(CommitRecord, NUMBERS, NUMBERS, st.just("m"), CURSORS, DIVERGED), max_size=2).map(
        tuple
    ),
    "diverged": DIVERGED,
    "account": st.none() | st.builds(WorkerAccount, *([st.floats()] * 8), *([NUMBERS] * 5)),
    "report": REPORTS,
    "repair": st.none() | REPORTS,
    "meetings": st.lists(st.builds(Meeting, st.sampled_from(["", "x"]), NUMBERS), max_size=2).map(tuple),
    "payloads": st.lists(st.just(b"x"), max_size=2).map(tuple),
    "waited_s": st.floats(),
    "tenant": st.sampled_from(["default", "default", "t", "a/b"]),
    "quotas": st.builds(Quotas, workers=st.sampled_from([None, 1, 3]), jobs=st.sampled_from([None, 1])),
    "role": st.sampled_from(Role),
    "expires_s": st.none() | st.sampled_from([50.0, 1e9]),
    "token_ids": st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple),
}
BY_TYPE = {"str": st.sampled_from(["", "x", "y"]), "int": NUMBERS, "int | None": st.none() | NUMBERS}


def of(field: Field[Any]) -> st.SearchStrategy[Any]:
    return BY_NAME[field.name] if field.name in BY_NAME else BY_TYPE[str(field.type)]


def commands(generation: int) -> st.SearchStrategy[c.Command]:
    """Commands of every kind, about half of them of the present generation, most of them wrong in some way."""
    here = st.just(generation) | NUMBERS
    kinds = [
        st.builds(
            kind,
            **{each.name: here if each.name == "generation" else of(each) for each in fields(kind)},
        )
        for kind in convert.COMMANDS
    ]
    return st.one_of(kinds)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_after_every_refused_command_the_snapshot_is_the_same_to_the_byte(data: st.DataObject) -> None:
    bench = Bench()
    bench.join("a", "b")
    for name, order in (("d", DataOrder.STICKY), ("e", DataOrder.GLOBAL), ("dynamic", DataOrder.DYNAMIC)):
        bench.apply(
            c.RegisterDataset(dataset_id=name, total_samples=95, shard_size=10, shuffle=True, seed=1, data_order=order)
        )
    applied: list[c.Command] = []
    start = bench.cluster.snapshot()
    for _ in range(data.draw(st.integers(1, 12))):
        generation = bench.cluster.job("default").membership.generation if bench.cluster.jobs() else 0
        command = data.draw(commands(generation))
        before = bench.cluster.snapshot()
        try:
            bench.apply(command)
        except (StrataError, ValueError):
            assert bench.cluster.snapshot() == before
        else:
            applied += [command] if command.durable else []
    # What is durable comes out the same when it is played again.
    again = Cluster(LIMITS)
    again.restore(start)
    for command in applied:
        again.apply(command, bench.now_s)
    assert again.snapshot() == bench.cluster.snapshot()


@settings(max_examples=300, deadline=None)
@given(data=st.data(), kind=st.sampled_from([c.Heartbeat, c.ArriveAtBarrier]))
def test_the_short_check_of_frequent_commands_passes_only_what_the_general_one_does(
    data: st.DataObject, kind: type[c.Command]
) -> None:
    names = st.sampled_from(["a", "", "a\n", "a" * 600])
    wider = {"worker_id": names, "incarnation": names, "name": names, "step": NUMBERS, "round": NUMBERS}
    command = data.draw(
        st.builds(kind, **{each.name: wider[each.name] if each.name in wider else of(each) for each in fields(kind)})
    )

    def refusal() -> str | None:
        try:
            check_fields(command)
        except StrataError as error:
            return str(error)
        return None

    # A sender is looked at closely once, so ask twice.
    refusal()
    short = refusal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "_SOUND", {})
        assert refusal() == short


def test_a_wrong_first_sequence_leaves_no_deal_behind(bench: Bench) -> None:
    bench.join("a")
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=95, shard_size=10, data_order=DataOrder.DYNAMIC))
    before = bench.cluster.snapshot()
    with pytest.raises(OutOfOrderError):
        bench.say(c.LeaseShards, "a", dataset_id="d", epoch=0, sequence=2)
    assert bench.cluster.snapshot() == before


def test_a_bad_report_begins_no_epoch(bench: Bench) -> None:
    bench.join("a")
    bench.apply(c.RegisterDataset(dataset_id="d", total_samples=95, shard_size=10))
    before = bench.cluster.snapshot()
    with pytest.raises(ValueError, match="shard 99"):
        bench.say(c.ReportProgress, "a", sequence=1, dataset_id="d", epoch=0, step=1, spans=((99, 0, 1),))
    assert bench.cluster.snapshot() == before


CONFIRM = c.ConfirmCommit(worker_id="w", incarnation="1", step=1, epoch=0, generation=1, manifest="m", cursors="[]")


@pytest.mark.parametrize("cursors", ["null", "{}", "7", "not JSON", "[null]", '[{"dataset":{}}]', "[" * 100_000])
def test_cursors_that_nobody_could_restore_are_refused_at_the_edge(cursors: str) -> None:
    for command in (
        replace(CONFIRM, cursors=cursors),
        c.AdoptCheckpoints(checkpoints=(CommitRecord(1, 0, "m", cursors),)),
    ):
        with pytest.raises(ValueError, match="cursors"):
            check_fields(command)


@pytest.mark.parametrize(
    ("diverged", "named"),
    [
        (Divergence((), "w", 1), "0 ranks"),
        (Divergence(tuple(range(2_000)), "w", 1), "2000 ranks"),
        (Divergence((-1,), "w", 1), "ranks"),
        (Divergence((1,), "\x1b[2J", 1), "tensor"),
        (Divergence((1,), "w" * 600, 1), "tensor"),
        (Divergence((1,), "w", 0), "tensors"),
    ],
)
def test_a_divergence_that_is_none_is_refused_at_the_edge_and_its_short_form_never_is(
    diverged: Divergence, named: str
) -> None:
    for command in (
        replace(CONFIRM, diverged=diverged),
        c.AdoptCheckpoints(checkpoints=(CommitRecord(1, 0, "m", "[]", diverged),)),
    ):
        with pytest.raises(ValueError, match=named):
            check_fields(command)
    if diverged.ranks and min(diverged.ranks) >= 0 and diverged.tensors:
        check_fields(replace(CONFIRM, diverged=diverged.shorten()))


def test_a_commit_is_confirmed_by_members_only(bench: Bench) -> None:
    bench.join("a")
    before = bench.cluster.snapshot()
    with pytest.raises(UnknownWorkerError, match="'w'"):
        bench.apply(CONFIRM)
    assert bench.cluster.snapshot() == before


def test_a_poisoned_record_of_an_older_version_is_named_and_can_be_removed(bench: Bench) -> None:
    bench.join("w")
    for command in (CONFIRM, replace(CONFIRM, step=2, cursors="null")):
        bench.cluster.apply(command, bench.now_s, rules=0)
    with pytest.raises(DamagedRecordError, match="'null' is not a list"):
        bench.say(c.AskRestorePoint, "w")
    bench.apply(c.ForgetCheckpoints(steps=(2,), even_newest=True))
    reply, _ = bench.say(c.AskRestorePoint, "w")
    assert reply.checkpoint.step == 1
    assert bench.restarted().cluster.snapshot() == bench.cluster.snapshot()


def test_every_field_of_every_command_has_its_rule() -> None:
    named = {field.name for kind in convert.COMMANDS for field in fields(kind)}
    assert named == set(validation.FIELDS)


HOSTILE = ["", "x" * (1 << 20), "\x1b[2Jgone", "a\nb", "../up", "\u202egnp"]
BEAT = c.Heartbeat(worker_id="w", incarnation="1")
ARRIVAL = c.ArriveAtBarrier(worker_id="w", incarnation="1", generation=1, name="b")


@pytest.mark.parametrize("text", HOSTILE, ids=["empty", "a megabyte", "escapes", "two lines", "a path", "reversed"])
def test_hostile_names_are_refused_in_few_words(text: str) -> None:
    for command in (
        replace(BEAT, worker_id=text),
        replace(BEAT, job_id=text),
        c.RegisterDataset(dataset_id=text, total_samples=1, shard_size=1),
    ):
        with pytest.raises(ValueError, match="use 1 to") as caught:
            check_fields(command)
        assert len(str(caught.value)) < 400
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", [*HOSTILE[:4], "\u202egnp"])
def test_hostile_text_elsewhere_is_refused_too(text: str) -> None:
    for command in (replace(BEAT, incarnation=text), replace(ARRIVAL, name=text), replace(CONFIRM, manifest=text)):
        with pytest.raises(ValueError, match="printable characters"):
            check_fields(command)


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
def test_a_timeout_is_a_time(timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"timeout_s is .*; use seconds above 0"):
        check_fields(replace(ARRIVAL, timeout_s=timeout_s))


@pytest.mark.parametrize("expires_s", [math.nan, math.inf, -1.0, 0.0, 1e300])
def test_a_token_expires_at_a_time_or_never(expires_s: float) -> None:
    token = t.CreateToken(token_id="k", sha256="0" * 64)
    with pytest.raises(ValueError, match=r"expires_s is .*; use seconds since 1970"):
        check_fields(replace(token, expires_s=expires_s))
    for allowed in (token, replace(token, expires_s=2e9)):
        assert check_fields(allowed) is allowed


def test_only_so_many_senders_are_remembered_as_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_senders", set())
    monkeypatch.setattr(validation, "MAX_SENDERS", 3)
    for number in range(10):
        check_fields(replace(BEAT, worker_id=f"w{number}"))
        assert 1 <= len(validation._senders) <= 3


@pytest.mark.parametrize(
    "command",
    [
        replace(ARRIVAL, expected=0),
        replace(ARRIVAL, expected=-1),
        c.ConfigureJob(max_workers=0),
        c.ConfigureJob(min_workers=-1),
        replace(BEAT, step=-1),
        replace(BEAT, epoch=-5),
        c.RegisterWorker(worker_id="w", incarnation="1", gpu_count=-1),
    ],
)
def test_counts_are_counts(command: c.JobCommand) -> None:
    with pytest.raises(ValueError, match="use a whole number from"):
        check_fields(command)


def test_a_reason_of_a_megabyte_is_cut_and_not_refused() -> None:
    command = check_fields(c.Goodbye(worker_id="w", incarnation="1", reason="x" * (1 << 20)))
    assert isinstance(command, c.Goodbye)
    assert len(command.reason) == validation.MAX_REASON
    assert check_fields(BEAT) is BEAT


MANY = validation.MAX_ROWS + 1
ACCOUNT = WorkerAccount(*([0.0] * 8), *([0] * 5))
RELEASE = c.BringRelease(worker_id="w", incarnation="1", generation=1, name="b", round=1, payloads=(), waited_s=0.0)
REPORT = c.ReportPart(worker_id="w", incarnation="1", generation=1, step=1, epoch=0, report=PartReport("p", 1, "d"))
TOKEN = t.CreateToken(tenant="default", token_id="x", sha256="ab" * 32, role=Role.WORKER, name="n")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (replace(RELEASE, waited_s=math.nan), "waited_s is nan; use seconds from 0"),
        (replace(REPORT, report=None), "report is missing; say where"),
        (replace(REPORT, report=PartReport("", 1, "d")), "report.path is ''; use 1 to"),
        (replace(REPORT, report=PartReport("p", -1, "d")), "report.size_bytes is -1; use a whole number from 0"),
        (replace(REPORT, report=PartReport("p", 1, "d" * 300)), f"report.digest is '{'d' * 59}...; use 0 to 256"),
        (
            replace(BEAT, resources={str(number): 1.0 for number in range(65)}),
            "resources has 65 values; use at most 64",
        ),
        (replace(BEAT, resources={"\x1b[2J": 1.0}), "use 1 to 64 printable characters"),
        (replace(BEAT, account=ACCOUNT._replace(saves=(None,) * 17)), "account has 17 saves; send at most 16"),
        (c.ForgetCheckpoints(steps=(1,) * MANY), f"steps has {MANY} numbers; send at most"),
        (c.ForgetCheckpoints(steps=(-1,)), "steps is -1"),
        (c.FailWorkers(workers=(Incarnation("w", "1"),) * MANY, reason=""), f"workers has {MANY} rows; send at most"),
        (replace(TOKEN, sha256="secret"), "sha256 has 6 characters; send the SHA-256"),
        (replace(TOKEN, expires_s=math.nan), "expires_s is nan; use seconds since 1970"),
        (t.ForgetTokens(tenant="default", token_ids=("x",) * MANY), f"token_ids has {MANY} rows; send at most"),
        (t.ForgetTokens(tenant="default", token_ids=("../up",)), "token id"),
    ],
)
def test_what_is_too_much_or_none_of_its_kind_is_refused_at_the_edge(command: c.Command, problem: str) -> None:
    with pytest.raises(StrataError) as caught:
        check_fields(command)
    assert problem in str(caught.value)


def test_senders_beyond_the_size_of_the_cache_are_still_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MAX_SENDERS", 2)
    monkeypatch.setattr(validation, "_senders", set())
    for number in range(5):
        check_fields(replace(BEAT, worker_id=f"w{number}"))
    assert len(validation._senders) <= 2
    with pytest.raises(StrataError, match="use 1 to"):
        check_fields(replace(BEAT, worker_id="../up"))


def test_a_divergence_of_many_ranks_names_the_first_few() -> None:
    text = str(Divergence(tuple(range(40)), "w", 1))
    assert text.startswith("ranks 0, 1, ")
    assert text.endswith(" more held other values of w")
