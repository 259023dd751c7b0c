"""RetryPolicy: how long a store may take, and how often it is asked again.

A store that restarts is away for seconds to minutes, and refuses connections at once: so what bounds a request is time,
and not a number of attempts. Requests that make up an operation by themselves are tried again by :class:`Patience`,
which leaves the reason for the log; parts of an upload and ranges of a read are tried again inside obstore, with the
same bounds. What waits for long is logged by :mod:`strata.storage.waits`.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from strata.clock import backoff_s
from strata.errors import StorageUnavailableError
from strata.storage.waits import note_problem

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

# obstore takes a number; the time ends it long before.
_UNBOUNDED = 1_000_000
# After so many attempts in a row obstore gives an operation back, and Patience knows why it failed.
QUICK_ATTEMPTS = 4
_JITTER = random.SystemRandom()


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Bounds on one request to an object store; every wait ends by them.

    A request that fails for a reason that may pass (no connection, a timeout, 429, 5xx) is sent again after a
    wait that doubles from ``first_backoff_s`` to ``max_backoff_s``, with jitter, so that a store that answers
    503 is not stormed. It goes on for ``max_elapsed_s``, and for at most ``max_attempts`` if that is given.
    ``request_timeout_s`` must suffice for one part at the slowest speed that is to work.
    """

    max_attempts: int | None = None
    max_elapsed_s: float = 300.0
    first_backoff_s: float = 0.1
    max_backoff_s: float = 10.0
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError(
                f"max_attempts={self.max_attempts} must be 1 or more, or None for as many as there is time"
            )
        for name in (
            "max_elapsed_s",
            "first_backoff_s",
            "max_backoff_s",
            "connect_timeout_s",
            "request_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be more than 0")

    def retry_config(self, *, max_attempts: int | None = None) -> RetryConfig:
        """The same bounds in obstore's words."""
        return {
            "max_retries": (max_attempts or self.max_attempts or _UNBOUNDED) - 1,
            "retry_timeout": timedelta(seconds=self.max_elapsed_s),
            "backoff": {
                "init_backoff": timedelta(seconds=self.first_backoff_s),
                "max_backoff": timedelta(seconds=self.max_backoff_s),
                "base": 2,
            },
        }

    def client_config(self, *, allow_http: bool) -> ClientConfig:
        """The timeouts in obstore's words."""
        return {
            "allow_http": allow_http,
            "connect_timeout": timedelta(seconds=self.connect_timeout_s),
            "timeout": timedelta(seconds=self.request_timeout_s),
        }

    def backoff_s(self, attempt: int, jitter: float) -> float:
        """How long to wait after the attempt of this number, counted from 1; ``jitter`` is from 0 to 1."""
        return backoff_s(attempt - 1, first_s=self.first_backoff_s, max_s=self.max_backoff_s, chance=jitter)


class Patience:
    """The time that one operation has left, and how long to pause before it is tried again."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._started_s = time.monotonic()
        self._rounds = 0
        self.attempts = 0

    async def pause(self, error: StorageUnavailableError, *, hint: str = "") -> None:
        """Wait before another attempt; raise the error, with all attempts in it, when there is no time left."""
        self._rounds += 1
        self.attempts += error.attempts
        elapsed_s = time.monotonic() - self._started_s
        wait_s = self._policy.backoff_s(self._rounds, _JITTER.random())
        most = self._policy.max_attempts
        if (most is not None and self.attempts >= most) or elapsed_s + wait_s > self._policy.max_elapsed_s:
            raise StorageUnavailableError(
                error.path,
                backend=error.backend,
                problem=error.reason,
                attempts=self.attempts,
                elapsed_s=elapsed_s,
                hint=hint + error.hint,
            ) from None
        note_problem(f"{error.reason}; trying again for {self._policy.max_elapsed_s:.0f} s in all")
        await asyncio.sleep(wait_s)
