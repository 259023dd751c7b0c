"""``strata data`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata.cli.app import main
from strata.data.rows.row_sequence import open_rows
from strata.errors import DatasetNotFoundError
from tests.testbed.pace import stretch
from tests.testbed.process import run_program, start
from tests.testbed.terminal import Terminal

if TYPE_CHECKING:
    from tests.testbed.servers import S3Server

COMMAND = Path(sys.executable).with_name("strata")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def where(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        rows = np.arange(100 * number, 100 * number + 100)
        table = pa.table({"n": rows, "text": [f"row {row} " * 20 for row in rows]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=30)
    return folder


def data(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_program([COMMAND, "data", *map(str, arguments)], capture_output=True, text=True)


def test_help_teaches_with_examples() -> None:
    shown = data("--help").stdout
    for command in ("index", "inspect", "preview", "prepare"):
        assert command in shown
        assert "Example: strata data" in data(command, "--help").stdout


def test_index_is_written_once_and_found_again(where: Path) -> None:
    done = data("index", where)
    assert done.stdout.startswith(f"300 rows in 3 parquet files; the index is {where}/_strata_index_v3_parquet_")
    said = json.loads(data("index", where, "--json").stdout)
    assert (said["rows"], said["blocks"], said["columns"]) == (300, 12, {"n": "int64", "text": "string"})
    assert Path(said["index"]).exists()
    (where / "0.parquet").write_bytes((where / "1.parquet").read_bytes() + b"x")
    done = data("inspect", where)
    assert (done.returncode, done.stdout) == (1, "")
    assert "0.parquet went from" in done.stderr
    assert "run 'strata data index' again" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_inspect_shows_columns_and_files(where: Path) -> None:
    shown = data("inspect", where, "--files").stdout
    assert "format: parquet\nrows: 300\nfiles: 3\n" in shown
    assert "n       int64" in shown
    assert "1.parquet  100   4" in shown
    said = json.loads(data("inspect", where, "--json").stdout)
    windows = [(rating["order"], rating["window_shards"]) for rating in said["shuffle"]]
    assert windows == [("sticky", 1), ("global", 4), ("global", 16), ("global", 64)]
    assert all(0 <= rating["mixing"] <= 1.1 for rating in said["shuffle"])
    assert "how random batches" in shown
    assert "order   window_shards" in shown
    said = json.loads(data("inspect", where, "--json", "--shard-size", "3", "--window-shards", "8").stdout)
    mixing = {rating["window_shards"]: rating["mixing"] for rating in said["shuffle"]}
    assert list(mixing) == [1, 4, 8, 16, 64]
    assert {rating["window_shards"]: rating["window_rows"] for rating in said["shuffle"]}[8] == 24
    assert data("inspect", where, "--window-shards", "1").returncode == 2
    assert [file["path"] for file in said["files"]] == ["0.parquet", "1.parquet", "2.parquet"]


def test_preview_shows_rows(where: Path) -> None:
    lines = data("preview", where, "--rows", 2, "--start", 99).stdout.splitlines()
    assert lines[0].split() == ["row", "n", "text"]
    assert [line.split()[:4] for line in lines[1:]] == [["99", "99", "row", "99"], ["100", "100", "row", "100"]]
    assert all(len(line) < 90 for line in lines)
    assert json.loads(data("preview", where, "-n", 1, "--columns", "n", "--json").stdout) == [{"n": 0}]
    assert data("preview", where, "--start", 1000).stdout.split() == ["row", "n", "text"]


def test_numbers_that_json_has_not_are_shown_as_text(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([np.nan, np.inf, -np.inf, 0.5]))
    found = json.loads(data("preview", tmp_path / "a.npy", "--json").stdout, parse_constant=pytest.fail)
    assert [row["data"] for row in found] == ["NaN", "Infinity", "-Infinity", 0.5]


def test_values_that_json_has_not_are_shown_as_it_can_hold_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"raw": b"a\xff", "pair": {"x": 1, "y": b"z"}, "list": [b"b", None], "day": date(2026, 7, 1), "yes": True}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    with pytest.raises(SystemExit):
        main(["data", "preview", str(tmp_path / "a.parquet"), "--json"])
    assert json.loads(capsys.readouterr().out) == [
        {"raw": "a\\xff", "pair": {"x": 1, "y": "z"}, "list": ["b", None], "day": "2026-07-01", "yes": True}
    ]


def test_of_a_dataset_without_rows_no_order_is_rated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with pytest.raises(SystemExit) as ended:
        main(["data", "inspect", str(tmp_path / "a.parquet")])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "rows: 0\n" in shown
    assert "how random" not in shown


def test_options_reach_the_format(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "a.bin")
    arguments = (tmp_path / "a.bin", "-o", "dtype=uint16", "-o", "sequence_length=4")
    assert json.loads(data("preview", *arguments, "-n", 1, "--json").stdout) == [{"tokens": [0, 1, 2, 3]}]
    (tmp_path / "a.csv").write_text("a;b\n1;2\n")
    found = data("preview", tmp_path / "a.csv", "-o", "delimiter=;", "-o", 'types={"a": "string"}', "--json").stdout
    assert json.loads(found) == [{"a": "1", "b": 2}]


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["inspect", "nowhere"], 1, "nowhere: there is no such file or directory; check the path"),
        (["inspect", "."], 1, "there are no files in it"),
        (
            ["inspect", "data", "--format", "parkett"],
            1,
            "there is no format 'parkett'; name one of these formats: arrow",
        ),
        (["inspect", "data", "-o", "dtype"], 2, "--option dtype: write it as name=value"),
        (["inspect", "data", "-o", "dtype=uint8"], 2, "format parquet has no option 'dtype'; it has verify"),
        (["inspect", "data", "-o", "verify=maybe"], 2, "verify is 'maybe', which is a str; use True or False"),
        (
            ["inspect", "data", "--format", "tokens", "-o", "sequence_length=abc"],
            2,
            "sequence_length is 'abc', which is a str; use a whole number",
        ),
        (["inspect", "data", "--format", "jsonl", "-o", "types=a"], 2, "types is 'a'; use a dict of types by column"),
        (["preview", "data", "--columns", "m"], 2, "there is no column 'm'; the columns are n, text"),
        (["prepare", "data", "data"], 1, "data: there is something already; choose another target"),
        (["inspect", "ftp://x/y"], 1, "expected /path, file:///path, s3://bucket/prefix"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    where: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, problem: str
) -> None:
    empty = where.parent / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty if arguments[-1] == "." else where.parent)
    done = data(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert problem in done.stderr
    assert done.stderr.startswith("strata: error: ")
    assert len(done.stderr.splitlines()) == 1


def test_prepare_writes_even_files_and_a_terminal_sees_progress(where: Path) -> None:
    target = where.parent / "out"
    command = [COMMAND, "data", "prepare", where, target, "--rows-per-file", "70", "--shuffle", "--seed", "3", "--json"]
    with Terminal() as terminal:
        done = run_program(command, stdout=subprocess.PIPE, stderr=terminal.fd, text=True)
    assert "rows" in terminal.shown
    said = json.loads(done.stdout)
    assert (said["files"], said["rows"]) == (5, 300)
    assert sorted(path.name for path in target.glob("*.parquet"))[0] == "part-00000-of-00005.parquet"
    rows = open_rows(target, cache=where.parent / "cache")
    found = rows.read(0, 300)["n"].tolist()
    assert found != list(range(300))
    assert sorted(found) == list(range(300))


def test_a_killed_prepare_leaves_nothing_that_looks_finished_and_the_next_one_finishes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data/a.npy", np.arange(2_000_000).reshape(-1, 4))
    target, unfinished = tmp_path / "out", tmp_path / ".out.unfinished"
    command = [COMMAND, "data", "prepare", tmp_path / "data", target, "--rows-per-file", "1000"]
    process = start(command, stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + stretch(30)
    while len(list(unfinished.glob("part-*"))) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline_s
    process.kill()
    process.wait()
    assert not target.exists()
    assert unfinished.exists()
    with pytest.raises(DatasetNotFoundError):
        open_rows(target, cache=tmp_path / "cache")
    assert run_program([*command[:-1], "100000"], capture_output=True).returncode == 0
    assert not unfinished.exists()
    rows = open_rows(target, cache=tmp_path / "cache")
    assert len(rows.index.files) == 5
    assert np.array_equal(rows.read(0, rows.num_rows)["data"], np.arange(2_000_000).reshape(-1, 4))


@pytest.mark.part("s3")
def test_urls_work_too(where: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    url = f"s3://{s3_server.bucket}/{where.parent.name}/cli"
    assert data("prepare", where, url, "--rows-per-file", 150).returncode == 0
    assert json.loads(data("inspect", f"{url}/part-*.parquet", "--json").stdout)["rows"] == 300
    assert json.loads(data("preview", url, "-n", 1, "--start", 299, "--columns", "n", "--json").stdout) == [{"n": 299}]
    missing = data("inspect", f"s3://{s3_server.bucket}/{where.parent.name}/nothing")
    assert "there are no files in it" in missing.stderr
