"""docs/architecture.md names files and functions: each of them exists, so that a reader can follow it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts import rooms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS, QUESTIONS = PAGE.split("## Five walks")[1].split("## Where is")
NAMED = re.compile(r"`([\w/]+\.py)`: `([\w.]+)`")


def defined_in(path: Path) -> set[str]:
    """Classes, functions, and methods as Class.method."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {node.name} | {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


@pytest.mark.parametrize(("file", "function"), NAMED.findall(WALKS + QUESTIONS))
def test_a_function_that_the_page_names_exists(file: str, function: str) -> None:
    assert function in defined_in(ROOT / "src" / "strata" / file)


def test_each_step_of_a_walk_and_each_question_names_a_file_and_a_function() -> None:
    steps = re.findall(r"^\d+\. (.*)$", WALKS, re.MULTILINE)
    rows = re.findall(r"^\| (?!question|-)(.*) \|$", QUESTIONS, re.MULTILINE)
    assert re.findall(r"^### (.*)$", WALKS, re.MULTILINE) == [
        "A heartbeat",
        "A registration",
        "A batch",
        "A save",
        "A restore",
    ]
    assert len(rows) >= 13
    assert [line for line in (*steps, *rows) if not NAMED.search(line)] == []


def test_the_picture_shows_every_package_and_room_in_the_order_of_the_layers(tmp_path: Path) -> None:
    for package in ("low", "high", "high/room", "high/_hidden"):
        folder = tmp_path / "src" / "strata" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f'"""What is in {package},\nin words. More that is not shown."""\n')
    (tmp_path / "src" / "strata" / "ground.py").write_text('"""The ground."""\n')
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.importlinter.contracts]]\ntype = "layers"\nlayers = ["high", "(low)", "ground"]\n'
        '[[tool.importlinter.contracts]]\ntype = "forbidden"\nsource_modules = ["strata.low"]\n'
    )
    assert [" ".join(line.split()) for line in rooms.draw(tmp_path).splitlines()] == [
        "high/ What is in high, in words.",
        "room/ What is in high/room, in words.",
        "low/ PURE. What is in low, in words.",
        "ground.py The ground.",
    ]


def test_a_stale_picture_is_replaced_and_the_rest_of_the_page_is_kept() -> None:
    page = f"before\n{rooms.BEGIN}\nold\n{rooms.END}\nafter\n"
    assert rooms.replace(page, "new") == f"before\n{rooms.BEGIN}\n```text\nnew\n```\n{rooms.END}\nafter\n"
