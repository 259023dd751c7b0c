"""Every kind of state comes back with its type and value, or is refused with its path before anything is written.

The kinds are a product: each leaf in each container. A leaf that is neither kept nor refused fails here.
"""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import itertools
import pathlib
import threading
import time
import types
import uuid
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, Slice
from strata.checkpoint.format.dtypes import DTYPES, numpy_dtype
from strata.checkpoint.format.kinds import _shares_elements, is_json_int
from strata.errors import StateMismatchError, UnsavableStateError
from strata.storage import MemoryStorage
from tests.unit.checkpoint.states import same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Text(str, enum.Enum):  # noqa: UP042 - the kind that users have
    W = "w"


class Number(enum.IntEnum):
    ONE = 1


class Flags(enum.IntFlag):
    A = 1


class Plain(enum.Enum):
    X = object()


class MyStr(str):
    __slots__ = ()


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyBytes(bytes):
    pass


class MyList(list[Any]):
    pass


class MyTuple(tuple[Any, ...]):
    __slots__ = ()


class MyDict(dict[Any, Any]):
    pass


class MyArray(np.ndarray[Any, Any]):
    pass


@dataclass
class ListWithFields(list[Any]):
    lr: float = 0.1


@dataclass
class NeverSet:
    lr: float = field(init=False)


def kept_leaves() -> Iterator[tuple[str, Any]]:
    """Yield leaves that a checkpoint promises to bring back as they are."""
    plain: list[Any] = [None, True, False, 0, -1, 2**63, -(2**63), 2**64, -(2**64), 10**5000, 0.0, -0.0, 1e308, 5e-324]
    plain += [float("nan"), float("inf"), float("-inf"), 1j, complex("nan"), complex(-0.0, float("inf"))]
    plain += ["", "text", "\x00", "\ud800", "\ude00\ud83d", "ключ 😀", b"", b"\x00\xff", bytearray(), bytearray(b"ab")]
    for number, value in enumerate(plain):
        shown = f"{type(value).__name__} of {value.bit_length()} bits" if isinstance(value, int) else repr(value)
        yield f"{number} {shown[:30]}", value
    for name in DTYPES:
        dtype = numpy_dtype(name)
        if dtype is not None:
            raw = np.arange(6 * dtype.itemsize, dtype=np.uint8)
            # A bool is one of two bytes.
            array_ = (raw % 2).view(dtype) if name == "bool" else raw.view(dtype)
            yield f"numpy {name}", array_.reshape(2, 3)
            yield f"numpy scalar {name}", array_.reshape(-1)[0]
    yield "0-d", np.array(3.0)
    yield "empty", np.zeros((0, 3), np.int16)
    yield "transposed", np.arange(6).reshape(2, 3).T
    yield "strided", np.arange(10)[::2]
    yield "backwards", np.arange(5)[::-1]
    yield "broadcast", np.broadcast_to(np.ones(1), (3,))
    yield "object key", {"a": {1: 2, False: 3}}


