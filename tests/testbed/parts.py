"""Asking for a real part: present, or a skip that says how to bring it, or in CI a failure."""

from __future__ import annotations

import os

import pytest

from scripts.parts import PARTS, install_command


def require_part(name: str) -> None:
    """Go on only if the part is here. CI has every part, so there a missing one is a failure, not a skip."""
    if not (lacks := PARTS[name].missing()):
        return
    message = f"needs {PARTS[name].what}, which lacks {', '.join(lacks)}: {install_command(name)}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
