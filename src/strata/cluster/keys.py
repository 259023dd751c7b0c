"""Small values by name that a job keeps for its tools, changed by compare-and-set.

A rendezvous, a lock or a flag needs one agreed value and nothing more. What is large belongs into storage, and what
every worker says every second belongs into heartbeats.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

from strata.cluster.commands import SetKey
from strata.cluster.replies import KeyValue
from strata.errors import BadCommandError, QuotaExceededError

MAX_VALUE_BYTES = 256 << 10
MAX_TOTAL_BYTES = 16 << 20
MAX_KEY_LENGTH = 256
# So many of the last changes of a key are known, for those whose reply was lost while others changed it again.
MAX_WRITERS = 64
# Also of so many of the keys that were removed last.
MAX_REMOVED = 1_024


class Change(NamedTuple):
    """A change of a key that was carried out: by whom, the token that it named, and the one that it led to.

    A removal leads to token 0. Its writer names the call, and the digest tells calls apart of a writer that does not;
    none is known of changes under rules 0.
    """

    writer: str
    given: int
    token: int
    digest: str = ""


class Entry(NamedTuple):
    """The value of a key, its token, and its last changes, the newest last. Token 0: it was removed."""

    value: bytes
    token: int
    changes: tuple[Change, ...]

    def find(self, command: SetKey) -> Change | None:
        """Return the change that this command made, as far back as changes are known."""
        for change in reversed(self.changes):
            is_same = (change.writer, change.given) == (command.writer, command.token)
            if is_same and change.digest in ("", _digest(command.value)):
                return change
        return None


_NO_ENTRY = Entry(b"", 0, ())


class Keys:
    """The keys of one job. The token of a key is the job's revision at its last change; revisions are never reused.

    So a key that was removed and set again has a token that no client has read before.
    """

    def __init__(
        self, *, max_keys: int, check_quota: Callable[[], None] = lambda: None, first_revision: int = 0
    ) -> None:
        self._max_keys = max_keys
        self._check_quota = check_quota
        self._revision = first_revision
        self._entries: dict[str, Entry] = {}
        # What is left of keys that were removed, the one that was removed last at the end.
        self._removed: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def revision(self) -> int:
        """The number of the job's last change of a key; no token is above it."""
        return max([self._revision, *(entry.token for entry in self._entries.values())])

    def get(self, key: str) -> KeyValue:
        """Return the value of a key and its token; token 0 says that there is none."""
        entry = self._entries.get(key, _NO_ENTRY)
        return KeyValue(value=entry.value, token=entry.token)

    def set(self, command: SetKey) -> KeyValue:
        """Set a key if its token is the one given, and say what is there now; an empty value removes the key.

        The same command again, after a lost reply, gets the same answer, also when others have set or removed the key
        since: it is known by its writer. Who is told that it lost would else do a second time what was done.
        """
        _check_size(command)
        entry = self._entries.get(command.key) or self._removed.get(command.key, _NO_ENTRY)
        done = entry.find(command)
        if done is not None:
            return KeyValue(value=command.value, token=done.token, is_set=True)
        if entry.token != command.token:
            return KeyValue(value=entry.value, token=entry.token)
        if not command.value:
            if entry.token:
                self._remove(command, entry)
            return KeyValue(is_set=True)
        self._check_room(command)
        self._revision = self.revision + 1
        change = Change(command.writer, command.token, self._revision, _digest(command.value))
        self._entries[command.key] = Entry(command.value, self._revision, (*entry.changes, change)[-MAX_WRITERS:])
        self._removed.pop(command.key, None)
        return KeyValue(value=command.value, token=self._revision, is_set=True)

    def set_by_count(self, command: SetKey) -> KeyValue:
        """Decide as rules 0 did: a token counts how often a key was set, from 1 on after each removal."""
        _check_size(command)
        entry = self._entries.get(command.key)
        token = 0 if entry is None else entry.token
        if token == command.token:
            if not command.value:
                self._entries.pop(command.key, None)
                return KeyValue(is_set=True)
            self._check_room(command)
            change = Change(command.writer, token, token + 1)
            changes = (*(entry.changes if entry else ()), change)[-MAX_WRITERS:]
            self._entries[command.key] = entry = Entry(command.value, token + 1, changes)
        elif entry is None:
            return KeyValue(is_set=not command.value)
        if entry.find(command) is not None:
            return KeyValue(value=command.value, token=command.token + 1, is_set=True)
        return KeyValue(value=entry.value, token=entry.token)

    def record(self) -> dict[str, Any]:
        """Return what must survive a restart of the coordinator."""
        return {
            "revision": self._revision,
            "entries": [
                [key, b64encode(entry.value).decode(), entry.token, list(map(list, entry.changes))]
                for key, entry in sorted(self._entries.items())
            ],
            "removed": [[key, list(map(list, entry.changes))] for key, entry in self._removed.items()],
        }

    def restore(self, record: dict[str, Any] | list[list[Any]]) -> None:
        """Take over what :meth:`record` returned, or what it did under rules 0."""
        if isinstance(record, list):
            for key, value, token, *writers in record:
                first = token - len(writers)
                changes = tuple(Change(writer, first + n, first + n + 1) for n, writer in enumerate(writers))
                self._entries[key] = Entry(b64decode(value), token, changes)
            return
        self._revision = record["revision"]
        for key, value, token, rows in record["entries"]:
            self._entries[key] = Entry(b64decode(value), token, tuple(Change(*row) for row in rows))
        for key, rows in record["removed"]:
            self._removed[key] = Entry(b"", 0, tuple(Change(*row) for row in rows))

    def _remove(self, command: SetKey, entry: Entry) -> None:
        # A removal is a change like others, so that what is set afterwards has a number of its own.
        self._revision = self.revision + 1
        del self._entries[command.key]
        change = Change(command.writer, command.token, 0, _digest(b""))
        changes = (*entry.changes, change)[-MAX_WRITERS:]
        self._removed[command.key] = Entry(b"", 0, changes)
        if len(self._removed) > MAX_REMOVED:
            del self._removed[next(iter(self._removed))]

    def _check_room(self, command: SetKey) -> None:
        """Raise QuotaExceededError if the value has no room among the others."""
        if command.key not in self._entries:
            if len(self._entries) >= self._max_keys:
                raise QuotaExceededError("keys in one job", limit=self._max_keys)
            self._check_quota()
        others = (each.value for key, each in self._entries.items() if key != command.key)
        if sum(map(len, others)) + len(command.value) > MAX_TOTAL_BYTES:
            raise QuotaExceededError("bytes in the keys of one job", limit=MAX_TOTAL_BYTES)


def _digest(value: bytes) -> str:
    return blake2b(value, digest_size=8).hexdigest()


def _check_size(command: SetKey) -> None:
    if not 0 < len(command.key) <= MAX_KEY_LENGTH:
        raise BadCommandError(f"a key of {len(command.key)} characters; use 1 to {MAX_KEY_LENGTH}")
    if len(command.value) > MAX_VALUE_BYTES:
        raise BadCommandError(
            f"key {command.key!r} with {len(command.value)} bytes; keep at most {MAX_VALUE_BYTES} in a key"
        )
