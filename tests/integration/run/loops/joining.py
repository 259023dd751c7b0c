"""Joining a job in the process of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import strata


def join(folder: Path, url: str | None = None, worker_id: str = "w", **fields: Any) -> strata.Run:
    """Join at a coordinator, or run alone."""
    place: dict[str, Any] = {"local": True} if url is None else {"coordinator_url": url}
    options = {"worker_id": worker_id, "checkpoints": folder / "checkpoints", "save_every": "3 steps", **fields}
    return strata.join(**place, **options)
