"""File systems that are too small, read-only or broken, mounted for one test and always taken away."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.parts import find_program
from tests.testbed.pace import stretch
from tests.testbed.process import running

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def tmpfs(folder: Path, *, size_bytes: int) -> Iterator[Path]:
    """A memory file system of this size."""
    with _mounted(folder, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs"):
        yield folder


@contextlib.contextmanager
def ext4(folder: Path, *, size_bytes: int) -> Iterator[Path]:
    """A file system of this size in a file, so that O_DIRECT is real."""
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    make = find_program("mkfs.ext4")
    assert make is not None
    _run(make, "-q", "-m", "0", str(image))
    with _mounted(folder, "-o", "loop", str(image)):
        yield folder


def remount_read_only(folder: Path) -> None:
    """Let nothing be written any more."""
    _run("mount", "-o", "remount,ro", str(folder))


@contextlib.contextmanager
def faulty(folder: Path, backing: Path) -> Iterator[Path]:
    """A mirror of ``backing`` that fails on demand: put a file named FAULT-fsync or FAULT-write beside it."""
    folder.mkdir()
    command = [
        sys.executable,
        str(ROOT / "tests" / "testbed" / "programs" / "faulty_fuse.py"),
        str(backing),
        str(folder),
    ]
    with running(command, log=folder.with_suffix(".log"), is_ready=lambda: os.path.ismount(folder)):
        try:
            yield folder
        finally:
            _run("umount", "-l", str(folder))


@contextlib.contextmanager
def _mounted(folder: Path, *arguments: str) -> Iterator[None]:
    folder.mkdir()
    _run("mount", *arguments, str(folder))
    try:
        yield
    finally:
        _run("umount", "-l", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=stretch(30))
