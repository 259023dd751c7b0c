"""The picture of the rooms in docs/architecture.md: packages in the order of their layers, each in its own words."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

BEGIN = "<!-- rooms: written by `make generate` from the docstrings of src/strata -->"
END = "<!-- end of rooms -->"
INDENT = "  "
WIDTH = 18


def draw(root: Path) -> str:
    """Return one line for each package, room and module of the top floor, from the highest layer to the lowest."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    pure = {name.removeprefix("strata.") for name in _contract(contracts, "forbidden")["source_modules"]}
    lines: list[str] = []
    for layer in _contract(contracts, "layers")["layers"]:
        name = layer.strip("()")
        home = root / "src" / "strata" / name
        lines += _package(home, mark="PURE. " if name in pure else "") if home.is_dir() else [_module(home)]
    return "\n".join(lines)


def replace(page: str, picture: str) -> str:
    """Return the page with this picture between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n```text\n{picture}\n```\n{END}{after}"


def _package(folder: Path, *, mark: str = "", depth: int = 0) -> list[str]:
    rooms = sorted(path.parent for path in folder.glob("*/__init__.py") if not path.parent.name.startswith("_"))
    line = _line(f"{folder.name}/", mark + _sentence(folder / "__init__.py"), depth)
    return [line, *(each for room in rooms for each in _package(room, depth=depth + 1))]


def _module(path: Path) -> str:
    return _line(f"{path.name}.py", _sentence(path.with_suffix(".py")), 0)


def _line(name: str, text: str, depth: int) -> str:
    return f"{INDENT * depth + name:{WIDTH}} {text}"


def _sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split()).replace("``", "")
    return paragraph.split(". ")[0].rstrip(".") + "."


def _contract(contracts: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(contract for contract in contracts if contract["type"] == kind)
