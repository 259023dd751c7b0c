"""A missing real part is a skip that says how to bring it, and in CI a failure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import parts
from scripts.parts import PARTS, Part
from tests.testbed.parts import import_part, require_part


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


@pytest.mark.usefixtures("_missing_part")
def test_a_file_that_needs_a_missing_part_is_skipped_whole_and_in_ci_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception) as caught:
        import_part("absent", "no_such_module")
    assert caught.value.allow_module_level
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="make services PARTS=absent"):
        import_part("absent", "no_such_module")


def test_no_library_but_ray_is_skipped_without_being_a_part() -> None:
    """Such a skip also happens in CI, where nobody would see that the library is gone."""
    call = re.compile(r"importorskip\(\"(\w+)")
    folder = Path(__file__).parents[1]
    assert {name for file in folder.rglob("*.py") for name in call.findall(file.read_text())} == {"ray"}


def test_an_unknown_part_is_refused_with_the_names_there_are() -> None:
    command = [sys.executable, "-m", "scripts.parts", "install", "mainframe"]
    done = subprocess.run(command, cwd=Path(parts.__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no part mainframe; there are s3, s3-weak, gcs" in done.stderr
