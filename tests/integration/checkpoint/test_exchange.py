"""Checkpoints go to other tools and come from them, byte by byte, with the real libraries on the other side."""

from __future__ import annotations

import json
import os
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from strata.checkpoint import CheckpointManager
from strata.cli.app import app
from strata.errors import ForeignFormatError
from tests.testbed.parts import LazyModule
from tests.unit.checkpoint.states import same

if TYPE_CHECKING:
    from pathlib import Path

torch: Any = LazyModule("torch")
pytestmark = [pytest.mark.part("torch"), pytest.mark.filterwarnings("ignore")]


def ckpt(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["ckpt", *map(str, arguments)])


def make_state() -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    weights = OrderedDict((name, value.clone()) for name, value in model.state_dict().items())
    return {
        "model": weights,
        "half": {"w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "f8": torch.ones(3).to(torch.float8_e4m3fn)},
        "optimizer": optimizer.state_dict(),
        "lr": 0.1,
        "names": ["a", "b"],
    }


@pytest.fixture
def where(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(make_state(), 5)
    return tmp_path / "run"


def load(where: Path, job: str) -> Any:
    with CheckpointManager(where, job_id=job) as manager:
        return manager.load().data


def test_torch_files_go_round_and_load_with_weights_only(where: Path, tmp_path: Path) -> None:
    target = tmp_path / "state.pt"
    done = ckpt("export", where, 5, target, "--to", "torch")
    assert done.exit_code == 0, done.output
    assert same(torch.load(target, weights_only=True), make_state())
    assert ckpt("import", target, where, 7, "--job", "back").exit_code == 0
    assert same(load(where, "back"), make_state())


def test_dcp_folders_go_round_and_load_with_dcp(where: Path, tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    target = tmp_path / "dcp"
    done = ckpt("export", where, 5, target, "--to", "dcp")
    assert done.exit_code == 0, done.output
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    into = {"model": model.state_dict()}
    checkpoint.load(into, checkpoint_id=target, no_dist=True)
    assert same(dict(into["model"]), dict(make_state()["model"]))
    done = ckpt("import", target, where, 7, "--job", "back")
    assert done.exit_code == 0, done.output
    # DCP itself makes text of keys that are numbers.
    back, wanted = load(where, "back"), make_state()
    assert same(dict(back["model"]), dict(wanted["model"]))
    assert same(back["optimizer"]["state"]["0"], wanted["optimizer"]["state"][0])
    assert (back["lr"], back["names"]) == (0.1, ["a", "b"])


def test_an_export_for_dcp_warns_of_nothing(tmp_path: Path) -> None:
    import torch

    from strata.checkpoint.exchange.dcp_folders import write_dcp

    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        write_dcp({"w": torch.ones(3)}, tmp_path / "dcp")
    assert [str(warning.message) for warning in raised] == []
    assert (tmp_path / "dcp" / ".metadata").exists()


@pytest.mark.parametrize("form", ["safetensors", "hf", "dcp", "torch"])
def test_a_place_that_cannot_be_written_is_named_in_one_line(where: Path, form: str) -> None:
    done = ckpt("export", where, 5, f"/proc/{form}", "--to", form)
    assert done.exit_code == 1
    assert isinstance(done.exception, ForeignFormatError)
    assert f"/proc/{form}: " in str(done.exception)
    assert "Traceback" not in str(done.exception)


def test_two_paths_that_dcp_calls_the_same_are_named(tmp_path: Path) -> None:
    from strata.checkpoint.exchange.dcp_folders import write_dcp

    with pytest.raises(ForeignFormatError, match=r"DCP does not write it \(.*duplicated flatten key a\.b\)"):
        write_dcp({"a.b": 1, "a": {"b": 2}}, tmp_path / "dcp")
    assert not list(tmp_path.iterdir())


def test_a_state_that_is_no_dict_is_not_written_for_dcp(tmp_path: Path) -> None:
    from strata.checkpoint.exchange.dcp_folders import write_dcp

    with pytest.raises(ForeignFormatError, match="DCP keeps dicts, and this checkpoint holds something else"):
        write_dcp([torch.ones(1)], tmp_path / "dcp")
    assert not list(tmp_path.iterdir())


def test_dcp_metadata_without_what_older_versions_did_not_write_is_read(tmp_path: Path) -> None:
    import pickle

    from torch.distributed import checkpoint

    from strata.checkpoint.exchange.dcp_folders import METADATA, read_dcp

    checkpoint.save({"w": torch.arange(3.0)}, checkpoint_id=tmp_path, no_dist=True)
    metadata = pickle.loads((tmp_path / METADATA).read_bytes())
    metadata.storage_meta = None
    (tmp_path / METADATA).write_bytes(pickle.dumps(metadata))
    assert same(read_dcp(tmp_path), {"w": torch.arange(3.0)})


@pytest.mark.parametrize(
    ("pickled", "problem"),
    [
        (b"\x80\x04}.", "it is no DCP metadata; "),
        # A class whose module and name are the numbers 1 and 2.
        (b"\x80\x04K\x01K\x02\x93.", r"no DCP metadata that can be read safely \(ValueError: a class without a name\)"),
    ],
)
def test_a_pickle_that_is_no_dcp_metadata_is_refused(tmp_path: Path, pickled: bytes, problem: str) -> None:
    from strata.checkpoint.exchange.dcp_folders import METADATA, read_dcp

    (tmp_path / METADATA).write_bytes(pickled)
    with pytest.raises(ForeignFormatError, match=problem):
        read_dcp(tmp_path)


def test_a_dcp_folder_that_would_run_code_is_refused(tmp_path: Path) -> None:
    from strata.checkpoint.exchange.dcp_folders import read_dcp

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    import pickle

    for protocol in (2, 4, 5):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil(), protocol))
        with pytest.raises(ForeignFormatError, match="no DCP metadata that can be read safely"):
            read_dcp(tmp_path)
        torch_file = tmp_path / "evil.pt"
        torch_file.write_bytes(pickle.dumps(Evil(), protocol))
        assert ckpt("import", torch_file, tmp_path / "run", 1).exit_code == 1
    assert not (tmp_path / "ran").exists()


def test_safetensors_files_go_round(where: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    target = tmp_path / "model.safetensors"
    assert ckpt("export", where, 5, target, "--under", "model").exit_code == 0
    assert same(dict(sorted(load_file(target).items())), dict(sorted(make_state()["model"].items())))
    assert ckpt("import", target, where, 7, "--job", "back", "--under", "model").exit_code == 0
    back = load(where, "back")
    assert same(dict(sorted(back["model"].items())), dict(sorted(make_state()["model"].items())))
    save_file({"x": torch.ones(3), "y": torch.zeros(0, 2)}, tmp_path / "other.safetensors")
    assert ckpt("import", tmp_path / "other.safetensors", where, 8, "--job", "other").exit_code == 0
    assert same(dict(sorted(load(where, "other").items())), {"x": torch.ones(3), "y": torch.zeros(0, 2)})


def test_hugging_face_folders_go_round_with_an_index(where: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    target = tmp_path / "hf"
    done = ckpt("export", where, 5, target, "--to", "hf", "--under", "model", "--shard-bytes", 300)
    assert done.exit_code == 0, done.output
    index = json.loads((target / "model.safetensors.index.json").read_text())
    wanted = make_state()["model"]
    assert sorted(index["weight_map"]) == sorted(wanted)
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in wanted.values())
    found = {name: load_file(target / file)[name] for name, file in index["weight_map"].items()}
    assert same(dict(sorted(found.items())), dict(sorted(wanted.items())))
    assert len(set(index["weight_map"].values())) > 1
    done = ckpt("import", target, where, 7, "--job", "back")
    assert done.exit_code == 0, done.output
    assert same(dict(sorted(load(where, "back").items())), dict(sorted(wanted.items())))
    small = tmp_path / "small"
    assert ckpt("export", where, 5, small, "--to", "hf", "--under", "model").exit_code == 0
    assert [each.name for each in small.iterdir()] == ["model.safetensors"]
    again = ckpt("export", where, 5, small, "--to", "hf", "--force")
    assert again.exit_code == 2
    assert (small / "model.safetensors").exists(), "a folder is never removed for an export"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.safetensors", b""),
        ("x.safetensors", b"\xff" * 8),
        ("x.safetensors", (4).to_bytes(8, "little") + b"[[[["),
        ("x.safetensors", (100_000).to_bytes(8, "little") + b"[" * 100_000),
        ("x.safetensors", (2).to_bytes(8, "little") + b"[]"),
        ("x.safetensors", (51).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}'),
        ("x.pt", b""),
        ("x.pt", b"PK\x03\x04 not a zip"),
        ("x.txt", b"hello"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../../etc/passwd"}}'),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "gone.safetensors"}}'),
        ("model.safetensors.index.json", b"[]"),
        (".metadata", b"nonsense"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused_with_words(tmp_path: Path, name: str, content: bytes) -> None:
    from strata.checkpoint.exchange.formats import read_state

    folder = tmp_path / "source"
    folder.mkdir()
    (folder / name).write_bytes(content)
    source = folder if name.endswith(".json") or name == ".metadata" else folder / name
    with pytest.raises(ForeignFormatError):
        read_state(source)


def test_what_is_not_there_is_named(where: Path, tmp_path: Path) -> None:
    from strata.checkpoint.exchange.formats import read_state

    with pytest.raises(ForeignFormatError, match="there is no such file or folder"):
        read_state(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ForeignFormatError, match="no safetensors files"):
        read_state(tmp_path / "empty")
    done = ckpt("export", where, 5, tmp_path / "x", "--under", "nothing")
    assert isinstance(done.exception, ForeignFormatError)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("form", ["safetensors", "hf", "dcp", "torch"])
@pytest.mark.parametrize("under", ["model.layers.1", "model.0", "model.a.b", "flat"])
def test_every_format_exports_what_is_below_a_path_whatever_its_keys_are(tmp_path: Path, form: str, under: str) -> None:
    wanted = {"w": torch.full((3,), 7.0)}
    other = {"w": torch.zeros(3)}
    tree = {"layers": [other, wanted], 0: wanted, "a.b": wanted, "a": {"c": other, "b": wanted}, "a.c": other}
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save({"model": tree, "flat.w": wanted["w"], "flatter": other}, 5)
    target = tmp_path / f"x.{'pt' if form == 'torch' else form}"
    done = ckpt("export", tmp_path / "run", 5, target, "--to", form, "--under", under)
    assert done.exit_code == 0, done.output or done.exception
    assert ckpt("import", target, tmp_path / "run", 7, "--job", "back", "--under", "it").exit_code == 0
    assert same(load(tmp_path / "run", "back")["it"]["w"], wanted["w"])


def test_a_plain_value_whose_key_begins_a_path_does_not_hide_what_is_below_it(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save({"a": 5, "a.b": {"w": torch.ones(2)}}, 5)
    assert ckpt("export", tmp_path / "run", 5, tmp_path / "x.pt", "--to", "torch", "--under", "a.b").exit_code == 0
    assert same(torch.load(tmp_path / "x.pt", weights_only=True), {"w": torch.ones(2)})


def test_arrays_are_exported_as_tensors_and_a_type_that_torch_lacks_is_named(tmp_path: Path) -> None:
    import ml_dtypes
    import numpy as np

    from strata.checkpoint.exchange.torch_files import write_torch

    write_torch(
        {"day": np.array([3], "M8[D]"), "none": np.zeros((0, 2), np.int8), "x": np.float32(7)}, tmp_path / "x.pt"
    )
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    assert same(found["day"], torch.tensor([3]))
    assert same(found["none"], torch.zeros(0, 2, dtype=torch.int8))
    assert same(found["x"], torch.tensor(7.0))
    with pytest.raises(ForeignFormatError, match="torch has no type float8_e3m4"):
        write_torch({"w": np.ones(2, ml_dtypes.float8_e3m4)}, tmp_path / "y.pt")
    assert not (tmp_path / "y.pt").exists()


@pytest.mark.parametrize("form", ["safetensors", "hf"])
def test_a_tensor_with_the_name_that_safetensors_keeps_for_itself_is_exported(tmp_path: Path, form: str) -> None:
    from safetensors.torch import load_file

    with CheckpointManager(tmp_path / "run") as manager:
        manager.save({"model": {"__metadata__": torch.ones(2), "w": torch.zeros(1)}}, 5)
    target = tmp_path / "x.safetensors"
    assert ckpt("export", tmp_path / "run", 5, target, "--to", form, "--under", "model").exit_code == 0
    found = load_file(target / "model.safetensors" if form == "hf" else target)
    assert same(dict(sorted(found.items())), {"__metadata__#2": torch.ones(2), "w": torch.zeros(1)})


def test_an_export_names_the_tensors_whose_type_safetensors_lacks(tmp_path: Path) -> None:
    import numpy as np

    with CheckpointManager(tmp_path / "run") as manager:
        state = {"c": torch.ones(2, dtype=torch.complex128), "w": torch.ones(2), "day": np.zeros(1, "M8[D]")}
        manager.save(state, 5)
    said = ckpt("export", tmp_path / "run", 5, tmp_path / "x.safetensors").output
    assert "c (complex128), day (datetime64[D])" in said
    assert "no type" not in ckpt("export", tmp_path / "run", 5, tmp_path / "x.pt", "--to", "torch").output
