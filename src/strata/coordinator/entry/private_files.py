"""Files that only their owner may read: keys, tokens, the journal."""

from __future__ import annotations

import os
from pathlib import Path

MODE = 0o600
FOLDER_MODE = 0o700


def write_private(path: Path, data: bytes) -> None:
    """Write a file whole, with mode 0600 from its first byte on; a reader sees the old one or the new one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    # Of one with the same number that was killed: in a container every process has it.
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        with os.fdopen(file, "wb") as writing:
            writing.write(data)
            writing.flush()
            os.fsync(file)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def make_private_folder(path: Path) -> None:
    """Let there be a folder; it and those above it that are made on the way are for their owner alone."""
    for each in (*reversed(path.absolute().parents), path):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)


def make_private(path: Path) -> None:
    """Let there be a file that nobody but its owner may read; what is in it stays."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    try:
        if os.fstat(file).st_mode & 0o077:
            os.fchmod(file, MODE)
    finally:
        os.close(file)
