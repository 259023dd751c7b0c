"""Work that several threads want and only one has to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SingleFlight(Generic[Key, Value]):
    """Of all threads that want a key at one time, one makes its value, and all get that value or the error.

    Nothing is kept: who wants a key after it was made is a new owner, and looks into its cache first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Key, Future[Value]] = {}

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of one key; see :meth:`get_many`."""
        return self.get_many((key,), lambda _: {key: make()})[key]

    def get_many(self, keys: Iterable[Key], make: Callable[[Sequence[Key]], Mapping[Key, Value]]) -> dict[Key, Value]:
        """Return a value for each key; ``make`` gets those that no other thread is making, all at once.

        An owner's error is the error of all who wait for its keys. But if the owner was interrupted, as by
        ``KeyboardInterrupt``, only it was told to stop: one of those who wait makes the value.
        """
        found: dict[Key, Value] = {}
        missing = list(dict.fromkeys(keys))
        while missing:
            mine, others = self._claim(missing)
            # First what is its own, then waiting: so no two threads ever wait for each other.
            found.update(self._make(mine, make))
            for key, flight in others.items():
                try:
                    found[key] = flight.result()
                except CancelledError:
                    continue
            missing = [key for key in missing if key not in found]
        return found

    def _claim(self, keys: Sequence[Key]) -> tuple[list[Key], dict[Key, Future[Value]]]:
        """Return the keys that the caller now owns, and the flights of the rest."""
        with self._lock:
            others = {key: self._flights[key] for key in keys if key in self._flights}
            mine = [key for key in keys if key not in others]
            self._flights.update((key, Future()) for key in mine)
        return mine, others

    def _make(self, mine: Sequence[Key], make: Callable[[Sequence[Key]], Mapping[Key, Value]]) -> Mapping[Key, Value]:
        if not mine:
            return {}
        try:
            made = make(mine)
            values = {key: made[key] for key in mine}
        except Exception as error:
            for flight in self._release(mine):
                flight.set_exception(error)
            raise
        except BaseException:
            for flight in self._release(mine):
                flight.cancel()
            raise
        for flight, value in zip(self._release(mine), values.values(), strict=True):
            flight.set_result(value)
        return values

    def _release(self, keys: Sequence[Key]) -> list[Future[Value]]:
        with self._lock:
            return [self._flights.pop(key) for key in keys]
