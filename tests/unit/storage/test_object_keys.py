from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import LocalStorage
from strata.errors import InvalidKeyError, StorageError
from strata.storage.object_keys import (
    MAX_KEY_BYTES,
    MAX_ROOT_BYTES,
    MAX_SEGMENT_BYTES,
    check_key,
    check_prefix,
    check_root,
)

text = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("./\\\0 ab")), max_size=40)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "empty"),
        ("/a", "absolute"),
        ("a//b", "empty segment"),
        ("a/", "empty segment"),
        ("..", "segment '..'"),
        ("a/../b", "segment '..'"),
        ("./a", "segment '.'"),
        ("a\0b", "contains"),
        ("a\nb", "contains"),
        ("a\x85b", "contains"),
        ("a\\b", "contains"),
        ("a\ud800b", "contains"),
        ("ä" * 128, f"{MAX_SEGMENT_BYTES} bytes"),
        ("a/" * 450 + "b", f"{MAX_KEY_BYTES} bytes"),
        (".strata-tmp/x", "Strata's own"),
        (b"bytes", "a key is a string"),
        (None, "a key is a string"),
    ],
)
def test_what_no_store_may_be_asked_for_is_refused_with_its_reason(path: str, problem: str) -> None:
    with pytest.raises(InvalidKeyError, match=problem) as caught:
        check_key(path)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, StorageError)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("path", ["a", "a/b.bin", "...", "a b", ".hidden", "ü/😀", "x" * 255, "a/.strata-tmp"])
def test_ordinary_keys_are_taken_as_they_are(path: str) -> None:
    assert check_key(path) == path


def test_a_prefix_may_be_empty_or_end_with_a_slash() -> None:
    assert (check_prefix(""), check_prefix("a/b/"), check_prefix("a")) == ("", "a/b", "a")
    for wrong in ("/", "a//", "../"):
        with pytest.raises(InvalidKeyError):
            check_prefix(wrong)


def test_a_storage_leaves_room_for_its_keys() -> None:
    assert len(check_root("p" * MAX_ROOT_BYTES + "/")) + 1 + MAX_KEY_BYTES == 1024
    with pytest.raises(InvalidKeyError, match=f"{MAX_ROOT_BYTES} bytes"):
        check_root("p" * (MAX_ROOT_BYTES + 1))


@given(text)
def test_a_key_is_refused_or_stays_below_the_root_and_comes_back_from_a_listing(
    tmp_path_factory: pytest.TempPathFactory, path: str
) -> None:
    try:
        check_key(path)
    except InvalidKeyError:
        return

    async def round_trip() -> None:
        root = tmp_path_factory.mktemp("fuzz")
        storage = LocalStorage(root / "root")
        await storage.write(path, b"x")
        assert (root / "root" / path).resolve().is_relative_to((root / "root").resolve())
        assert [info.path async for info in storage.list()] == [path]
        assert await storage.read(path) == b"x"
        assert [entry.name for entry in root.iterdir()] == ["root"]
        await storage.delete(path)
        assert [info.path async for info in storage.list()] == []

    asyncio.run(round_trip())
