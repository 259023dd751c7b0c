"""Entries as bytes, the same in every journal; and applied again, with who caused them.

The bytes are those of a ``strata.v1.Command``. Whose token it came with, and by which rules it was decided, stands in
fields that a version without them leaves out when it writes, and passes over when it reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata.cluster import Cluster
from strata.cluster.cluster import RULES
from strata.cluster.events import NOBODY
from strata.coordinator.journal.protocol import Entry
from strata.errors import JournalVersionError
from strata.wire import convert
from strata.wire._generated import coordinator_pb2 as pb


def encoded(entry: Entry) -> Entry:
    """Return an entry that brings its bytes.

    They are made where commands are applied, and not in the thread that writes them: while that runs Python, everyone
    waits for their turn at the interpreter, for each socket anew.
    """
    return entry._replace(data=encode_entry(entry))


def encode_entry(entry: Entry) -> bytes:
    """Return an entry without its time; equal entries give equal bytes."""
    if entry.data:
        return entry.data
    message = convert.command_to_message(entry.command)
    message.by, message.address = entry.by
    message.rules = entry.rules
    return message.SerializeToString(deterministic=True)


def decode_entry(data: bytes, at_s: float, *, where: str) -> Entry:
    """Return the entry of these bytes and this time.

    Raise DecodeError if they are no command, and JournalVersionError if they are one of another version of Strata.
    ``where`` names the journal in that error.
    """
    message = pb.Command.FromString(data)
    by = (message.by, message.address) if message.by or message.address else NOBODY
    if message.rules > RULES:
        found = f"an entry that was decided by rules {message.rules}"
        raise JournalVersionError(where, found=found, known=f"rules 0 to {RULES}")
    try:
        command = convert.command_from_message(message)
    except ValueError as error:
        # Its digest was checked, so this is what was written.
        found = f"an entry of a kind that is not known ({error})"
        raise JournalVersionError(where, found=found, known=f"the commands of rules 0 to {RULES}") from error
    return Entry(command, at_s, by, rules=message.rules)


def replay(cluster: Cluster, entries: Iterable[Entry]) -> None:
    """Apply entries again, so that their events say who caused them, as they did the first time."""
    for entry in entries:
        cluster.events.by = entry.by
        cluster.apply(entry.command, entry.at_s, rules=entry.rules)
    cluster.events.by = NOBODY
