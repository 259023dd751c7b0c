"""What the operating system says of a file becomes the error that says what to do."""

from __future__ import annotations

import errno
import os

import pytest

from strata.errors import (
    InvalidKeyError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StoragePermissionError,
    StorageUnavailableError,
)
from strata.storage.blocking import is_of_one_object, translating


def raise_as_storage(number: int) -> None:
    with translating("job/x"):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "kind", "hint"),
    [
        (errno.ENOENT, ObjectNotFoundError, "no such object"),
        (errno.ENOSPC, StorageFullError, "No space left on device"),
        (errno.EDQUOT, StorageFullError, "Disk quota exceeded"),
        (errno.EFBIG, StorageFullError, "File too large"),
        (errno.EROFS, StoragePermissionError, "remount it writable or choose another root"),
        (errno.EACCES, StoragePermissionError, "give this user rights to the root and what is in it"),
        (errno.ENAMETOOLONG, InvalidKeyError, "File name too long"),
        (errno.ENOTEMPTY, StorageError, "it is a directory of other objects; on a file system a key cannot be"),
        (errno.EXDEV, StorageError, "another file system is mounted below the root; mount it elsewhere"),
        (errno.ESTALE, StorageUnavailableError, "the device or its server failed; look at the kernel's log (dmesg)"),
        (errno.EMFILE, StorageUnavailableError, "out of file descriptors or memory; raise the limit (ulimit -n)"),
        (errno.ENOMEM, StorageUnavailableError, "out of file descriptors or memory; raise the limit (ulimit -n)"),
        (errno.EMLINK, StorageError, "Too many links; this is unexpected; please report it"),
    ],
)
def test_an_error_of_the_system_says_what_to_do(number: int, kind: type[StorageError], hint: str) -> None:
    with pytest.raises(StorageError) as caught:
        raise_as_storage(number)
    assert type(caught.value) is kind
    assert caught.value.path == "job/x"
    assert hint in str(caught.value)


def test_an_error_without_a_number_says_its_text() -> None:
    with pytest.raises(StorageError, match="job/x: the tape is torn; this is unexpected"), translating("job/x"):
        raise OSError("the tape is torn")


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOENT, True), (errno.EIO, True), (errno.EMFILE, False), (errno.ESTALE, False)]
)
def test_a_bad_block_is_of_one_object_and_a_machine_without_descriptors_is_not(number: int, *, expected: bool) -> None:
    with pytest.raises(StorageError) as caught:
        raise_as_storage(number)
    assert is_of_one_object(caught.value) is expected