def refused_leaves() -> Iterator[tuple[str, Any]]:
    """Yield leaves that no checkpoint can bring back as they are."""
    yield from {
        "str enum": Text.W,
        "int enum": Number.ONE,
        "flag": Flags.A,
        "enum": Plain.X,
        "str class": MyStr("x"),
        "int class": MyInt(1),
        "float class": MyFloat(1.0),
        "bytes class": MyBytes(b"x"),
        "list class": MyList([1]),
        "tuple class": MyTuple((1,)),
        "dict class": MyDict(a=1),
        "masked": np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        "matrix": np.ones((2, 2)).view(np.matrix),
        "array class": np.ones(2).view(MyArray),
        "record": np.zeros(2, [("a", "i4"), ("b", "f8")]),
        "recarray": np.rec.array([(1, 2.0)], names="a,b"),
        "text array": np.array(["a"]),
        "bytes array": np.array([b"a"]),
        "objects": np.array([None]),
        "numpy text": np.str_("x"),
        "numpy bytes": np.bytes_(b"x"),
        "longdouble": np.zeros(2, np.longdouble),
        "counted time": np.zeros(2, "m8[25s]"),
        "many dimensions": np.zeros((1,) * 64),
        "memoryview": memoryview(b"abc"),
        "strided memoryview": memoryview(b"abcdef")[::2],
        "wide memoryview": memoryview(array.array("d", [1.0])),
        "array.array": array.array("d", [1.0]),
        "set": {1},
        "frozenset": frozenset({1}),
        "range": range(3),
        "slice": slice(1),
        "function": len,
        "lambda": lambda: None,
        "class": int,
        "module": types,
        "object": object(),
        "lock": threading.Lock(),
        "generator": (x for x in ()),
        "datetime": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        "timedelta": datetime.timedelta(1),
        "decimal": decimal.Decimal(1),
        "fraction": fractions.Fraction(1, 2),
        "path": pathlib.Path("x"),
        "uuid": uuid.UUID(int=1),
        "struct_time": time.gmtime(0),
        "own factory": defaultdict(lambda: 3, a=1),
        "UserDict": UserDict(a=1),
        "mapping proxy": types.MappingProxyType({"a": 1}),
        "Ellipsis": ...,
        "NotImplemented": NotImplemented,
        "tuple key": {(1, 2): 3},
        "float key": {1.5: 3},
        "None key": {None: 3},
        "enum key": {Text.W: 3},
        "numpy key": {np.int64(3): 3},
        "large key": {10**5000: 1},
        "bytes key": {b"a": 1},
        "enormous": 1 << (1 << 21),
        "halves of a character": "a\ud83d\ude00",
        "halves in a key": {"\ud83d\ude00": 1},
        "dataclass and list": ListWithFields(),
        "field never set": NeverSet(),
    }.items()


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "state": lambda leaf: {"leaf": leaf},
    "list": lambda leaf: {"a": [0, leaf]},
    "tuple": lambda leaf: {"a": (leaf, "x")},
    "OrderedDict": lambda leaf: OrderedDict(z=1, a=leaf),
    "defaultdict": lambda leaf: {3: defaultdict(list, {"a": leaf, "b": [leaf]})},
    "plain defaultdict": lambda leaf: defaultdict(None, {"a": leaf}),
    "deque": lambda leaf: [deque([leaf, 1], maxlen=7), deque([leaf])],
}


def _cases(leaves: Iterator[tuple[str, Any]]) -> list[Any]:
    return [pytest.param(leaf, id=name.encode("ascii", "replace").decode()) for name, leaf in leaves]


def check_law(state: Any, *, refused: bool) -> None:
    """Save and load; the state comes back with types and values, or an error names a path and nothing was written."""
    storage = MemoryStorage()
    with CheckpointManager(storage=storage) as manager:
        if not refused:
            manager.save(state, 1)
            assert same(manager.load().data, state)
            return
        with pytest.raises(UnsavableStateError) as caught:
            manager.save(state, 1)
        assert caught.value.path
        assert "nothing was written" in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert repr(storage) == "MemoryStorage(0 objects)"


@pytest.mark.parametrize("leaf", _cases(kept_leaves()))
def test_a_kept_leaf_comes_back_as_it_was_in_every_container(leaf: Any) -> None:
    check_law({name: make(leaf) for name, make in CONTAINERS.items()}, refused=False)


@pytest.mark.parametrize("leaf", _cases(refused_leaves()))
def test_a_refused_leaf_is_named_and_nothing_is_written(leaf: Any) -> None:
    for make in CONTAINERS.values():
        check_law(make(leaf), refused=True)


@pytest.mark.parametrize("state", [MyBytes(b"x"), np.bytes_(b"x"), memoryview(b"abcdef")[::2]])
def test_a_state_that_is_bytes_of_another_kind_is_refused(state: Any) -> None:
    with (
        CheckpointManager(storage=MemoryStorage()) as manager,
        pytest.raises(UnsavableStateError, match=r"the state itself is of type .*: save bytes"),
    ):
        manager.save(state, 1)


def test_a_state_may_be_as_deep_as_the_limit() -> None:
    state: Any = 1
    for _ in range(199):
        state = {"a": state}
    check_law(state, refused=False)
    check_law({"a": {"a": state}}, refused=True)


def test_a_counter_comes_back_as_one() -> None:
    check_law({"seen": Counter(a=3, b=1)}, refused=False)


