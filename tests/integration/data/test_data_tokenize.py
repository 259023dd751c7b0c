"""Tokenizing on all cores or a cluster: the same bytes, and an interrupted run goes on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

from strata.data import open_dataset
from strata.data.prepare import tokenizing, unfinished
from strata.data.prepare.engines import run_tasks, start_engine
from strata.data.prepare.rewrite import Plan, prepare
from strata.data.prepare.tokenizing import TokenizePlan, tokenize
from strata.data.rows.row_sequence import open_rows
from strata.data.text.megatron import MegatronRows
from strata.data.text.tokenizers import Tokenize, load_tokenizer
from strata.errors import DataError, DatasetExistsError, MissingExtraError, RayUnavailableError
from tests.testbed.pace import stretch
from tests.testbed.process import free_ports, run_program
from tests.testbed.terminal import Terminal

pytestmark = pytest.mark.full

STRATA = Path(os.sys.executable).with_name("strata")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "ünïcode", "and", "slept"]
    lines = [" ".join(rng.choice(words, rng.integers(0, 20))) for _ in range(300)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": line, "id": n}) + "\n" for n, line in enumerate(lines)))
    return folder


@pytest.fixture
def tokenizer(tmp_path: Path, corpus: Path) -> str:
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>", "<unk>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(corpus.joinpath("a.jsonl").read_text().splitlines(), trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def texts(corpus: Path, cache: Path) -> Any:
    return open_rows(corpus, cache=cache)


def test_tokens_are_those_of_the_tokenizer_whatever_the_number_of_processes(
    tmp_path: Path, corpus: Path, tokenizer: str
) -> None:
    rows = texts(corpus, tmp_path / "cache")
    plan = TokenizePlan(tokenizer=tokenizer, end=0, rows_per_file=70)
    done = tokenize(rows, str(tmp_path / "one"), plan, processes=1)
    tokenize(rows, str(tmp_path / "two"), plan, processes=2)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert (done.files, done.documents, done.dtype) == (5, 300, "uint16")
    own = tokenizers.Tokenizer.from_file(tokenizer)
    lines = [json.loads(line)["text"] for line in (corpus / "a.jsonl").read_text().splitlines()]
    found = []
    for name in sorted(content(tmp_path / "one")):
        if name.endswith(".idx"):
            part = MegatronRows(tmp_path / "one" / name)
            found += [row.tolist() for row in part.read(0, part.num_rows).to_numpy()["tokens"]]
    assert found == [[*own.encode(line).ids, 0] for line in lines]
    rows = open_rows(tmp_path / "one", options={"sequence_length": 16}, cache=tmp_path / "cache")
    assert rows.read(0, 1)["tokens"][0].tolist() == [token for row in found for token in row][:16]


def test_a_run_that_was_stopped_keeps_the_files_that_are_done(
    tmp_path: Path, corpus: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = texts(corpus, tmp_path / "cache")
    plan = TokenizePlan(tokenizer=tokenizer, rows_per_file=70)
    tokenize(rows, str(tmp_path / "straight"), plan, processes=1)
    whole, made = tokenizing.tokenize_part, []

    def stop_at_the_third(*task: Any) -> Any:
        made.append(task)
        if len(made) == 3:
            raise KeyboardInterrupt
        return whole(*task)

    monkeypatch.setattr(tokenizing, "tokenize_part", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        tokenize(rows, str(tmp_path / "stopped"), plan, processes=1)
    assert not (tmp_path / "stopped").exists()
    tokenize(rows, str(tmp_path / "stopped"), plan, processes=1)
    assert len(made) == 3 + 3
    assert content(tmp_path / "stopped") == content(tmp_path / "straight")
    with pytest.raises(DatasetExistsError):
        tokenize(rows, str(tmp_path / "stopped"), plan, processes=1)


@pytest.mark.parametrize("same_plan", [True, False])
def test_a_task_that_outlives_its_killed_run_cannot_change_the_next_one(
    tmp_path: Path, corpus: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch, same_plan: bool
) -> None:
    rows = texts(corpus, tmp_path / "cache")
    plans = [TokenizePlan(tokenizer=tokenizer, end=None if same_plan else 1, rows_per_file=70)]
    plans += [TokenizePlan(tokenizer=tokenizer, rows_per_file=70)]
    left: list[Any] = []

    def run_old(documents: int = 0, tokens: int = 0) -> None:
        for task in left:
            with contextlib.suppress(FileNotFoundError):  # which ends the task, and nobody waits for it
                tokenizing.tokenize_part(*task)

    def die(engine: str, function: Any, tasks: Any, **options: Any) -> Any:
        left.extend(tasks)
        run_old()
        raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patched:
        patched.setattr(tokenizing, "run_tasks", die)
        patched.setattr(unfinished, "remove", lambda path: None)  # killed, it cleans up nothing
        with pytest.raises(KeyboardInterrupt):
            tokenize(rows, str(tmp_path / "out"), plans[0], processes=1)
    tokenize(rows, str(tmp_path / "out"), plans[1], processes=1, on_progress=run_old)
    tokenize(rows, str(tmp_path / "straight"), plans[1], processes=1)
    assert content(tmp_path / "out") == content(tmp_path / "straight")


def test_a_process_that_is_killed_is_named_as_the_cause() -> None:
    with pytest.raises(DataError, match=r"one of the 2 processes was killed \(is there enough memory\?\)"):
        list(run_tasks("local", kill_itself, [(), ()], processes=2))


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_files_of_another_plan_are_not_kept(
    tmp_path: Path, corpus: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = texts(corpus, tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(tokenizing, "run_tasks", lambda *args, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tokenize(rows, str(tmp_path / "out"), TokenizePlan(tokenizer=tokenizer), processes=1)
    done = tokenize(rows, str(tmp_path / "out"), TokenizePlan(tokenizer=tokenizer, end=1), processes=1)
    assert done.documents == 300
    assert MegatronRows(next((tmp_path / "out").glob("*.idx"))).read(0, 1).to_numpy()["tokens"][0][-1] == 1


def test_what_cannot_be_tokenized_is_refused_before_anything_is_written(
    tmp_path: Path, corpus: Path, tokenizer: str
) -> None:
    plan = TokenizePlan(tokenizer=tokenizer)
    with pytest.raises(ValueError, match="rows_per_file=0 must be 1 or more"):
        TokenizePlan(tokenizer=tokenizer, rows_per_file=0)
    with pytest.raises(
        ValueError, match="dtype='float32' is no type of tokens; use one of uint8, uint16, int32, int64"
    ):
        TokenizePlan(tokenizer=tokenizer, dtype="float32")
    with pytest.raises(ValueError, match="'s3://bucket/out': tokens are written to a directory"):
        tokenize(texts(corpus, tmp_path / "cache"), "s3://bucket/out", plan)
    (tmp_path / "empty.csv").write_text("text,n\n")
    empty = open_rows(tmp_path / "empty.csv", cache=tmp_path / "cache")
    with pytest.raises(DataError, match=r"DatasetRows\('.*', 0 rows, text, n\) has no rows, so there is nothing"):
        tokenize(empty, str(tmp_path / "out"), plan)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_two_that_tokenize_to_the_same_place_do_not_meet(tmp_path: Path, corpus: Path, tokenizer: str) -> None:
    rows = texts(corpus, tmp_path / "cache")
    plan = TokenizePlan(tokenizer=tokenizer)
    refused = []

    def start_another(documents: int, tokens: int) -> None:
        with pytest.raises(DatasetExistsError, match="another 'strata data tokenize' is writing it") as caught:
            tokenize(rows, str(tmp_path / "out"), plan, processes=1)
        refused.append(caught)

    done = tokenize(rows, str(tmp_path / "out"), plan, processes=1, on_progress=start_another)
    assert (len(refused), done.documents) == (1, 300)


def test_one_that_begins_while_another_ends_leaves_what_that_wrote(
    tmp_path: Path, corpus: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = texts(corpus, tmp_path / "cache")
    lock = fcntl.flock

    def lock_late(descriptor: int, how: int) -> None:
        (tmp_path / ".out.unfinished").rename(tmp_path / "out")
        (tmp_path / "out" / "file").write_text("of the other")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with pytest.raises(DatasetExistsError, match="another 'strata data tokenize' has just written it"):
        tokenize(rows, str(tmp_path / "out"), TokenizePlan(tokenizer=tokenizer), processes=1)
    assert content(tmp_path / "out") == {"file": b"of the other"}
    assert not (tmp_path / ".out.unfinished").exists()


@pytest.mark.parametrize(("end", "dtype"), [(None, "uint16"), (2**16 - 1, "uint16"), (2**16, "int32")])
def test_tokens_have_the_narrowest_type_that_holds_them_all(
    tmp_path: Path, corpus: Path, tokenizer: str, end: int | None, dtype: str
) -> None:
    rows = texts(corpus, tmp_path / "cache")
    plan = TokenizePlan(tokenizer=tokenizer, end=end, rows_per_file=300)
    assert tokenize(rows, str(tmp_path / "out"), plan, processes=1).dtype == dtype
    assert {path.suffixes[0] for path in (tmp_path / "out").iterdir()} == {f".{dtype}"}


@pytest.mark.parametrize("shuffle", [False, True])
def test_prepared_files_are_the_same_for_any_number_of_processes(tmp_path: Path, shuffle: bool) -> None:
    pq.write_table(pa.table({"x": [None, *range(999)], "s": [str(n) for n in range(1000)]}), tmp_path / "a.parquet")
    rows = open_rows(tmp_path / "a.parquet", cache=tmp_path / "cache")
    plan = Plan(rows_per_file=300, rows_per_group=50, shuffle=shuffle, seed=7)
    for count in (1, 2):
        prepare(rows, str(tmp_path / str(count)), plan, processes=count)
    parts = [{name: data for name, data in content(tmp_path / each).items() if name[0] != "_"} for each in "12"]
    assert parts[0] == parts[1]
    again = open_rows(tmp_path / "1", cache=tmp_path / "cache")
    found = again.read(0, 1000).to_numpy()
    assert sorted(found["s"].tolist(), key=int) == [str(n) for n in range(1000)]
    assert int(found["x.is_null"].sum()) == 1


@pytest.mark.part("ray")
@pytest.mark.timeout(180)
def test_a_cluster_writes_the_same_bytes_and_names_what_went_wrong(
    tmp_path: Path, corpus: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray ends its node when one of its own processes starts late, which they do when coverage.py measures them.
    monkeypatch.setenv("RAY_agent_register_timeout_ms", str(round(stretch(60) * 1_000)))
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(each) for each in os.sys.path if each))
    rows = texts(corpus, tmp_path / "cache")
    plan = TokenizePlan(tokenizer=tokenizer, rows_per_file=70)
    tokenize(rows, str(tmp_path / "local"), plan, processes=1)
    shuffled = Plan(rows_per_file=80, shuffle=True, seed=1)
    prepare(rows, str(tmp_path / "prepared-local"), shuffled)

    def fail() -> None:
        raise LookupError("no row 7")

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    import ray

    try:
        tokenize(rows, str(tmp_path / "ray"), plan, engine="ray")
        prepare(rows, str(tmp_path / "prepared-ray"), shuffled, engine="ray")
        with pytest.raises(LookupError, match=r"^no row 7$"):
            list(run_tasks("ray", fail, [()]))
        with pytest.raises(DataError, match=r"a task on the Ray cluster was lost: .*; run it again"):
            list(run_tasks("ray", die, [()]))
        assert not ray.init(ignore_reinit_error=True).dashboard_url
    finally:
        ray.shutdown()
    assert content(tmp_path / "local") == content(tmp_path / "ray")
    parts = [
        {name: data for name, data in content(tmp_path / f"prepared-{each}").items() if name[0] != "_"}
        for each in ("local", "ray")
    ]
    assert parts[0] == parts[1]


@pytest.mark.part("ray")
def test_a_ray_that_cannot_be_started_or_reached_is_named_and_leaves_nothing(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = texts(corpus, tmp_path / "cache")
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RayUnavailableError, match=r"^Ray cannot be started on this machine: .*; .* --engine local"):
        prepare(rows, str(tmp_path / "out"), Plan(shuffle=True), engine="ray")
    (port,) = free_ports(1)
    for address in ("10.0.0.5:port", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RayUnavailableError, match=r"^the Ray cluster at \S+ \(RAY_ADDRESS\) cannot be reached: "):
            prepare(rows, str(tmp_path / "out"), Plan(shuffle=True), engine="ray")
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


@pytest.mark.parametrize("failures", [2, 3])
def test_a_ray_whose_processes_start_late_is_started_again(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    begun: list[dict[str, Any]] = []

    class SlowRay:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**options: Any) -> None:
            begun.append(options)
            if len(begun) <= failures:
                raise Exception("The current node timed out during startup.\nmore")  # noqa: TRY002 - as Ray does

        @staticmethod
        def shutdown() -> None:
            begun[-1]["is_cleared"] = True

    monkeypatch.setitem(os.sys.modules, "ray", SlowRay)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if failures < 3:
        start_engine("ray")
    else:
        with pytest.raises(
            RayUnavailableError, match=r"this machine: The current node timed out during startup\.; its"
        ):
            start_engine("ray")
    assert len(begun) == 3
    assert all(each["include_dashboard"] is False for each in begun)
    assert [each.get("is_cleared", False) for each in begun] == [True, True, failures == 3]


def test_an_engine_that_is_not_there_is_named(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = texts(corpus, tmp_path / "cache")
    with pytest.raises(ValueError, match="use one of local, ray"):
        prepare(rows, str(tmp_path / "out"), Plan(), engine="dask")
    monkeypatch.setitem(os.sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        prepare(rows, str(tmp_path / "out"), Plan(), engine="ray")


def test_the_command_says_how_fast_it_was_and_what_is_wrong(tmp_path: Path, corpus: Path, tokenizer: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DATA_CACHE_PATH": str(tmp_path / "cache")}
        return run_program(
            [STRATA, "data", "tokenize", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=stretch(60),
        )

    done = run(str(corpus), str(tmp_path / "out"), "--tokenizer", tokenizer, "--end", "0", "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert "tokens of 300 documents" in done.stdout
    assert "tokens/s" in done.stdout
    again = run(str(corpus), str(tmp_path / "out"), "--tokenizer", tokenizer)
    assert again.returncode == 1
    assert "there is something already" in again.stderr
    wrong = run(str(corpus), str(tmp_path / "other"), "--tokenizer", "nowhere.json")
    assert wrong.returncode == 2
    assert "there is no tokenizer at" in " ".join(wrong.stderr.split())
    wrong = run(str(corpus), str(tmp_path / "other"), "--tokenizer", tokenizer, "--column", "words")
    assert "no column 'words'" in " ".join(wrong.stderr.split())


def test_a_terminal_sees_tokens_a_second_and_a_program_gets_json(tmp_path: Path, corpus: Path, tokenizer: str) -> None:
    command = [STRATA, "data", "tokenize", corpus, tmp_path / "out", "--tokenizer", tokenizer, "--processes", "1"]
    environment = {**os.environ, "DATA_CACHE_PATH": str(tmp_path / "cache"), "TERM": "xterm", "COLUMNS": "120"}
    with Terminal() as terminal:
        done = run_program(
            [*command, "--rows-per-file", "100", "--json"],
            stdout=subprocess.PIPE,
            stderr=terminal.fd,
            text=True,
            env=environment,
            timeout=stretch(60),
        )
    said = json.loads(done.stdout)
    assert (said["documents"], said["files"]) == (300, 3)
    assert said["tokens_per_s"] > 0
    shown = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", terminal.shown)
    assert re.search(r"to out .* 300/300 documents, [1-9][\d,]* tokens/s", shown), shown


def test_tokenizers_are_transforms_on_threads_and_in_processes(tmp_path: Path, corpus: Path, tokenizer: str) -> None:
    own = load_tokenizer(tokenizer)
    batches = {}
    for processes in (0, 1):
        with open_dataset(
            corpus,
            batch_size=50,
            shuffle=False,
            transform=Tokenize(tokenizer, keep=True),
            processes=processes,
            cache=tmp_path / "c",
        ) as dataset:
            batches[processes] = list(dataset)
    assert batches[0]
    for batch in batches[0]:
        assert [row.tolist() for row in batch["tokens"]] == [own.encode(text).ids for text in batch["text"]]
    assert [row.tolist() for batch in batches[1] for row in batch["tokens"]] == [
        row.tolist() for batch in batches[0] for row in batch["tokens"]
    ]


def test_an_encoding_of_tiktoken_is_a_tokenizer() -> None:
    import tiktoken

    ranks = {bytes([value]): value for value in range(256)} | {b"ab": 256}
    encoding = tiktoken.Encoding("tiny", pat_str=r"\w+|\W", mergeable_ranks=ranks, special_tokens={})
    found = Tokenize(encoding)({"text": np.array(["abc", "ba"], object)})
    assert [row.tolist() for row in found["tokens"]] == [[256, 99], [98, 97]]
