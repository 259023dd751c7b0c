"""Packing and buckets: nothing is lost or doubled, and each batch is a resume point."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
import types
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from strata import Mixture
from strata.data import open_dataset
from strata.data.text.assembled import bucket_dataset, merge_assembled_states, pack_dataset
from strata.data.text.megatron import MegatronRows, write_megatron
from strata.data.text.packing import BestFitPacker, GreedyPacker, LengthBuckets, make_packer, stack_sequences
from strata.data.text.tokenizers import Tokenize, load_tokenizer, vocabulary_size
from strata.errors import (
    CorruptFileError,
    DamagedRecordError,
    DatasetNotFoundError,
    MissingExtraError,
    PositionMismatchError,
)

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


def documents_of(lengths: list[int]) -> list[Any]:
    starts = np.cumsum([0, *lengths])
    return [np.arange(start, start + length) for start, length in zip(starts, lengths, strict=False)]


def drain(packer: Any, documents: list[Any]) -> list[list[Any]]:
    found = [group for document in documents for group in packer.add(document)]
    return [*found, *packer.flush()]


@given(lengths=LENGTHS, size=st.integers(1, 16))
def test_greedy_packing_keeps_every_token_in_order_and_pads_only_the_end(lengths: list[int], size: int) -> None:
    found = drain(GreedyPacker(size), documents_of(lengths))
    flat = [int(token) for group in found for piece in group for token in piece]
    assert flat == list(range(sum(lengths)))
    assert all(sum(map(len, group)) == size for group in found[:-1])


@given(lengths=LENGTHS, size=st.integers(1, 16), bins=st.integers(1, 5))
def test_best_fit_keeps_documents_whole_if_they_can_be(lengths: list[int], size: int, bins: int) -> None:
    packer = BestFitPacker(size, bins=bins)
    found = drain(packer, documents_of(lengths))
    flat = sorted(int(token) for group in found for piece in group for token in piece)
    assert flat == list(range(sum(lengths)))
    assert all(0 < sum(map(len, group)) <= size for group in found)
    whole = [length for length in lengths if 0 < length <= size]
    pieces = [len(piece) for group in found for piece in group]
    for length in set(whole):
        assert pieces.count(length) >= whole.count(length)


@given(lengths=LENGTHS, cut=st.integers(0, 60), kind=st.sampled_from(["greedy", "best_fit", "buckets"]))
def test_what_is_carried_over_is_all_there_is_to_know(lengths: list[int], cut: int, kind: Any) -> None:
    def make() -> Any:
        return LengthBuckets([4, 8, 40], batch_size=3) if kind == "buckets" else make_packer(kind, 11, bins=3)

    documents = documents_of(lengths)
    straight, first, second = make(), make(), make()
    expected = drain(straight, documents)
    found = [group for document in documents[:cut] for group in first.add(document)]
    assert second.restore(first.carry()) == []
    found += drain(second, documents[cut:])
    assert [[p.tolist() for p in g] for g in found] == [[p.tolist() for p in g] for g in expected]


def test_a_packed_batch_says_where_documents_end() -> None:
    batch = stack_sequences([[np.array([1, 2, 3]), np.array([4, 5])], [np.array([6])]], 6, pad_id=9)
    assert batch["tokens"].tolist() == [[1, 2, 3, 4, 5, 9], [6, 9, 9, 9, 9, 9]]
    assert batch["labels"].tolist() == [[2, 3, -100, 5, -100, -100], [-100] * 6]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 1, 1, -1], [0, -1, -1, -1, -1, -1]]
    assert batch["cu_seqlens"].tolist() == [0, 3, 5, 6, 7, 12]
    assert batch["max_seqlen"] == 5


def table_of(count: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({"tokens": [np.arange(n) + 1000 * row for row, n in enumerate(rng.integers(0, 30, count))]})


def open_kind(kind: str, table: pa.Table, **options: Any) -> Any:
    dataset = open_dataset(table, batch_size=3, seed=1, shard_size=8, **options)
    if kind == "buckets":
        return bucket_dataset(dataset, boundaries=[8, 16, 32], batch_size=3)
    return pack_dataset(dataset, sequence_length=16, batch_size=2, strategy=kind, bins=4)


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in batch.items()}


@pytest.mark.parametrize("kind", ["greedy", "best_fit", "buckets"])
@pytest.mark.parametrize("order", ["sticky", "global"])
@pytest.mark.parametrize("epochs", [1, 2, pytest.param(None, marks=pytest.mark.slow)])
def test_every_batch_is_a_resume_point_also_across_epochs(kind: str, order: str, epochs: int | None) -> None:
    table = table_of(50)
    with open_kind(kind, table, order=order, epochs=epochs) as dataset:
        expected, states = [], []
        for _ in range(2):
            for batch in islice(dataset, 90):
                expected.append(plain(batch))
                states.append(json.loads(json.dumps(dataset.state_dict())))
    assert sum(len(row) for batch in expected for row in batch["tokens"]) > 0
    for number in range(0, len(states), 3):
        with open_kind(kind, table, order=order, epochs=epochs) as again:
            again.load_state_dict(states[number])
            found = [plain(batch) for _ in range(2) for batch in islice(again, 90)]
        assert found[: len(expected) - number - 1] == expected[number + 1 :], number


@pytest.mark.parametrize("kind", ["greedy", "best_fit"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_packed_position_of_two_ranks_can_be_loaded_by_another_number(kind: str, ranks: int) -> None:
    table = table_of(60)
    seen: list[int] = []
    states = []
    for rank in range(2):
        with open_kind(kind, table, rank=rank, world_size=2) as dataset:
            for _, batch in zip(range(2), dataset, strict=False):
                seen += batch["tokens"][batch["document_ids"] >= 0].tolist()
            states.append(dataset.state_dict())
    for rank, state in enumerate(merge_assembled_states(states, world_size=ranks)):
        with open_kind(kind, table, rank=rank, world_size=ranks) as dataset:
            dataset.load_state_dict(json.loads(json.dumps(state)))
            for batch in dataset:
                seen += batch["tokens"][batch["document_ids"] >= 0].tolist()
    assert sorted(seen) == sorted(token for row in table["tokens"].to_pylist() for token in row)


def test_states_of_ranks_in_different_epochs_merge_to_one_that_has_all_that_is_left() -> None:
    table = table_of(40)
    seen: list[int] = []
    states = []
    for rank, epochs in enumerate((1, 0)):
        with open_kind("greedy", table, rank=rank, world_size=2) as dataset:
            for batch in itertools.chain(*itertools.repeat(dataset, epochs), itertools.islice(dataset, 1)):
                seen += batch["tokens"][batch["document_ids"] >= 0].tolist()
            states.append(dataset.state_dict())
    assert [state["epoch"] for state in states] == [1, 0]
    (merged,) = merge_assembled_states(states, world_size=1)
    with open_kind("greedy", table) as dataset:
        dataset.load_state_dict(json.loads(json.dumps(merged)))
        for batch in itertools.chain(dataset, dataset):
            seen += batch["tokens"][batch["document_ids"] >= 0].tolist()
    assert sorted(seen) == sorted(2 * [token for row in table["tokens"].to_pylist() for token in row])


def test_what_is_dropped_at_the_end_of_an_epoch_is_not_in_the_next() -> None:
    packed = pack_dataset(documents([[1, 2, 3], [4, 5], [6]]), sequence_length=4, batch_size=1, drop_last=True)
    for _ in range(2):
        assert [batch["tokens"].tolist() for batch in packed] == [[[1, 2, 3, 4]]]


def test_buckets_of_another_number_of_ranks_are_refused_with_the_batch_size_that_was_meant() -> None:
    def buckets(world_size: int, **options: Any) -> Any:
        opened = documents([[1, 2], [3]], order="global", world_size=world_size)
        return bucket_dataset(opened, boundaries=[4], **options)

    for name in ("batch_size", "batch_tokens"):
        state = buckets(4, **{name: 8}).state_dict()
        with pytest.raises(
            PositionMismatchError,
            match=f"counts all ranks that share a batch, here 2: give {name}=16 with so many ranks",
        ):
            buckets(2, **{name: 8}).load_state_dict(state)
        buckets(2, **{name: 16}).load_state_dict(state)
        with pytest.raises(PositionMismatchError, match=f"{name} was 32 and is 24; .* that divides 32"):
            buckets(3, **{name: 8}).load_state_dict(state)


def test_a_position_of_another_packing_is_refused() -> None:
    table = table_of(5)
    with open_kind("greedy", table) as dataset, pytest.raises(PositionMismatchError, match="best_fit"):
        dataset.load_state_dict(open_kind("best_fit", table).state_dict())
    with pytest.raises(PositionMismatchError, match="packing was 'greedy' and is 'best_fit'"):
        merge_assembled_states([open_kind(kind, table).state_dict() for kind in ("greedy", "best_fit")])
    with pytest.raises(ValueError, match="there are no states; give those of all ranks"):
        merge_assembled_states([])


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_files_of_megatron_come_back_as_they_were_written(tmp_path: Path, dtype: str) -> None:
    documents = [np.arange(n) for n in (3, 0, 700, 1)]
    assert write_megatron(tmp_path / "train", documents, dtype=dtype) == 704
    rows = MegatronRows(tmp_path / "train")
    assert rows.num_rows == 4
    assert [row.tolist() for row in rows.read(0, 4).to_numpy()["tokens"]] == [each.tolist() for each in documents]
    assert rows.read(2, 3).to_numpy()["tokens"][0].dtype == np.dtype(dtype)
    sent = pickle.loads(pickle.dumps(rows))
    assert sent.read(2, 4)["tokens"].to_pylist() == rows.read(2, 4, ["tokens"])["tokens"].to_pylist()
    with pytest.raises(ValueError, match="the only column is 'tokens'"):
        rows.read(0, 4, ["text"])
    with open_dataset(rows, batch_size=2) as dataset:
        packed = pack_dataset(dataset, sequence_length=64, batch_size=4)
        total = sum(int((batch["document_ids"] >= 0).sum()) for batch in packed)
    assert total == 704


def test_an_index_of_sentences_gives_whole_documents(tmp_path: Path) -> None:
    import struct

    # As Megatron's own builder writes it: four sequences, of which the first three are one document.
    sizes, pointers, bounds = np.array([2, 1, 2, 3], "<i4"), np.array([0, 8, 12, 20], "<i8"), np.array([0, 3, 4], "<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 4, 3)
    (tmp_path / "a.idx").write_bytes(head + sizes.tobytes() + pointers.tobytes() + bounds.tobytes())
    (tmp_path / "a.bin").write_bytes(np.arange(8, dtype="<i4").tobytes())
    assert [row.tolist() for row in MegatronRows(tmp_path / "a.idx").read(0, 2).to_numpy()["tokens"]] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7],
    ]
    turned = bounds[[1, 0, 2]]
    for content, problem in (
        (
            head[:9] + struct.pack("<QB", 2, 4) + head[18:],
            r"byte 9\) .*of version 2 with tokens of kind 4, which are not known",
        ),
        (
            head[:9] + struct.pack("<QB", 1, 6) + head[18:],
            r"byte 9\) .*of version 1 with tokens of kind 6, which are not known",
        ),
        (head + sizes.tobytes(), r"byte 50\) .*it ends there, but 106 bytes are needed"),
        (head + sizes.tobytes() + pointers.tobytes() + turned.tobytes(), "its documents are not in order"),
    ):
        (tmp_path / "a.idx").write_bytes(content)
        with pytest.raises(CorruptFileError, match=rf"a\.idx .*{problem}"):
            MegatronRows(tmp_path / "a")
    (tmp_path / "a.idx").write_bytes(head + sizes.tobytes() + pointers.tobytes() + bounds.tobytes())
    (tmp_path / "a.bin").write_bytes(bytes(20))
    with pytest.raises(CorruptFileError, match="32 bytes are needed"):
        MegatronRows(tmp_path / "a")
    (tmp_path / "a.idx").write_bytes(b"nonsense" * 10)
    with pytest.raises(CorruptFileError, match="does not begin as an index"):
        MegatronRows(tmp_path / "a")
    with pytest.raises(DatasetNotFoundError, match=r"b\.idx"):
        MegatronRows(tmp_path / "b")


def letters(texts: list[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def test_a_function_is_a_tokenizer_and_missing_texts_are_empty() -> None:
    with open_dataset(
        pa.table({"text": ["ab", None, "c"], "n": [1, 2, 3]}),
        batch_size=3,
        shuffle=False,
        transform=Tokenize(letters, end=0),
    ) as dataset:
        (batch,) = dataset
    assert [row.tolist() for row in batch["tokens"]] == [[97, 98, 0], [0], [99, 0]]
    assert "text" not in batch
    assert batch["n"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("bad", [lambda texts: [], 7, "nowhere.json"])
def test_what_is_no_tokenizer_is_named(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="tokenizer"):
        Tokenize(bad)({"text": np.array(["a"], object)})
    with pytest.raises(ValueError, match="no column 'words' to tokenize"):
        Tokenize(letters, column="words")({"text": np.array(["a"], object)})
    with pytest.raises(ValueError, match="does not fit into uint8"):
        Tokenize(lambda texts: [[300]], dtype="uint8")({"text": np.array(["a"], object)})


def save_tokenizer(path: Path) -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(path))
    return made


def test_a_tokenizer_has_a_path_or_a_directory_or_is_inside_of_another(tmp_path: Path) -> None:
    own = save_tokenizer(tmp_path / "tokenizer.json")
    # As the fast tokenizers of transformers have it.
    outer = types.SimpleNamespace(backend_tokenizer=own)
    for tokenizer in (tmp_path / "tokenizer.json", str(tmp_path), own, outer):
        found = Tokenize(tokenizer)({"text": np.array(["b a", "b"], object)})
        assert [row.tolist() for row in found["tokens"]] == [[1, 0], [1]]
    assert vocabulary_size(own) == 2


def test_a_tokenizer_of_tiktoken_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {bytes([value]): value for value in range(256)} | {b"ab": 256}
    encoding = tiktoken.Encoding("tiny", pat_str=r"\w+|\W", mergeable_ranks=ranks, special_tokens={})
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "tiny", encoding)
    found = Tokenize("tiktoken:tiny")({"text": np.array(["abc", "ba"], object)})
    assert [row.tolist() for row in found["tokens"]] == [[256, 99], [98, 97]]
    assert vocabulary_size(load_tokenizer("tiktoken:tiny")) == 257


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer: "):
        Tokenize(tmp_path / "tokenizer.json")


def test_without_the_libraries_of_tokenizers_a_transform_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tokenizer(tmp_path / "tokenizer.json")
    for name, spec, what in (
        ("tokenizers", str(tmp_path / "tokenizer.json"), r"a tokenizer\.json"),
        ("tiktoken", "tiktoken:gpt2", "tiktoken"),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=rf"tokenizing with {what} needs .*\[text\]"):
            Tokenize(spec)


@pytest.mark.parametrize("kind", ["greedy", "best_fit", "buckets"])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_in_global_order_packed_batches_are_the_same_for_any_number_of_ranks(kind: Any, is_mixed: bool) -> None:
    def ranks(world_size: int) -> list[Any]:
        made = []
        for rank in range(world_size):
            share = {"rank": rank, "world_size": world_size, "global_batch_size": 12}
            parts = [
                open_dataset(table_of(count), batch_size=12 // world_size, order="global", shard_size=8, **share)
                for count in ((50, 30) if is_mixed else (50,))
            ]
            documents = Mixture(parts, [2, 1]) if is_mixed else parts[0]
            size = 6 // world_size
            made.append(
                bucket_dataset(documents, boundaries=[8, 16, 32], batch_size=size)
                if kind == "buckets"
                else pack_dataset(documents, sequence_length=16, batch_size=size, strategy=kind, bins=4)
            )
        return made

    def steps(parts: list[Any]) -> list[list[list[int]]]:
        return [[row for part in step for row in part["tokens"].tolist()] for step in zip(*parts, strict=True)]

    (single,) = ranks(1)
    whole = steps([single])
    assert steps(ranks(3)) == whole
    first = ranks(2)
    begun = [
        [row for part in step for row in part["tokens"].tolist()]
        for step in itertools.islice(zip(*first, strict=True), 4)
    ]
    states = [json.loads(json.dumps(each.state_dict())) for each in first]
    assert all(state == states[0] for state in states)
    again = ranks(3)
    for each, state in zip(again, merge_assembled_states(states, world_size=3), strict=True):
        each.load_state_dict(state)
    assert begun + steps(again) == whole


def documents(tokens: list[Any], **options: Any) -> Any:
    return open_dataset(pa.table({"tokens": tokens}), batch_size=2, shuffle=False, **options)


def test_a_missing_document_has_no_tokens() -> None:
    packed = pack_dataset(documents([[1, 2, 3], None, [], [4, 5]]), sequence_length=4, batch_size=1)
    assert [batch["tokens"].tolist() for batch in packed] == [[[1, 2, 3, 4]], [[5, 0, 0, 0]]]


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="there is no column 'words'; the columns are tokens"):
        list(pack_dataset(documents([[1]]), sequence_length=4, batch_size=1, column="words"))


@pytest.mark.parametrize("column", [["a", "b"], [1, 2], [[1.5], [2.5]], [[1, None], [2]], [[[1]], [[2]]]])
def test_what_is_no_document_is_named(column: list[Any]) -> None:
    with pytest.raises(
        ValueError, match=r"column 'tokens' has .*, which is no list of token numbers; tokenize it first"
    ):
        list(pack_dataset(documents(column), sequence_length=4, batch_size=1))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sequence_length": "abc"}, "sequence_length is 'abc'"),
        ({"sequence_length": 2.5}, "sequence_length is 2.5"),
        ({"bins": 2.5, "strategy": "best_fit"}, "bins is 2.5"),
        ({"pad_id": "a"}, "pad_id is 'a'"),
        ({"drop_last": "no"}, "drop_last is 'no'"),
        ({"dataset": [1]}, "dataset is list; give what strata.data.open_dataset returned"),
        ({"strategy": "worst_fit"}, "strategy is 'worst_fit'; use greedy or best_fit"),
    ],
)
def test_wrong_options_of_packing_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        pack_dataset(**{"dataset": documents([[1]]), "sequence_length": 4, "batch_size": 1, **options})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"boundaries": [2.5], "batch_size": 1}, "a length of boundaries is 2.5"),
        ({"boundaries": 4, "batch_size": 1}, "boundaries is 4; use a list"),
        ({"boundaries": [], "batch_size": 1}, "boundaries are \\[\\]; use lengths"),
        ({"boundaries": [4], "batch_size": 2.5}, "batch_size is 2.5"),
        ({"boundaries": [4], "batch_tokens": -1}, "batch_tokens is -1; use 1 or more"),
        ({"boundaries": [4]}, "give batch_size or batch_tokens, and not both"),
        ({"boundaries": [4], "batch_size": 1, "batch_tokens": 8}, "give batch_size or batch_tokens, and not both"),
    ],
)
def test_wrong_options_of_buckets_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        bucket_dataset(documents([[1]]), **options)


def test_a_bucket_holds_a_document_or_more() -> None:
    with pytest.raises(ValueError, match="batch_size is 0; use 1 or more"):
        LengthBuckets([4, 8], batch_size=0)


def test_what_is_no_position_is_refused_by_name() -> None:
    packed = pack_dataset(documents([[1]]), sequence_length=4, batch_size=1)
    for load in (packed.load_state_dict, packed.dataset.load_state_dict, lambda state: merge_assembled_states([state])):
        with pytest.raises(DamagedRecordError, match="not a valid data position"):
            load(None)
    with pytest.raises(ValueError, match="world_size is 0"):
        merge_assembled_states([packed.state_dict()], world_size=0)
