"""Files of other tools that are not whole are refused with words, and never imported as if they were."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from strata.checkpoint.exchange.formats import read_state
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


def write_index(folder: Path, weight_map: dict[str, str], name: str = "model") -> None:
    (folder / f"{name}.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_tensor(path: Path, name: str, value: float, dtype: str = "float32") -> None:
    from safetensors.torch import save_file

    save_file({name: torch.full((2,), value, dtype=getattr(torch, dtype))}, path)


def test_an_index_that_names_a_tensor_which_no_file_has_is_refused(tmp_path: Path) -> None:
    write_tensor(tmp_path / "1.safetensors", "a", 1)
    write_tensor(tmp_path / "2.safetensors", "b", 2)
    write_index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"})
    with pytest.raises(ForeignFormatError, match=r"'2.safetensors' has 'c', which is not there"):
        read_state(tmp_path)
    write_index(tmp_path, {"a": "2.safetensors", "b": "1.safetensors"})
    with pytest.raises(ForeignFormatError, match="which is not there"):
        read_state(tmp_path)
    write_index(tmp_path, {})
    with pytest.raises(ForeignFormatError, match="names no tensors"):
        read_state(tmp_path)
    write_index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"})
    assert sorted(read_state(tmp_path)[0]) == ["a", "b"]


def test_of_several_indexes_the_one_without_a_variant_counts(tmp_path: Path) -> None:
    write_tensor(tmp_path / "whole.safetensors", "a", 1)
    write_tensor(tmp_path / "half.safetensors", "a", 1, "float16")
    write_index(tmp_path, {"a": "whole.safetensors"})
    write_index(tmp_path, {"a": "half.safetensors"}, "model.fp16")
    assert read_state(tmp_path)[0]["a"].dtype == torch.float32
    write_index(tmp_path, {"a": "half.safetensors"}, "adapter")
    with pytest.raises(ForeignFormatError, match=r"several indexes \(adapter.*model"):
        read_state(tmp_path)


def test_what_cannot_be_opened_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "model.safetensors.index.json").mkdir()
    for source in (tmp_path, tmp_path / "folder.safetensors", tmp_path / ("x" * 300 + ".pt")):
        for form in ("safetensors", "hf", "torch", "dcp", None):
            done = ckpt("import", source, tmp_path / "run", 1, *(["--format", form] if form else []))
            assert isinstance(done.exception, ForeignFormatError), (source, form, done.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shape", [[2**63, 0], [2**62, 2**62, 0], [0, 10**30], [2**61 + 1, 4, 0]])
def test_an_empty_tensor_of_a_shape_that_no_memory_holds_is_refused(tmp_path: Path, shape: list[int]) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ForeignFormatError, match="no memory holds"):
        read_state(tmp_path / "x.safetensors")


@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_a_flipped_bit_in_a_file_of_torch_is_found_although_torch_loads_it(tmp_path: Path, form: str) -> None:
    from torch.distributed import checkpoint

    state = {"w": torch.arange(3000.0), "b": torch.ones(5)}
    if form == "torch":
        source = target = tmp_path / "x.pt"
        torch.save(state, source)
    else:
        source = tmp_path / "dcp"
        checkpoint.save(state, checkpoint_id=source, no_dist=True)
        (target,) = source.glob("*.distcp")
    data, chance, found = target.read_bytes(), random.Random(5), 0
    for _ in range(60):
        position = chance.randrange(len(data))
        target.write_bytes(data[:position] + bytes([data[position] ^ 1 << chance.randrange(8)]) + data[position + 1 :])
        try:
            # A flip between two records, or in a field that nobody reads, does no harm.
            assert same(read_state(source)[0], state)
        except ForeignFormatError:
            found += 1
    assert found > 30
    target.write_bytes(data)
    assert same(read_state(source)[0], state)


def test_a_file_of_torch_without_checksums_is_imported(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        torch.save({"w": torch.ones(3)}, tmp_path / "x.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    assert same(read_state(tmp_path / "x.pt")[0], {"w": torch.ones(3)})


def test_a_file_of_an_older_torch_that_is_no_zip_is_imported(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    assert same(read_state(tmp_path / "x.pt")[0], {"w": torch.ones(3)})
