"""Small values by name that a job keeps for its tools, changed by compare-and-set.

A rendezvous, a lock or a flag needs one agreed value and nothing more. What is large belongs into storage, and what
every worker says every second belongs into heartbeats.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strata.cluster.commands import SetKey
from strata.cluster.replies import KeyValue
from strata.errors import BadCommandError, QuotaExceededError

MAX_VALUE_BYTES = 256 << 10
MAX_TOTAL_BYTES = 16 << 20
MAX_KEY_LENGTH = 256
# So many of the last writers of a key are known, for those whose reply was lost while others set it again.
MAX_WRITERS = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """A value, how often its key was set until then, and by whom the last times."""

    value: bytes
    token: int
    writers: tuple[str, ...]

    def was_set_by(self, command: SetKey) -> bool:
        """Whether this command was carried out, as far back as writers are known."""
        later = self.token - command.token - 1
        return 0 <= later < len(self.writers) and self.writers[-1 - later] == command.writer


class Keys:
    """The keys of one job. A token is never used twice for a key while the key is there."""

    def __init__(self, *, max_keys: int, check_quota: Callable[[], None] = lambda: None) -> None:
        self._max_keys = max_keys
        self._check_quota = check_quota
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> KeyValue:
        """Return the value of a key and its token; token 0 says that there is none."""
        entry = self._entries.get(key)
        return KeyValue() if entry is None else KeyValue(value=entry.value, token=entry.token)

    def set(self, command: SetKey) -> KeyValue:
        """Set a key if its token is the one given, and say what is there now; an empty value removes the key.

        The same command again, after a lost reply, gets the same answer, also when others have set the key since: it is
        known by its writer. Who is told that it lost would else do a second time what was done.
        """
        if not 0 < len(command.key) <= MAX_KEY_LENGTH:
            raise BadCommandError(f"a key of {len(command.key)} characters; use 1 to {MAX_KEY_LENGTH}")
        if len(command.value) > MAX_VALUE_BYTES:
            raise BadCommandError(
                f"key {command.key!r} with {len(command.value)} bytes; keep at most {MAX_VALUE_BYTES} in a key"
            )
        entry = self._entries.get(command.key)
        token = 0 if entry is None else entry.token
        if token == command.token:
            if not command.value:
                self._entries.pop(command.key, None)
                return KeyValue(is_set=True)
            if entry is None and len(self._entries) >= self._max_keys:
                raise QuotaExceededError("keys in one job", limit=self._max_keys)
            if entry is None:
                self._check_quota()
            others = (each.value for key, each in self._entries.items() if key != command.key)
            if sum(map(len, others)) + len(command.value) > MAX_TOTAL_BYTES:
                raise QuotaExceededError("bytes in the keys of one job", limit=MAX_TOTAL_BYTES)
            writers = (*(entry.writers if entry else ()), command.writer)[-MAX_WRITERS:]
            self._entries[command.key] = entry = Entry(command.value, command.token + 1, writers)
        elif entry is None:
            return KeyValue(is_set=not command.value)
        if entry.was_set_by(command):
            return KeyValue(value=command.value, token=command.token + 1, is_set=True)
        return KeyValue(value=entry.value, token=entry.token)

    def record(self) -> list[list[Any]]:
        """Return what must survive a restart of the coordinator."""
        return [
            [key, b64encode(entry.value).decode(), entry.token, *entry.writers]
            for key, entry in sorted(self._entries.items())
        ]

    def restore(self, record: list[list[Any]]) -> None:
        """Take over what :meth:`record` returned."""
        self._entries = {key: Entry(b64decode(value), token, tuple(writers)) for key, value, token, *writers in record}
