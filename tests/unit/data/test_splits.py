"""A place with several splits is never read as one dataset by accident: it is refused, or one split is chosen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from strata import Mixture, open_dataset
from strata.cli.app import app
from strata.data.rows.row_sequence import DatasetRows, open_rows
from strata.data.rows.splits import find_splits
from strata.errors import DatasetNotFoundError, SeveralSplitsError
from strata.run.team.dataset_options import describe_options
from strata.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, *paths: str) -> None:
    """Write files of one row each, whose value says which file it is."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"file": [path]}), folder / path)


def files_of(rows: DatasetRows) -> list[str]:
    found: list[str] = rows.read(0, rows.num_rows).to_numpy()["file"].tolist()
    return found


SPLIT = {
    "shards": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"],
    "folders": ["train/0.parquet", "train/1.parquet", "test/0.parquet"],
    "below data": ["data/train-0.parquet", "data/train-1.parquet", "data/test-0.parquet"],
    "within names": ["c4-train.0.parquet", "c4-train.1.parquet", "c4-test.0.parquet"],
    "each language": ["de/train.parquet", "en/train.parquet", "en/test.parquet"],
    "numbered": ["train1.parquet", "train2.parquet", "test.parquet"],
    "capitals": ["Train_a.parquet", "TRAIN_b.parquet", "Test.parquet"],
    "file and folder": ["train/0.parquet", "train/1.parquet", "test.parquet"],
    "Hive": ["split=train/0.parquet", "split=train/1.parquet", "split=test/0.parquet"],
    "from the end": ["a-b-train.parquet", "c-train.parquet", "c-test.parquet"],
}


@pytest.mark.parametrize("paths", SPLIT.values(), ids=SPLIT)
def test_splits_are_named_and_one_is_chosen(tmp_path: Path, paths: list[str]) -> None:
    write(tmp_path, *paths)
    with pytest.raises(SeveralSplitsError, match=r"splits test, train.*split='test'.*split='all'") as caught:
        open_rows(str(tmp_path))
    assert caught.value.splits == ["test", "train"]
    for split in ("train", "test"):
        found = files_of(open_rows(str(tmp_path), split=split))
        assert found == sorted(path for path in paths if split in path.lower())
    assert files_of(open_rows(str(tmp_path), split="all")) == sorted(paths)


@pytest.mark.parametrize("words", ["train validation", "train val", "train valid", "dev eval", "training testing"])
def test_each_usual_name_of_a_split_is_known(tmp_path: Path, words: str) -> None:
    write(tmp_path, *(f"{word}-0.parquet" for word in words.split()))
    with pytest.raises(SeveralSplitsError, match=", ".join(sorted(words.split()))):
        open_rows(str(tmp_path))


def test_beside_known_splits_any_name_is_a_split(tmp_path: Path) -> None:
    write(tmp_path, "train-0.parquet", "test-0.parquet", "unsupervised-0.parquet")
    with pytest.raises(SeveralSplitsError, match="test, train, unsupervised"):
        open_rows(str(tmp_path))
    assert files_of(open_rows(str(tmp_path), split="unsupervised")) == ["unsupervised-0.parquet"]
    assert files_of(open_rows(str(tmp_path), split="test+train")) == ["test-0.parquet", "train-0.parquet"]


@pytest.mark.parametrize(
    "paths",
    [
        ["test_set_of_books/0.parquet", "books/0.parquet"],
        ["train-0.parquet", "train-1.parquet"],
        ["trains/0.parquet", "tests/0.parquet"],
        ["latest.parquet", "constraint.parquet", "evaluated.parquet"],
        ["train/eval-0.parquet", "train/part-0.parquet"],
        ["env=test/0.parquet", "env=dev/0.parquet"],
    ],
)
def test_names_that_only_look_like_splits_are_one_dataset(tmp_path: Path, paths: list[str]) -> None:
    write(tmp_path, *paths)
    assert sorted(files_of(open_rows(str(tmp_path)))) == sorted(paths)


def test_what_is_named_on_purpose_is_not_refused(tmp_path: Path) -> None:
    write(tmp_path, "train-0.parquet", "test-0.parquet")
    for address in (
        tmp_path / "train-0.parquet",
        f"{tmp_path}/train-*.parquet",
        [tmp_path / "train-0.parquet", tmp_path / "test-0.parquet"],
        f"{tmp_path}/{{train,test}}-0.parquet",
    ):
        assert open_rows(address).num_rows in (1, 2)
    (tmp_path / "README.md").write_text("what lies beside data is no split")
    assert files_of(open_rows(f"{tmp_path}/train-*")) == ["train-0.parquet"]


