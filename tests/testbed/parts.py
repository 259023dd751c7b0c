"""Asking for a real part: present, or a skip that says how to bring it, or in CI a failure."""

from __future__ import annotations

import importlib
import os
import resource
from typing import Any

import pytest

from scripts.parts import PARTS, install_command


def require_part(name: str) -> None:
    """Go on only if the part is here. CI has every part, so there a missing one is a failure, not a skip."""
    if not (lacks := PARTS[name].missing()):
        return
    _give_up(f"needs {PARTS[name].what}, which lacks {', '.join(lacks)}: {install_command(name)}")


class LazyModule:
    """A module of a part, for a test file that uses it everywhere; imported when it is used first.

    Such a file can be collected without the part, and marks all of its tests with it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # pytest looks at everything in a module when it collects
        return getattr(importlib.import_module(self._name), attribute)


def require_root() -> None:
    """Go on only if this process may mount file systems."""
    if os.geteuid() != 0:
        _give_up("needs root, to mount a file system: sudo make test-full")


def require_open_files(count: int) -> None:
    """Go on only if this process may open so many files at once."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < count:
        _give_up(f"needs {count} open files, and this system allows {allowed}: raise its hard limit (ulimit -Hn)")


def _give_up(message: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
