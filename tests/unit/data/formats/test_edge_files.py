"""Files at the edges of what their formats allow are read as their own libraries do, or named with what to do."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import ParseOptions

from strata import open_dataset
from strata.data.formats.text import lines
from strata.data.text.megatron import MegatronRows, write_megatron
from strata.data.text.tokenizers import Tokenize
from strata.errors import CorruptFileError, DataError, DatasetNotFoundError, SchemaMismatchError


def read(source: Any, **options: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    with open_dataset(source, batch_size=2, shuffle=False, **options) as dataset:
        for batch in dataset:
            for name, values in batch.items():
                found.setdefault(name, []).extend(values.tolist())
    return found


@pytest.mark.parametrize("text", ["null\n", 'null\n{"a": 1}\n', '\n  null\n{"a": 1}\n', '{"a": 1}\nnull\n'])
def test_a_line_of_json_that_is_null_is_named(tmp_path: Path, text: str) -> None:
    # Arrow ends the process with a segmentation fault if the first record is null.
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(CorruptFileError, match="the line is not an object") as caught:
        read(tmp_path)
    assert caught.value.part == ("record 1" if text.startswith("{") else "record 0")


def test_a_null_inside_of_an_object_may_stand_on_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a":\nnull}\n{"a": 1}\n')
    assert read(tmp_path) == {"a": [0, 1], "a.is_null": [True, False]}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("nothing", ["", "\n\n", "header"])
def test_a_file_without_rows_changes_no_column(tmp_path: Path, kind: str, nothing: str) -> None:
    nothing = ("a,b\n" if kind == "csv" else "") if nothing == "header" else nothing
    (tmp_path / f"0.{kind}").write_text(nothing)
    (tmp_path / f"1.{kind}").write_text("a,b\n1,2\n" if kind == "csv" else '{"a": 1, "b": 2}\n')
    (tmp_path / f"2.{kind}").write_text(nothing)
    assert read(tmp_path) == {"a": [1], "b": [2]}


def test_a_parquet_file_without_rows_may_have_other_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "1.parquet")
    assert read(tmp_path) == {"a": [1, 2]}


def test_only_a_column_that_is_read_needs_a_name_for_its_mask(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, None], "a.is_null": [3, 4], "b": [5, 6]}), tmp_path / "a.parquet")
    assert read(tmp_path, columns=["b"]) == {"b": [5, 6]}
    assert read(tmp_path, columns=["a.is_null"]) == {"a.is_null": [3, 4]}
    for columns in (None, ["a"]):
        with pytest.raises(DataError, match=r"'a' has missing values and 'a.is_null' is a column already"):
            read(tmp_path, columns=columns)
    table = pq.read_table(tmp_path / "a.parquet")
    assert read(table, columns=["b"]) == {"b": [5, 6]}


@pytest.mark.filterwarnings("ignore:Feather V1")
def test_feather_of_the_first_version_is_named(tmp_path: Path) -> None:
    pf.write_feather(pa.table({"a": [1]}), str(tmp_path / "a.feather"), version=1)
    with pytest.raises(CorruptFileError, match=r"Feather file of version 1.*write it again"):
        read(tmp_path)


def test_arrays_with_fields_in_a_tar_are_bytes(tmp_path: Path) -> None:
    data = io.BytesIO()
    np.save(data, np.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("a.npy")
        member.size = len(data.getvalue())
        archive.addfile(member, io.BytesIO(data.getvalue()))
    assert read(tmp_path, columns=["npy"]) == {"npy": [data.getvalue()]}


@pytest.mark.filterwarnings("ignore:Stored array in format:UserWarning")
@pytest.mark.parametrize("name", ["é", "日", "x" * 300])
def test_fields_of_an_array_may_have_any_name(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "a.npy", np.array([(1,), (2,)], dtype=[(name, "i4")]))
    assert read(tmp_path) == {name: [1, 2]}


def test_a_link_that_leads_to_nothing_is_named_and_never_a_smaller_dataset(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "gone.parquet")
    (tmp_path / ".hidden.parquet").symlink_to(tmp_path / "gone.parquet")
    with pytest.raises(DatasetNotFoundError, match=r"b\.parquet: this link leads to nothing"):
        read(tmp_path)
    assert read(str(tmp_path / "a*.parquet")) == {"a": [1]}


@pytest.mark.parametrize(
    ("documents", "dtype", "problem"),
    [
        ([[1], [1.5]], "uint16", "document 1 is .* no list of token numbers"),
        ([[[1, 2]]], "uint16", "document 0 is .* no list of token numbers"),
        ([["a"]], "uint16", "no list of token numbers"),
        ([[True]], "uint16", "no list of token numbers"),
        ([[1, -1]], "uint16", "document 0 has token -1, which uint16 cannot hold"),
        ([[1, 70_000]], "uint16", "document 0 has token 70000, which uint16 cannot hold"),
        ([[1]], "float32", "dtype='float32' is not one of Megatron's"),
        ([[1]], "int3", "dtype='int3' is not one of Megatron's"),
    ],
)
def test_documents_that_megatron_cannot_hold_are_named_and_never_changed(
    tmp_path: Path, documents: Any, dtype: str, problem: str
) -> None:
    write_megatron(tmp_path / "a", [[1, 2, 3]])
    with pytest.raises(ValueError, match=problem):
        write_megatron(tmp_path / "a", documents, dtype=dtype)
    if "dtype=" in problem:
        assert MegatronRows(tmp_path / "a").num_tokens == 3
    else:
        # The index of the earlier pair is no index of what was begun.
        with pytest.raises(DatasetNotFoundError):
            MegatronRows(tmp_path / "a")


def test_bytes_behind_the_documents_of_megatron_are_left_alone(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", [[1, 2], [3]], dtype="uint16")
    with (tmp_path / "a.bin").open("ab") as file:
        file.write(b"x")
    assert [row.tolist() for row in MegatronRows(tmp_path / "a").read(0, 2).to_numpy()["tokens"]] == [[1, 2], [3]]


def test_tokens_that_are_no_whole_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="no whole numbers"):
        Tokenize(lambda texts: [[1.5] for _ in texts])({"text": np.array(["a"], object)})
    (tokens,) = Tokenize(lambda texts: [[] for _ in texts])({"text": np.array([""], object)})["tokens"]
    assert json.dumps(tokens.tolist()) == "[]"
    assert tokens.dtype == np.int32


def test_a_dataset_of_arrow_is_read_as_arrow_reads_it_or_named(tmp_path: Path) -> None:
    for folder in ("plain", "deep/2020", "hive/k=1"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / folder / "part-0")
    plain = ds.dataset(tmp_path / "plain", format="parquet")
    assert read(plain) == {"a": [1, 2], "b": ["x", "y"]}
    with pytest.raises(TypeError, match="has a filter, which its files know nothing of"):
        read(plain.filter(ds.field("a") > 1))
    assert read(plain.filter(ds.field("a") > 1).to_table()) == {"a": [2], "b": ["y"]}
    for other in (
        ds.dataset(tmp_path / "deep", format="parquet", partitioning=["year"]),
        ds.dataset(tmp_path / "hive", format="parquet", partitioning="hive"),
        ds.dataset(tmp_path / "plain", format="parquet", schema=pa.schema({"a": pa.int64()})),
    ):
        with pytest.raises(TypeError, match=r"has the columns .*, and its files have a, b; give the directory"):
            read(other)
        assert read(other, columns=["a"])["a"] == [1, 2]
        assert read(other.to_table())["a"] == [1, 2]
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("a;b\n1;2\n")
    with pytest.raises(TypeError, match="has the columns a, b, and its files have a;b"):
        read(ds.dataset(tmp_path / "csv", format=ds.CsvFileFormat(ParseOptions(delimiter=";"))))


@pytest.mark.parametrize("values", [[1, "a"], [2**60 + 5, 0.5], ["a\0", "b"], [b"a\0", b"b"], [[1], [2, 3]]])
def test_a_list_that_an_array_would_change_is_named(values: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"'a' (is a list whose values|has rows of different lengths)"):
        read({"a": values})


@pytest.mark.parametrize("values", [[1, 2], [0.5, 1], [float("inf")], [[1, 2], (3, 4)], ["a", ""], [None, 1], [True]])
def test_a_list_that_an_array_holds_is_read(values: list[Any]) -> None:
    assert json.dumps(read({"a": values})["a"]) == json.dumps(np.asarray(values).tolist())
    assert np.isnan(read({"a": [float("nan")]})["a"][0])


@pytest.mark.part("torch")
def test_arrays_of_another_byte_order_become_tensors() -> None:
    import torch

    with open_dataset({"a": np.arange(3, dtype=">i4")}, batch_size=3, shuffle=False, to="torch") as dataset:
        (batch,) = dataset
    assert batch["a"].dtype == torch.int32
    assert batch["a"].tolist() == [0, 1, 2]


def test_columns_of_objects_have_one_name_each_and_it_is_text() -> None:
    with pytest.raises(ValueError, match="the table has two columns 'a'"):
        read(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))
    with pytest.raises(TypeError, match="1 is no name of a column"):
        read({1: [1, 2]})


@pytest.mark.parametrize("order", ["le", "be"])
def test_csv_in_utf_16_is_named(tmp_path: Path, order: str) -> None:
    (tmp_path / "a.csv").write_bytes("\ufeffa,b\n1,2\n".encode(f"utf-16-{order}"))
    with pytest.raises(CorruptFileError, match="begins as UTF-16 does; convert it to UTF-8"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.tsv", "a\tb\n\t\n\n\t\n", {"a": [None, None], "b": [None, None]}),
        ("a.csv", "a\n \n  \n", {"a": [" ", "  "]}),
    ],
)
def test_lines_of_nothing_but_blanks_are_records(
    tmp_path: Path, name: str, text: str, expected: dict[str, list[Any]]
) -> None:
    (tmp_path / name).write_text(text)
    own = pa.csv.read_csv(tmp_path / name, parse_options=ParseOptions(delimiter="\t" if name == "a.tsv" else ","))
    assert own.to_pydict() == expected
    assert {column: read(tmp_path)[column] for column in expected} == expected


@pytest.mark.parametrize("line", ["a,b,a", "a,b\0"])
def test_a_first_line_of_csv_that_is_no_header_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.csv").write_text(f"{line}\n1,2,3\n")
    with pytest.raises(CorruptFileError, match=r"\(header, byte 0\).*no header with a name for each.*header=false"):
        read(tmp_path)


def test_csv_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_bytes(b"\xef\xbb\xbf1,x\n2,y\n")
    (tmp_path / "1.csv").write_text("\n3,z\n")
    found = read(tmp_path, options={"header": False})
    assert found == {"f0": [1, 2, 3], "f1": ["x", "y", "z"]}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "undefined"])
def test_an_encoding_whose_lines_cannot_be_found_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match=f"encoding='{encoding}' does not keep ASCII as it is; convert the files to U"):
        read(tmp_path, options={"encoding": encoding})
    assert read(tmp_path, options={"encoding": "UTF8"}) == {"a": [1]}


@pytest.mark.parametrize("line", ['{"a": 1, "b"', '{"a" 1}\nnull'])
def test_a_bad_line_is_named_also_where_a_column_is_read_as_text(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "x"}\n{"a": 1}\n' + line + "\n")
    for options in ({}, {"types": {"a": "string"}}):
        with pytest.raises(CorruptFileError, match=r"record 2, byte 20\)"):
            read(tmp_path, options=options)


def test_numbers_with_and_without_a_fraction_are_floats_in_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 0.5}\n{"a": 9223372036854775808}\n')
    assert read(tmp_path) == {"a": [0.5, 2.0**63]}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("1", "-1", [1, -1]),
        ("1", str(2**64 - 1), [1, 2**64 - 1]),
        ("-1", str(2**64 - 1), ["-1", str(2**64 - 1)]),
        ("1", str(2**70), ["1", str(2**70)]),
        ("null", "7", [None, 7]),
        ("1", "0.5", [1.0, 0.5]),
    ],
)
@pytest.mark.parametrize("is_one_file", [True, False])
def test_values_of_json_in_two_places_get_a_type_that_holds_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, expected: list[Any], is_one_file: bool
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1)
    write_both(tmp_path, first, second, is_one_file=is_one_file)
    found = read(tmp_path)
    if None in expected:
        assert found == {"a": [0, 7], "a.is_null": [True, False]}
    else:
        assert found == {"a": expected}


def write_both(folder: Path, first: str, second: str, *, is_one_file: bool) -> None:
    """Write two records as two files, or one after the other."""
    texts = [f'{{"a": {value}}}\n' for value in (first, second)]
    for number, text in enumerate(["".join(texts)] if is_one_file else texts):
        (folder / f"{number}.jsonl").write_text(text)


@pytest.mark.parametrize("is_one_file", [True, False])
def test_values_of_json_that_no_type_holds_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_one_file: bool
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1)
    write_both(tmp_path, "1", '"x"', is_one_file=is_one_file)
    problem = r"int64 vs string; give the column a type, as in types=\{'a': 'string'\}"
    with pytest.raises(CorruptFileError if is_one_file else SchemaMismatchError, match=problem) as caught:
        read(tmp_path)
    assert not is_one_file or "records 1 to 1" in str(caught.value)
    assert read(tmp_path, options={"types": {"a": "string"}}) == {"a": ["1", "x"]}