def test_patterns_stores_and_each_address_of_a_list_are_looked_at(tmp_path: Path) -> None:
    write(tmp_path, "a/train-0.parquet", "a/test-0.parquet", "b/0.parquet")
    for address in (f"{tmp_path}/a/*.parquet", f"{tmp_path}/**/t*.parquet", [tmp_path / "b", tmp_path / "a"]):
        with pytest.raises(SeveralSplitsError, match="test, train"):
            open_rows(address)
    with pytest.raises(SeveralSplitsError, match="test, train"):
        open_rows("a", storage=LocalStorage(tmp_path))
    assert files_of(open_rows("a", storage=LocalStorage(tmp_path), split="train")) == ["a/train-0.parquet"]
    both = [f"{tmp_path}/a/*.parquet", f"{tmp_path}/a"]
    assert files_of(open_rows(both, split="train")) == ["a/train-0.parquet"] * 2


def test_a_split_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    write(tmp_path, "train-0.parquet", "test-0.parquet")
    with pytest.raises(DatasetNotFoundError, match=r"no split 'dev'.*test, train"):
        open_rows(str(tmp_path), split="dev")
    write(tmp_path / "plain", "0.parquet")
    with pytest.raises(DatasetNotFoundError, match=r"no split 'train'.*leave out split"):
        open_rows(tmp_path / "plain", split="train")
    with pytest.raises(ValueError, match="split is ''"):
        open_rows(str(tmp_path), split="")
    with pytest.raises(TypeError, match="split is 3"):
        open_dataset(str(tmp_path), batch_size=1, split=3)  # type: ignore[arg-type]  # on purpose


def test_a_saved_datasetdict_is_several_splits_whatever_their_names(tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        with pa.ipc.new_stream(str(tmp_path / name / "data-00000-of-00001.arrow"), pa.schema([("x", "string")])) as out:
            out.write_table(pa.table({"x": [name]}))
        (tmp_path / name / "state.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["left", "right"]}))
    for address in (str(tmp_path), f"{tmp_path}/**/*.arrow", f"{tmp_path}/*/*.arrow"):
        with pytest.raises(SeveralSplitsError, match="left, right"):
            open_rows(address)
        assert open_rows(address, split="left").read(0, 1).to_numpy()["x"].tolist() == ["left"]
    assert open_rows(tmp_path / "left").num_rows == 1


def test_each_split_has_an_index_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "train-0.parquet", "train-1.parquet", "test-0.parquet")
    run = CliRunner()
    for split, count in (("train", 2), ("test", 1), ("all", 3)):
        done = run.invoke(app, ["data", "index", str(tmp_path), "--split", split, "--json"])
        assert json.loads(done.stdout)["rows"] == count, done.output
        assert open_rows(str(tmp_path), split=split).num_rows == count
    refused = run.invoke(app, ["data", "index", str(tmp_path)])
    assert refused.exit_code != 0
    assert isinstance(refused.exception, SeveralSplitsError) or "--split" in refused.output
    index = open_rows(str(tmp_path), split="train").index
    assert open_rows(str(tmp_path), index=index, split="train").num_rows == 2


@pytest.mark.parametrize("command", [["inspect"], ["preview"], ["prepare", "{target}"]])
def test_commands_take_a_split(tmp_path: Path, command: list[str]) -> None:
    write(tmp_path / "data", "train-0.parquet", "train-1.parquet", "test-0.parquet")
    name, *rest = (each.format(target=tmp_path / "target") for each in command)
    done = CliRunner().invoke(app, ["data", name, str(tmp_path / "data"), *rest, "--split", "train", "--json"])
    assert done.exit_code == 0, done.output
    assert "test-0" not in done.stdout
    if rest:
        assert open_rows(rest[0]).num_rows == 2


def test_the_split_is_part_of_what_workers_compare(tmp_path: Path) -> None:
    write(tmp_path, "train-0.parquet", "test-0.parquet")
    train, test = (open_dataset(str(tmp_path), batch_size=1, order="global", split=each) for each in ("train", "test"))
    assert describe_options(train, block_size=1)["split"] == "train"
    mixture = Mixture([train, test], weights=[1, 1])
    assert describe_options(mixture, block_size=1)["split"] == ["train", "test"]


def test_paths_without_known_words_have_no_splits() -> None:
    assert find_splits(["a/0.parquet", "b/0.parquet"]) == {}
    assert find_splits([]) == {}
