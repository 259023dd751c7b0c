"""Asking for a real part: present, or a skip that says how to bring it, or in CI a failure."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from scripts.parts import PARTS, install_command


def require_part(name: str) -> None:
    """Go on only if the part is here. CI has every part, so there a missing one is a failure, not a skip."""
    if not (lacks := PARTS[name].missing()):
        return
    _give_up(f"needs {PARTS[name].what}, which lacks {', '.join(lacks)}: {install_command(name)}")


def import_part(name: str, module: str) -> Any:
    """Return a module of a part, for a test file that uses it everywhere: what is missing holds for the whole file."""
    require_part(name)
    return importlib.import_module(module)


def require_root() -> None:
    """Go on only if this process may mount file systems."""
    if os.geteuid() != 0:
        _give_up("needs root, to mount a file system: sudo make test")


def _give_up(message: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message, allow_module_level=True)
