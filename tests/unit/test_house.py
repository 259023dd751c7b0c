"""The house stays one in which things are found: small rooms, short files, and one home for each name."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "strata"
MAX_FILES = 15
MAX_LINES = 400
# A name that two packages share must mean one idea, seen from both. What it means is said here.
SHARED_NAMES = {
    "protocol": "the interface that a room offers to the rooms above it",
    "errors": "Strata's errors, and in wire what each of them is as a status",
    "config": "the settings, and in cli the command that prints them",
    "run": "the Run of a training process, and in cli the command that starts such processes",
    "status": "what a job is doing, and in cli the command that prints it",
    "commits": "the worker's and the coordinator's half of a commit",
    "job": "a job as the coordinator keeps it, and in cli the commands about jobs",
    "logs": "how a program logs: the coordinator, and the workers of a run",
    "progress": "how far something is: a save, and what cli and the launcher show",
    "tensors": "what a safetensors file is to a checkpoint, and to a dataset",
}


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "_generated" not in path.parts)


def folders_with_too_many(root: Path) -> dict[str, int]:
    counts = Counter(
        path.parent.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    )
    return {folder: count for folder, count in counts.items() if count > MAX_FILES}


def names_with_two_homes(package: Path) -> dict[str, list[str]]:
    """Modules of one name: in two rooms of one package, or in two packages that do not share the name on purpose."""
    homes = defaultdict(list)
    for path in sources(package):
        # The files of the errors package are named after the layer whose errors they hold.
        if path.name not in ("__init__.py", "__main__.py") and path.parent != package / "errors":
            homes[path.stem].append(path.relative_to(package))
    return {
        name: [str(path) for path in paths]
        for name, paths in homes.items()
        if any(one.parts[0] == other.parts[0] or name not in SHARED_NAMES for one, other in combinations(paths, 2))
    }


def test_no_folder_shows_more_files_than_a_look_takes_in() -> None:
    assert folders_with_too_many(ROOT / "src") == {}
    assert folders_with_too_many(ROOT / "tests") == {}
    assert folders_with_too_many(ROOT / "benchmarks") == {}


def test_no_source_file_is_too_long_to_read_at_once() -> None:
    places = [ROOT / "src", ROOT / "scripts", ROOT / "tests" / "testbed", ROOT / "tests" / "simulation"]
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for place in places
        for path in sources(place)
    }
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_two_modules_of_neighbouring_rooms_have_one_name() -> None:
    assert names_with_two_homes(PACKAGE) == {}


def test_every_package_and_room_says_what_lives_there() -> None:
    silent = [path for path in PACKAGE.rglob("__init__.py") if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_the_rules_of_the_house_can_be_broken(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        (tmp_path / "crowd").mkdir(exist_ok=True)
        (tmp_path / "crowd" / f"f{number}.py").touch()
    for room in ("data/rows", "data/files", "run/loop", "storage"):
        (tmp_path / room).mkdir(parents=True)
    for path in ("data/rows/index.py", "data/files/index.py", "data/placement.py", "run/loop/placement.py"):
        (tmp_path / path).touch()
    (tmp_path / "data/protocol.py").touch()
    (tmp_path / "storage/protocol.py").touch()
    assert folders_with_too_many(tmp_path) == {"crowd": MAX_FILES + 1}
    assert set(names_with_two_homes(tmp_path)) == {"index", "placement"}