@dataclass
class Hyper:
    lr: float


class Point(NamedTuple):
    x: Any


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (Hyper(0.1), {"lr": 0.1}),
        (Point(1), {"x": 1}),
        (np.ones(2, ">f4"), np.ones(2, "<f4")),
        (np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(6.0).reshape(2, 3)),
    ],
)
def test_the_few_kinds_that_come_back_as_another_are_those_of_the_docs(value: Any, back: Any) -> None:
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"v": value}, 1)
        assert same(manager.load().data["v"], back)


def test_a_memory_map_comes_back_as_an_array(tmp_path: pathlib.Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3,))
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"v": mapped}, 1)
        assert same(manager.load().data["v"], np.zeros(3, np.float32))


@pytest.mark.part("torch")
@pytest.mark.filterwarnings("ignore")
def test_every_kind_of_torch_tensor_is_kept_or_refused() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    kept: list[Any] = [torch.Size((2, 3)), torch.nn.Parameter(torch.ones(2))]
    kept += [torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.nn.Buffer(torch.ones(2))]
    kept += [torch.ones(3).expand(2, 3), torch.arange(6).reshape(2, 3).T, torch.zeros(0, 4), torch.tensor(1.0)]
    kept += [torch.ones(2, dtype=torch.complex64).conj(), torch._neg_view(torch.ones(2))]
    uncopied: list[Any] = []
    for name in DTYPES:
        dtype = getattr(torch, name, None)
        if isinstance(dtype, torch.dtype):
            raw = torch.arange(8 * dtype.itemsize, dtype=torch.uint8)
            kept.append((raw % 2).view(dtype) if name == "bool" else raw.view(dtype))
            narrow = "int" in name and int(name.partition("int")[2]) < 8
            (uncopied if narrow or name.endswith("_x2") else kept).append(kept[-1][::2])
    with FakeTensorMode():
        fake = torch.ones(2)
    freed, shrunk, gappy = torch.ones(4), torch.ones(4), torch.ones(4)[1::2]
    freed.untyped_storage().resize_(0)
    shrunk.untyped_storage().resize_(8)
    gappy.untyped_storage().resize_(12)
    refused: list[Any] = [
        *uncopied,
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.eye(2).to_sparse(),
        torch.eye(2).to_sparse_csr(),
        torch.eye(2).to_mkldnn(),
        torch.empty(2, device="meta"),
        torch._efficientzerotensor(3),
        torch.ones(2).as_subclass(type("Mine", (torch.Tensor,), {})),
        torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])),
        torch.max(torch.eye(2), dim=0),
        fake,
        freed,
        shrunk,
        gappy,
        torch.float32,
        torch.device("cpu"),
        torch.Generator(),
        torch.nn.Linear(2, 2),
        torch.ones(2).untyped_storage(),
        torch.empty((1,) * 64),
    ]
    check_law({name: [make(value) for value in kept] for name, make in CONTAINERS.items()}, refused=False)
    for value in refused:
        for make in CONTAINERS.values():
            check_law(make(value), refused=True)


@pytest.mark.part("torch")
@pytest.mark.filterwarnings("ignore")
def test_what_like_cannot_receive_is_named() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(3)
    odd = [
        torch.zeros(1).expand(3),
        torch.zeros(3).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.zeros(3).as_subclass(type("Mine", (torch.Tensor,), {})),
        fake,
        np.ma.masked_array(np.zeros(3)),
        np.zeros((1, 3)).view(np.matrix),
        memoryview(bytearray(12))[::2],
        "text",
        object(),
        {1, 2},
        int,
        pathlib.Path("w"),
        np.zeros(3, [("a", "f4")]),
        np.array([None, 1, 2]),
        np.array(["a", "b", "c"]),
    ]
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"model": {"w": torch.ones(3), "b": np.ones(3)}}, 1)
        for name in ("w", "b"):
            for value in odd:
                with pytest.raises(StateMismatchError, match=rf"model\.{name}") as caught:
                    manager.load(like={"model": {name: value}})
                assert caught.value.path == f"model.{name}"


