"""RetryPolicy: how long a store may take, and how often it is asked again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from strata.clock import backoff_s

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Bounds on one request to an object store; every wait ends by them.

    A request that fails for a reason that may pass (no connection, a timeout, 429, 5xx) is sent again after a
    wait that doubles from ``first_backoff_s`` to ``max_backoff_s``, with jitter, so that a store that answers
    503 is not stormed. ``request_timeout_s`` must suffice for one part at the slowest speed that is to work.
    """

    max_attempts: int = 8
    max_elapsed_s: float = 120.0
    first_backoff_s: float = 0.1
    max_backoff_s: float = 10.0
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts={self.max_attempts} must be 1 or more")
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
            "max_retries": (max_attempts or self.max_attempts) - 1,
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
