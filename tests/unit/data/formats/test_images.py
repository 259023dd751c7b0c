"""Pictures by column, as Pillow decodes them."""

from __future__ import annotations

import io
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from strata.data import open_dataset
from strata.data.media.decode import DecodeColumns
from strata.data.media.pictures import decode_image
from strata.errors import DataError, MissingExtraError
from tests.unit.data.formats.switches import runs_beside

if TYPE_CHECKING:
    from pathlib import Path


def picture(kind: str, size: tuple[int, int] = (7, 5), mode: str = "RGB") -> bytes:
    rng = np.random.default_rng(size[0])
    shape = (size[1], size[0], len(mode)) if len(mode) > 1 else (size[1], size[0])
    sink = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8), mode).save(sink, kind)
    return sink.getvalue()


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "RGBA"), ("PNG", "L"), ("WEBP", "RGB")]
)
def test_pictures_are_those_of_pillow(kind: str, mode: str) -> None:
    data = picture(kind, mode=mode)
    with Image.open(io.BytesIO(data)) as own:
        expected = np.asarray(own.convert("RGB"), np.int16)
        gray = np.asarray(own.convert("L"), np.int16)
    # Two builds of libjpeg may round differently by a little.
    assert np.abs(decode_image(data).astype(np.int16) - expected).max() <= 3
    assert decode_image(data, "gray").shape == gray.shape


def test_without_the_fast_library_a_jpeg_is_what_pillow_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture("JPEG")
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with Image.open(io.BytesIO(data)) as own:
        assert np.array_equal(decode_image(data), np.asarray(own.convert("RGB")))
        assert np.array_equal(decode_image(data, "gray"), np.asarray(own.convert("L")))


def test_without_the_library_for_pictures_a_dataset_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture("PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    for decode in (
        lambda: open_dataset(pa.table({"a": [data]}), batch_size=1, decode={"a": "rgb"}),
        lambda: decode_image(data),
    ):
        with pytest.raises(MissingExtraError, match=r"decoding pictures needs .*\[images\]"):
            decode()


def stack(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.stack([each[:4, :4] for each in batch["jpg"]]), "cls": batch["cls"]}


@pytest.mark.part("torch")
@pytest.mark.parametrize("processes", [0, 1])
def test_columns_are_decoded_before_the_transform(tmp_path: Path, processes: int) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for row in range(6):
            for ending, content in (
                ("jpg", picture("JPEG", (7 + row, 5))),
                ("cls", b"%d" % row),
                ("png", picture("PNG")),
            ):
                info = tarfile.TarInfo(f"{row}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    with open_dataset(
        tmp_path, batch_size=6, shuffle=False, decode={"jpg": "rgb", "png": "gray"}, cache=tmp_path / "c"
    ) as dataset:
        (batch,) = dataset
    assert [each.shape for each in batch["jpg"]] == [(5, 7 + row, 3) for row in range(6)]
    assert [each.shape for each in batch["png"]] == [(5, 7)] * 6
    with open_dataset(
        tmp_path,
        batch_size=6,
        to="torch",
        decode={"jpg": "rgb"},
        transform=stack,
        processes=processes,
        cache=tmp_path / "c",
    ) as dataset:
        (made,) = dataset
    assert tuple(made["x"].shape) == (6, 4, 4, 3)


def test_a_picture_that_is_none_is_named_and_a_missing_one_is_none() -> None:
    found = DecodeColumns({"a": "rgb"})({"a": np.array([None, {"bytes": picture("PNG"), "path": None}], object)})
    assert found["a"][0] is None
    assert found["a"][1].shape == (5, 7, 3)
    for bad in (b"\xff\xd8\xffcut", b"nonsense", picture("PNG")[:40]):
        with pytest.raises(DataError, match="column 'a', row 0 of the batch cannot be decoded"):
            DecodeColumns({"a": "rgb"})({"a": np.array([bad], object)})
    with pytest.raises(DataError, match="int cannot be decoded"):
        DecodeColumns({"a": "rgb"})({"a": np.array([1], object)})
    with pytest.raises(ValueError, match="use 'rgb', 'gray', 'audio', 'mono' or a function"):
        DecodeColumns({"a": "cmyk"})
    with pytest.raises(TypeError, match=r"decode is \['a'\]; use a dict of decoders by column, such as"):
        DecodeColumns(["a"])
    with pytest.raises(ValueError, match="decode names the column 'b'"):
        DecodeColumns({"b": len})({"a": [b""]})


def test_a_function_decodes_whatever_it_knows() -> None:
    table = pa.table({"a": [b"1", b"22"]})
    with open_dataset(table, batch_size=2, shuffle=False, decode={"a": len}) as dataset:
        (batch,) = dataset
    assert batch["a"].tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_other_threads_run_while_a_picture_is_decoded(kind: str) -> None:
    data = picture(kind, (1280, 960))
    decode_image(data)  # so that nothing is imported in the thread
    assert runs_beside(lambda: decode_image(data), attempts=10_000)