@pytest.mark.part("torch")
def test_tensors_of_like_whose_elements_share_memory_are_refused_and_others_are_filled() -> None:
    import torch

    values = np.arange(12.0).reshape(3, 4)
    shared = [
        torch.zeros(10, dtype=torch.float64).as_strided((3, 4), (1, 1)),
        torch.zeros(3, 1, dtype=torch.float64).expand(3, 4),
        np.lib.stride_tricks.as_strided(np.zeros(10), (3, 4), (8, 8)),
        np.lib.stride_tricks.as_strided(np.zeros(10), (3, 4), (16, 8)),
    ]
    apart = [
        torch.zeros(4, 3, dtype=torch.float64).T,
        torch.zeros(6, 8, dtype=torch.float64)[::2, 1::2],
        np.zeros((3, 4))[::-1, ::-1],
        np.zeros((3, 4), order="F"),
        np.zeros((5, 3, 4))[2],
        np.zeros((3, 8))[:, ::2],
    ]
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"w": values}, 1)
        for like in shared:
            with pytest.raises(StateMismatchError, match="share memory"):
                manager.load(like={"w": like})
        for like in apart:
            assert manager.load(like={"w": like}).data["w"] is like
            assert np.array_equal(np.asarray(like), values)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=4))
def test_elements_that_are_said_to_be_apart_are(dimensions: list[tuple[int, int]]) -> None:
    shape, strides = [size for size, _ in dimensions], [stride for _, stride in dimensions]
    indices = itertools.product(*map(range, shape))
    places = [sum(i * stride for i, stride in zip(index, strides, strict=True)) for index in indices]
    assert _shares_elements(shape, strides) or len(set(places)) == len(places)
    if len(dimensions) == 1:
        assert _shares_elements(shape, strides) == (len(set(places)) < len(places))


def test_like_gives_the_kind_of_container() -> None:
    state = {"a": OrderedDict(x=1), "b": defaultdict(int, y=2), "c": deque([1, 2], 5), "d": [1], "e": {"z": 1}}
    like = {"a": {"x": 0}, "b": OrderedDict(y=0), "c": [0, 0], "d": deque([0]), "e": defaultdict(list)}
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save(state, 1)
        back = manager.load(like=like).data
    assert same(back["a"], {"x": 1})
    assert same(back["b"], OrderedDict(y=2))
    assert same(back["c"], [1, 2])
    assert same(back["d"], deque([1]))
    assert same(back["e"], defaultdict(list, z=1))


@pytest.mark.part("torch")
@pytest.mark.filterwarnings("ignore")
def test_a_fresh_optimizer_in_like_gets_its_whole_state_back() -> None:
    import torch

    def make() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(7)))
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = make()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, 1)
        fresh_model, fresh = make()
        like = {"model": fresh_model.state_dict(), "optimizer": fresh.state_dict()}
        assert like["optimizer"]["state"] == {}
        restored = manager.load(like=like)
    assert len(restored.data["optimizer"]["state"]) == 14
    assert restored.unused == []
    fresh.load_state_dict(restored.data["optimizer"])
    for left, right in zip(optimizer.state.values(), fresh.state.values(), strict=True):
        assert torch.equal(left["exp_avg"], right["exp_avg"])


def test_what_like_leaves_out_is_reported() -> None:
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"model": {"w": np.ones(2), "b": np.ones(1)}, "step": 3, "rng": [1, 2]}, 1)
        restored = manager.load(like={"model": {"w": np.zeros(2)}})
        assert restored.unused == ["model.b", "step", "rng.0", "rng.1"]
        assert manager.load().unused == []
        assert manager.load(like={"model": None}).unused == ["step", "rng.0", "rng.1"]


@pytest.mark.part("torch")
def test_a_tensor_that_stands_for_another_inside_of_a_transform_is_refused() -> None:
    import torch

    seen = []

    def save(x: Any) -> Any:
        seen.append(check_law({"w": x}, refused=True))
        return x.sum()

    torch.vmap(save)(torch.ones(2, 3))
    torch.func.grad(save)(torch.ones(3))
    torch.func.functionalize(save)(torch.ones(3))
    assert len(seen) == 3


@pytest.mark.part("torch")
def test_a_size_comes_back_whatever_its_numbers_are() -> None:
    import torch

    check_law({"view": torch.Size([-1, 2, 2**63 - 1, -(2**63)])}, refused=False)
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"view": [3, 4]}, 1)
        assert same(manager.load(like={"view": torch.Size([0, 0])}).data, {"view": torch.Size([3, 4])})


