"""torch, where it is needed: imported at the moment of use, missing with words, and its errors in one line."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from strata.errors import MissingExtraError


def has_torch() -> bool:
    """Whether torch can be imported; if so, it is."""
    if find_spec("torch") is None:
        return False
    import torch  # noqa: F401 - tensors become torch's where it is imported

    return True


def need_torch(what: str) -> Any:
    """Return torch, or say what it is needed for."""
    if not has_torch():
        raise MissingExtraError("torch", needed_for=what)
    import torch

    return torch


def explain(error: Exception) -> str:
    """Say in one line what torch says in many: the last one that is no hint, after any traceback."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("Check the documentation")]
    text = "".join(each for each in (lines or [""])[-1] if each.isprintable())
    return f"{type(error).__name__}: {text:.300}"
