"""The house stays one in which things are found: small folders, a docstring for each, and distinct module names."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "strata"
MAX_FILES = 15


def folders_with_too_many(root: Path) -> dict[str, int]:
    counts = Counter(
        path.parent.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    )
    return {folder: count for folder, count in counts.items() if count > MAX_FILES}


def names_with_two_homes(package: Path) -> dict[str, list[str]]:
    """Return the modules of one name that are in two folders of the same top-level package."""
    homes = defaultdict(list)
    for path in package.rglob("*.py"):
        place = path.relative_to(package)
        if path.name not in ("__init__.py", "__main__.py") and "_generated" not in place.parts and len(place.parts) > 1:
            homes[f"{place.parts[0]}: {path.stem}"].append(place.as_posix())
    return {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1}


def test_no_folder_shows_more_files_than_a_look_takes_in() -> None:
    assert folders_with_too_many(ROOT / "src") == {}
    assert folders_with_too_many(ROOT / "tests") == {}
    assert folders_with_too_many(ROOT / "benchmarks") == {}


def test_no_two_modules_of_neighbouring_rooms_have_one_name() -> None:
    assert PACKAGE.is_dir()
    assert names_with_two_homes(PACKAGE) == {}


def folders_without_a_description(package: Path) -> list[str]:
    """Return the packages whose docstring does not say, in ten words or more, what is in them."""
    doors = {door.parent.relative_to(package).as_posix(): door.read_text() for door in package.rglob("__init__.py")}
    return [name for name, text in doors.items() if len((ast.get_docstring(ast.parse(text)) or "").split()) < 10]


def test_every_package_and_room_says_what_lives_there() -> None:
    assert folders_without_a_description(PACKAGE) == []


def test_the_rules_of_the_house_can_be_broken(tmp_path: Path) -> None:
    for place in ("crowd", "data/rows", "data/files", "storage"):
        (tmp_path / place).mkdir(parents=True)
    for number in range(MAX_FILES + 1):
        (tmp_path / "crowd" / f"f{number}.py").touch()
    for path in ("data/rows/index.py", "data/files/index.py", "data/protocol.py", "storage/protocol.py"):
        (tmp_path / path).touch()
    (tmp_path / "data/__init__.py").write_text('"""Rows and files, for training loops that read them in some order."""')
    (tmp_path / "storage/__init__.py").write_text('"""Storage."""')
    assert folders_without_a_description(tmp_path) == ["storage"]
    assert folders_with_too_many(tmp_path) == {"crowd": MAX_FILES + 1}
    assert names_with_two_homes(tmp_path) == {"data: index": ["data/files/index.py", "data/rows/index.py"]}
