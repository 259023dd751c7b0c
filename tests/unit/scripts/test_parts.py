"""A missing real part is a skip that says how to bring it, and in CI a failure."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import parts
from scripts.parts import PARTS, Part
from tests.testbed.parts import LazyModule, require_part


@pytest.fixture
def _missing_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "absent", Part(what="a server that nobody has", programs=("no-such-program",)))


@pytest.mark.usefixtures("_missing_part")
def test_a_missing_part_is_skipped_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception) as caught:
        require_part("absent")
    assert str(caught.value) == (
        "needs a server that nobody has, which lacks no-such-program: make services PARTS=absent"
    )


@pytest.mark.usefixtures("_missing_part")
def test_in_ci_a_missing_part_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="make services PARTS=absent"):
        require_part("absent")


def test_a_module_of_a_part_is_imported_when_it_is_used() -> None:
    absent = LazyModule("no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = absent.attribute
    assert LazyModule("math").pi == math.pi


def test_a_missing_library_is_declared_with_the_marker_alone() -> None:
    """Another kind of skip also happens in CI, where nobody would see that the library is gone."""
    skips = re.compile(r"importorskip\(|\brequire_part\(")
    folder = Path(__file__).parents[2]
    allowed = {"unit/scripts/test_parts.py", "testbed/parts.py", "testbed/plugins/lanes.py"}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if skips.search(path.read_text())}
    assert found == allowed


def test_an_unknown_part_is_refused_with_the_names_there_are() -> None:
    command = [sys.executable, "-m", "scripts.parts", "install", "mainframe"]
    done = subprocess.run(command, cwd=Path(parts.__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no part mainframe; there are s3, s3-weak, gcs" in done.stderr
