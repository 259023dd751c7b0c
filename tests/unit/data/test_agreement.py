"""All that decides which worker gets which samples and tokens is part of what workers compare, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strata import Mixture, open_dataset
from strata.data import Dataset
from strata.data.loading.function_names import name_function
from strata.data.text.assembled import AssembledDataset, bucket_dataset, pack_dataset
from strata.data.text.tokenizers import Tokenize
from strata.errors import DatasetOptionsError
from strata.run.team.dataset_options import OPTIONS_VERSION, compare_options

Arrays = dict[str, Any]
LEAST = 3


def documents(**options: Any) -> Dataset:
    table = pa.table({"tokens": [[1, 2, 3], [4, 5]], "others": [[6], [7, 8]], "text": ["a", "b"]})
    return open_dataset(table, **{"batch_size": 2, **options})


def packed(**options: Any) -> AssembledDataset:
    opening = {name: options.pop(name) for name in ("order", "transform", "filter", "nulls") if name in options}
    return pack_dataset(documents(**opening), **{"sequence_length": 4, "batch_size": 2, **options})


def bucketed(**options: Any) -> AssembledDataset:
    return bucket_dataset(documents(), **{"boundaries": [2, 4], "batch_size": 2, **options})


def differing(mine: dict[str, Any], theirs: dict[str, Any]) -> set[str]:
    return {name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)}


@pytest.mark.parametrize("order", ["sticky", "global"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("column", "others"),
        ("pad_id", 7),
        ("sequence_length", 5),
        ("strategy", "best_fit"),
        ("bins", 3),
        ("drop_last", True),
    ],
)
def test_what_decides_the_tokens_of_a_packed_dataset_is_compared(order: str, option: str, value: Any) -> None:
    found = differing(packed(order=order).agreement(), packed(order=order, **{option: value}).agreement())
    assert f"assembled.{'packing' if option == 'strategy' else option}" in found


@pytest.mark.parametrize(
    ("option", "value"),
    [("column", "others"), ("pad_id", 7), ("boundaries", [3, 4]), ("batch_size", 3), ("drop_last", True)],
)
def test_what_decides_the_tokens_of_a_bucketed_dataset_is_compared(option: str, value: Any) -> None:
    found = differing(bucketed().agreement(), bucketed(**{option: value}).agreement())
    assert found == {f"assembled.{'buckets' if option == 'boundaries' else option}"}


def test_ranks_may_load_batches_of_their_own_size_where_nothing_depends_on_it() -> None:
    for options, found in (({}, set()), ({"drop_last": True}, {"batch_size"})):
        mine, theirs = (documents(batch_size=size, **options).plan.agreement() for size in (1, 2))
        assert differing(mine, theirs) == found


def test_ranks_may_pack_batches_of_their_own_size_where_nothing_depends_on_it() -> None:
    assert packed(batch_size=2).agreement() == packed(batch_size=3).agreement()
    for options in ({"order": "global"}, {"drop_last": True}):
        found = differing(packed(batch_size=2, **options).agreement(), packed(batch_size=3, **options).agreement())
        assert found == {"assembled.batch_size"}


def encode(texts: list[str]) -> list[list[int]]:
    return [[len(text)] for text in texts]


def encode_otherwise(texts: list[str]) -> list[list[int]]:
    return [[0] for text in texts]


@pytest.mark.parametrize(
    "other", [Tokenize(encode_otherwise), Tokenize(encode, end=3), Tokenize(encode, to="others"), None]
)
def test_the_transform_that_makes_the_tokens_is_compared(other: Tokenize | None) -> None:
    mine = packed(transform=Tokenize(encode)).agreement()
    assert differing(mine, packed(transform=other).agreement()) == {"assembled.transform"}
    assert mine == packed(transform=Tokenize(encode)).agreement()


def test_a_tokenizer_is_compared_by_its_content_and_not_by_where_it_lies(tmp_path: Path) -> None:
    import tokenizers

    paths = []
    for name, word in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "tokenizer.json")
        tokenizers.Tokenizer(tokenizers.models.WordLevel({word: 0}, unk_token=word)).save(str(paths[-1]))
    first, same, other = (packed(transform=Tokenize(path)).agreement() for path in paths)
    assert first == same
    assert differing(first, other) == {"assembled.transform"}
    loaded = [packed(transform=Tokenize(tokenizers.Tokenizer.from_file(str(path)))).agreement() for path in paths]
    assert loaded[0] == loaded[1] != loaded[2]


def test_what_is_compared_is_json_also_if_options_are_numbers_of_numpy() -> None:
    made = packed(
        sequence_length=np.int64(4), batch_size=np.int32(2), pad_id=np.uint8(1), bins=np.int16(3), order="global"
    )
    assert json.loads(json.dumps(made.agreement())) == made.agreement()
    json.dumps(made.state_dict())
    ranks = {"rank": np.int64(1), "world_size": np.int64(2), "epochs": np.int64(2)}
    numbers = {"batch_size": np.int64(2), "seed": np.int64(5), "shard_size": np.int32(4)}
    for dataset in (documents(order="global", window_shards=np.int8(3), **numbers, **ranks), documents(**numbers)):
        dataset.set_epoch(np.int64(1))
        assert json.loads(json.dumps(dataset.plan.agreement())) == dataset.plan.agreement()
        json.dumps(dataset.state_dict())
    mixture = Mixture([documents(order="global")] * 2, [1, 1], seed=np.int64(3))
    mixture.seek(np.int64(1), np.int64(1))
    json.dumps([mixture.state_dict(), mixture.plan.agreement()])


def keep_above(batch: Arrays, least: int) -> Any:
    return batch["x"] > least


def make_filter(least: int) -> Any:
    return lambda batch: batch["x"] > least


def with_default(least: int) -> Any:
    def keep(batch: Arrays, least: int = least) -> Any:
        return batch["x"] > least

    return keep


class Keep:
    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, batch: Arrays) -> Any:
        return batch["x"] > self.least

    def keep(self, batch: Arrays) -> Any:
        return batch["x"] > self.least


class KeepSlim:
    __slots__ = ("least",)

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, batch: Arrays) -> Any:
        return batch["x"] > self.least


def nested(least: int) -> Any:
    inner = make_filter(least)
    return lambda batch: inner(batch)


def listed(least: int) -> Any:
    kept = np.arange(1_000) + least
    return lambda batch: np.isin(batch["x"], kept)


def holding(held: Any) -> Any:
    return lambda batch: held


@pytest.mark.parametrize(
    "make",
    [
        lambda least: partial(keep_above, least=least),
        make_filter,
        with_default,
        Keep,
        lambda least: Keep(least).keep,
        KeepSlim,
        nested,
        listed,
        lambda least: holding({"least": least, "kinds": ["web"]}),
        lambda least: holding({"web", f"code {least}"}),
        lambda least: holding((1, [least])),
    ],
    ids=["partial", "closure", "default", "instance", "method", "slots", "nested", "array", "dict", "set", "tuple"],
)
def test_a_filter_made_with_another_value_is_another_filter(make: Any) -> None:
    assert name_function(make(3)) == name_function(make(3))
    assert name_function(make(3)) != name_function(make(4))


def test_a_filter_that_reads_a_global_name_of_another_value_is_another_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keep(batch: Arrays) -> Any:
        return batch["x"] > LEAST

    before = name_function(keep)
    for value in (4, (4, 5), [4, [5]]):
        monkeypatch.setattr(sys.modules[__name__], "LEAST", value)
        assert name_function(keep) != before
        before = name_function(keep)
    # Objects are not values: what they hold may differ from process to process.
    monkeypatch.setattr(sys.modules[__name__], "LEAST", [object()])
    assert "LEAST" not in str(name_function(keep))


@pytest.mark.parametrize("held", [threading.Lock(), Keep])
def test_of_an_object_that_is_no_value_the_name_says_only_the_type(held: Any) -> None:
    kind = held if isinstance(held, type) else type(held)
    assert str(name_function(holding(held))).endswith(f"(held={kind.__module__}.{kind.__qualname__})")


def test_the_name_of_a_filter_says_the_values_that_it_was_made_with() -> None:
    assert "least=3" in str(name_function(make_filter(3)))
    assert str(name_function(holding({"b": 2, "a": (1, "x")}))).endswith("(held={'a': [1, 'x'], 'b': 2})")
    assert str(name_function(holding({"b", "a"}))).endswith("(held={'a', 'b'})")
    assert len(str(name_function(Keep("x" * 10_000)))) < 200


SCRIPT = """
import threading
from functools import partial
from strata.data.loading.function_names import name_function
KINDS = {"web", "code", "books", "news"}
class Held: pass
def keep(batch, lock, held, kinds=frozenset(KINDS)):
    return batch["kind"] in {"a", "b", "c", "d", "e"} and batch["kind"] in KINDS
