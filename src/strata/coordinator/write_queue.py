"""The write queue: what waits for the journal, and what may be sent when it is durable. Pure.

An output that depends on what was applied before it waits until all of that is written, whether it changed anything
itself or not. What one tenant does depends on nothing of another one's, so a tenant waits for its own entries only.
When a write fails, everything that was applied since the last good one is undone, so everything that waits fails with
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from strata.cluster.access import DEFAULT_TENANT
from strata.coordinator.journal.protocol import Entry
from strata.errors import StrataError

# Called with None when it may leave, or with why it may not.
Output = Callable[[StrataError | None], None]


class WriteQueue:
    """Entries in the order in which they were applied, written in batches, one batch at a time."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._outputs: list[tuple[str | None, Output]] = []
        self._written: list[tuple[str | None, Output]] | None = None
        # How many entries of each tenant wait for the next batch, and how many are in the one that is being written.
        self._waiting: Counter[str] = Counter()
        self._writing: Counter[str] = Counter()
        self.is_idle = True
        """Whether all that was applied is durable, so that an output may leave at once."""

    def is_settled(self, tenant: str) -> bool:
        """Whether all that was applied for a tenant is durable."""
        return not self._waiting[tenant] and not self._writing[tenant]

    @property
    def has_more(self) -> bool:
        """Whether something waits for the next batch."""
        return bool(self._entries or self._outputs)

    def add(self, entry: Entry | None, output: Output, tenant: str | None = DEFAULT_TENANT) -> None:
        """Let an output of a tenant wait for everything of it until now, and for its own entry if it has one.

        Without a tenant it waits for everything of all of them.
        """
        if entry is not None:
            assert tenant is not None
            self._entries.append(entry)
            self._waiting[tenant] += 1
            self.is_idle = False
        self._outputs.append((tenant, output))

    def begin(self) -> list[Entry]:
        """Return the entries of the next batch, to be written with one transaction."""
        assert self._written is None
        self.is_idle = False
        entries, self._entries = self._entries, []
        self._written, self._outputs = self._outputs, []
        self._writing, self._waiting = self._waiting, Counter()
        return entries

    def end(self) -> list[Output]:
        """The batch is durable: return what may leave now, in its order."""
        assert self._written is not None
        outputs, self._written = self._written, None
        self._writing = Counter()
        self.is_idle = not self._entries
        # Whoever waited for this batch alone does not wait for the next one, which holds nothing of that tenant.
        settled = [each for each in self._outputs if not self._waits(each[0])]
        self._outputs = [each for each in self._outputs if self._waits(each[0])]
        return [output for _, output in (*outputs, *settled)]

    def _waits(self, tenant: str | None) -> bool:
        return bool(self._entries) if tenant is None else bool(self._waiting[tenant])

    def abort(self) -> list[Output]:
        """The batch was not written: forget everything that waits, and return what must fail, in its order."""
        outputs = [*(self._written or ()), *self._outputs]
        self._entries, self._outputs, self._written = [], [], None
        self._waiting, self._writing = Counter(), Counter()
        self.is_idle = True
        return [output for _, output in outputs]