def test_plain_values_bytes_and_scalars_of_like_fit_what_they_were() -> None:
    state = {"z": 1 + 2j, "b": b"ab", "s": np.float32(3), "w": np.ones(2)}
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save(state, 1)
        assert same(manager.load(like=state).data, state)
        for wrong in (b"ab", np.float32(3), NeverSet()):
            with pytest.raises(StateMismatchError, match="w: "):
                manager.load(like={"w": wrong})


@pytest.mark.part("jax")
def test_jax_arrays_of_64_bits_are_not_cut_to_32_by_a_restore() -> None:
    import jax

    values = np.array([1 << 40, 3])
    with jax.enable_x64(True), CheckpointManager(storage=MemoryStorage()) as manager:
        like = {"n": jax.numpy.asarray(values)}
        manager.save(like, 1)
        found = [manager.load().data, manager.load(like=like).data]
    for each in found:
        assert isinstance(each["n"], jax.Array)
        assert same(np.asarray(each["n"]), values)


@pytest.mark.part("jax")
def test_jax_arrays_without_values_are_refused() -> None:
    import jax

    deleted = jax.numpy.ones(3)
    deleted.delete()
    check_law({"w": deleted}, refused=True)
    check_law({"key": jax.random.key(0)}, refused=True)
    with CheckpointManager(storage=MemoryStorage()) as manager, pytest.raises(UnsavableStateError, match="key_data"):
        manager.save({"key": jax.random.key(0)}, 1)
    check_law({"w": jax.numpy.arange(3, dtype=jax.numpy.bfloat16), "i": jax.numpy.ones(2, "int4")}, refused=False)
    seen = []

    @jax.jit
    def save(x: Any) -> Any:
        seen.append(check_law({"w": x}, refused=True))
        return x

    save(jax.numpy.ones(2))
    assert len(seen) == 1


def test_a_slice_of_an_odd_tensor_is_refused_too() -> None:
    check_law({"w": Slice(np.ma.masked_array([1.0]), (2,), (0,))}, refused=True)


def test_a_slice_of_a_slice_is_refused_as_a_value_and_as_a_place_for_one() -> None:
    nested = Slice(Slice(np.zeros(1), (2,), (0,)), (4,), (0,))
    check_law({"w": nested}, refused=True)
    with CheckpointManager(storage=MemoryStorage()) as manager:
        manager.save({"w": np.ones(4)}, 1)
        with pytest.raises(StateMismatchError, match="w: a Slice cannot receive a tensor"):
            manager.load(like={"w": Slice(Slice(np.zeros(4), (4,), (0,)), (4,), (0,))})


@pytest.mark.part("torch")
def test_a_slice_of_a_parameter_comes_back_as_a_parameter() -> None:
    import torch

    with CheckpointManager(storage=MemoryStorage()) as manager:
        for part in range(2):
            weight = torch.nn.Parameter(torch.full((2,), float(part)))
            frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
            pieces = {"w": Slice(weight, (4,), (2 * part,)), "f": Slice(frozen, (4,), (2 * part,))}
            manager.save(pieces, 1, part=part, parts=2)
        manager.commit(1)
        restored = manager.load().data
    assert [type(each) is torch.nn.Parameter for each in restored.values()] == [True, True]
    assert [each.requires_grad for each in restored.values()] == [True, False]
    assert restored["w"].tolist() == [0, 0, 1, 1]


def test_ml_dtypes_are_the_ones_that_are_listed() -> None:
    kinds = {name: getattr(ml_dtypes, name) for name in dir(ml_dtypes)}
    found = {name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, np.generic)}
    assert "bfloat16" in found
    assert found - set(DTYPES) == set()


@pytest.mark.parametrize(
    ("value", "fits"), [(-(2**63), True), (-(2**63) - 1, False), (2**64 - 1, True), (2**64, False)], ids=str
)
def test_integers_of_64_bits_are_numbers_of_json_and_larger_ones_are_not(value: int, fits: bool) -> None:
    assert is_json_int(value) is fits