print(name_function(partial(keep, lock=threading.Lock(), held=Held(), kinds={"x", "y", "z"})))
"""


def test_processes_give_the_same_function_the_same_name() -> None:
    # Sets of texts have an order of their own in each process, and objects an address.
    names = set()
    for seed in range(4):
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment(str(seed)))
        names.add(done.stdout)
    assert len(names) == 1


def _environment(hash_seed: str) -> dict[str, str]:
    return {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}


def test_a_function_that_holds_itself_has_a_name() -> None:
    class Loop:
        def __call__(self, batch: Arrays) -> Any:
            return self

    loop = Loop()
    loop.me = loop
    assert "Loop" in str(name_function(loop))


def test_how_missing_values_look_is_compared_where_a_filter_sees_them() -> None:
    for options, found in (({}, set()), ({"filter": make_filter(3)}, {"nulls"})):
        mine, theirs = (documents(nulls=nulls, **options).plan.agreement() for nulls in ("mask", "nan"))
        assert differing(mine, theirs) == found


def test_datasets_of_a_mixture_show_missing_values_alike() -> None:
    with pytest.raises(ValueError, match=r"nulls is 'mask' in datasets\[0\] and 'nan' in datasets\[1\]"):
        Mixture([documents(order="global"), documents(order="global", nulls="nan")], [1, 1])


def compare(mine: dict[str, Any], first: dict[str, Any], *, present: tuple[str, str] = ("anna", "")) -> None:
    compare_options(
        "d",
        mine,
        first,
        url="u",
        job_id="j",
        is_present=lambda worker_id, process: present == (worker_id, process),
    )


def test_what_an_older_release_registered_is_compared_in_what_it_knew() -> None:
    mine = {"worker": "bert", "version": OPTIONS_VERSION, "options": {"seed": 1, "filter": "f#1(x=1)", "new": 2}}
    compare(mine, {"worker": "anna", "options": {"seed": 1, "filter": "f#2", "old": 3}})
    with pytest.raises(DatasetOptionsError, match="has seed=1 and worker 'anna'"):
        compare(mine, {"worker": "anna", "options": {"seed": 2}})
    now = {"worker": "anna", "version": OPTIONS_VERSION, "options": {"seed": 1, "filter": "f#1(x=1)"}}
    with pytest.raises(DatasetOptionsError, match="has new=2"):
        compare(mine, now)


@pytest.mark.parametrize(
    ("first", "process", "is_earlier"),
    [
        ("anna", "a2", False),  # a process that is there
        ("anna", "a1", True),  # of the same name, and gone
        ("carl", "a2", True),  # a worker that is gone
        ("bert", "b1", True),  # an earlier process of one's own name
        ("bert", "", True),  # the same, as an older release registered it
    ],
)
def test_options_of_an_earlier_run_are_not_said_to_be_of_a_worker_of_this_one(
    first: str, process: str, is_earlier: bool
) -> None:
    mine = {"worker": "bert", "process": "b2", "version": OPTIONS_VERSION, "options": {"seed": 1}}
    known = {"worker": first, "process": process, "version": OPTIONS_VERSION, "options": {"seed": 2}}
    with pytest.raises(DatasetOptionsError) as caught:
        compare(mine, known, present=("anna", "a2"))
    assert caught.value.is_earlier_run == is_earlier
    assert ("strata job rm j" in str(caught.value)) == is_earlier
