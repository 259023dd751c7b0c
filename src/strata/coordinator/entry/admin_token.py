"""The administrator's token: in a file that the coordinator makes if there is none, and reads again when it changes."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from strata.coordinator.entry.private_files import make_private_folder, write_private
from strata.coordinator.entry.secret_tokens import MAX_BYTES, hash_secret, is_secret, make_token
from strata.errors import TokenFileError

log = logging.getLogger(__name__)

MIN_CHARACTERS = 24
LOOK_S = 0.5


class AdminToken:
    """The token of one file. A file that becomes unreadable changes nothing: the token before counts on."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()
        self._lock = threading.Lock()
        if not self._path.exists():
            self._make()
        elif self._path.stat().st_mode & 0o077:
            log.warning("%s is readable by other users; fix that with chmod 600", self._path)
        self._version, self._sha256 = self._stat(), self._read()
        self._looked_s = time.monotonic()
        self._told = ""

    def matches(self, token: str) -> bool:
        """Whether this is the administrator's token."""
        return is_secret(token, self.sha256)

    @property
    def sha256(self) -> str:
        """The hash of the token as it is now."""
        with self._lock:
            if time.monotonic() - self._looked_s >= LOOK_S:
                self._looked_s = time.monotonic()
                try:
                    if (version := self._stat()) != self._version:
                        self._sha256, self._version = self._read(), version
                        log.info("a new administrator's token is in use")
                    self._told = ""
                except (OSError, TokenFileError) as error:
                    if str(error) != self._told:
                        log.warning("the previous administrator's token stays valid: %s", error)
                    self._told = str(error)
            return self._sha256

    def _make(self) -> None:
        try:
            make_private_folder(self._path.parent)
            write_private(self._path, f"{make_token().text}\n".encode())
        except OSError as error:
            raise TokenFileError(str(self._path), error.strerror or str(error)) from error
        log.warning("the administrator's token is in %s; use it with STRATA_TOKEN_FILE=%s", self._path, self._path)

    def _stat(self) -> tuple[int, int, int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size

    def _read(self) -> str:
        try:
            token = self._path.read_bytes()[: MAX_BYTES + 1].decode("ascii").strip()
        except OSError as error:
            raise TokenFileError(str(self._path), error.strerror or str(error)) from error
        except UnicodeDecodeError as error:
            raise TokenFileError(str(self._path), "it holds more than ASCII characters, such as a BOM") from error
        if not MIN_CHARACTERS <= len(token) <= MAX_BYTES or any(character.isspace() for character in token):
            raise TokenFileError(str(self._path), f"it holds no token of {MIN_CHARACTERS} characters or more")
        return hash_secret(token)
