"""A program: mirror a directory through FUSE, and fail where a file beside it says so.

python faulty_fuse.py BACKING MOUNTPOINT

While BACKING/FAULT-fsync or BACKING/FAULT-write exists, that operation on a file answers EIO; every such
refusal adds a byte to the file, so that a test can count them.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import mfusepy


class FaultyMirror(mfusepy.Operations):
    def __init__(self, backing: str) -> None:
        self.backing = backing

    def _real(self, path: str) -> str:
        return self.backing + path

    def _fail_on_demand(self, operation: str) -> None:
        fault = Path(self.backing, f"FAULT-{operation}")
        if fault.exists():
            with fault.open("ab") as file:
                file.write(b"x")
            raise mfusepy.FuseOSError(errno.EIO)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.fstat(fh) if fh is not None else os.lstat(self._real(path))
        names = (
            "st_mode",
            "st_nlink",
            "st_uid",
            "st_gid",
            "st_size",
            "st_ino",
            "st_mtime",
            "st_ctime",
            "st_atime",
        )
        return {name: getattr(status, name) for name in names}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._real(path))]

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._fail_on_demand("write")
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._real(path), length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._fail_on_demand("fsync")
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._real(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._real(path))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._real(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._real(old), self._real(new))
        return 0

    def link(self, target: str, source: str) -> int:
        os.link(self._real(source), self._real(target))
        return 0


if __name__ == "__main__":
    mfusepy.FUSE(FaultyMirror(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True)
