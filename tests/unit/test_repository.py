"""What the repository's own files promise about each other."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    commands = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)", commands)) | set(re.findall(r"`make ([a-z-]+)", text))
    later = set(re.findall(r"`make ([a-z-]+)`[^.|\n]*not yet", text))
    assert named - later, page
    assert named - later <= TARGETS


def test_no_compiled_module_is_beside_the_sources() -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "Makefile" in listed
    assert [path for path in listed if path.endswith(".pyc")] == []


def test_no_requirement_names_a_registry() -> None:
    paths = list((ROOT / "requirements").glob("*.*"))
    assert ROOT / "requirements" / "dev.txt" in paths
    for path in paths:
        assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links", path.read_text()), path


def test_no_lock_of_a_node_package_names_a_registry() -> None:
    for path in (*(ROOT / "requirements").glob("*/package-lock.json"), ROOT / "dashboard" / "package-lock.json"):
        assert '"resolved"' not in path.read_text(), path


def test_nothing_is_resolved_where_a_lock_is_installed() -> None:
    """A release that is newer than the lock has no hash there, and pip refuses it before it looks at the lock."""
    found = 0
    for path in (ROOT / "Makefile", *ROOT.glob("Dockerfile*"), *(ROOT / "scripts").glob("*.py")):
        for place in re.finditer("--require-hashes", text := path.read_text()):
            found += 1
            assert "--no-deps" in text[place.start() - 20 : place.end() + 20], path
    assert found


def test_every_pinned_requirement_has_a_hash() -> None:
    for name in ("dev.txt", "services.txt", "bench.txt", "build.txt", "mutate.txt", "coordinator.txt", "worker.txt"):
        text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
        pins = [line for line in text.splitlines() if "==" in line and not line.startswith("#")]
        assert pins, name
        assert all("--hash=sha256:" in line for line in pins), name


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """Return the names that a page's headings have in links, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    """Return the links of a page to files that are not there, and to headings that no page has."""
    dead = []
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", without_code(page)):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            dead.append(f"{target}#{anchor}")
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other page\n")
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](other.md#other-page) [b](#here) [c](gone.md) [d](other.md#gone) [e](#gone)\n")
    assert dead_links(page) == ["gone.md#", "other.md#gone", "#gone"]


def test_every_direct_dependency_and_extra_has_a_decision() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    decisions = (ROOT / "docs" / "decisions.md").read_text().split("## Written by hand")[0].lower()
    wanted = [*project["dependencies"], *(each for libraries in extras.values() for each in libraries)]
    names = {re.match(r"[\w.-]+", each)[0].lower() for each in wanted}
    assert names
    assert {name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", decisions)} == set()
    assert {name for name in extras if f"`{name}`" not in decisions and name not in decisions.split()} == set()


def test_no_extra_brings_only_what_every_user_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.match(r"[\w.-]+", each)[0] for each in project["dependencies"]}
    for extra, libraries in project["optional-dependencies"].items():
        assert {re.match(r"[\w.-]+", each)[0] for each in libraries} - core, extra


SILENCER = re.compile(r"#\s*(?:type:\s*ignore|(?:ruff:\s*)?noqa|(?:mypy|pyright|pylint):)", re.IGNORECASE)
WITH_REASON = re.compile(r"# type: ignore\[[\w, -]+\]  # \w|# noqa: [A-Z]+\d+(?:, [A-Z]+\d+)* - \w")


def silenced_without_reason(source: str) -> list[int]:
    """Return the lines with a comment that silences mypy or ruff and does not name the rule and the reason.

    A comment that silences a rule for a whole file is among them: pyproject.toml is the place for that.
    """
    if not SILENCER.search(source):
        return []
    return [
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
        and len(SILENCER.findall(token.string)) > len(WITH_REASON.findall(token.string))
    ]


def test_every_ignore_and_noqa_states_its_reason() -> None:
    files = [
        path for name in ("src", "scripts", "benchmarks", "tests", "examples") for path in (ROOT / name).rglob("*.py")
    ]
    written = [path for path in files if "_generated" not in path.parts and "_pb2" not in path.name]
    silenced = {path.relative_to(ROOT).as_posix(): silenced_without_reason(path.read_text()) for path in written}
    assert "src/strata/cluster/validation.py" in silenced
    assert {path: lines for path, lines in silenced.items() if lines} == {}


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("x = f()  # type: ignore[attr-defined]  # the stubs lack it", False),
        ("x = f()  # noqa: S311, PTH100 - jitter, not a secret", False),
        ("x = f()  # type: ignore[misc]  # why  # noqa: S311 - and why", False),
        ("x = '# noqa'", False),
        ("x = f()  # type: ignore", True),
        ("x = f()  # type: ignore[attr-defined]", True),
        ("x = f()  # type: ignore  # no rule", True),
        ("x = f()  # noqa", True),
        ("x = f()  # noqa: S311", True),
        ("x = f()  # noqa: S311 -", True),
        ("x = f()  # type: ignore[misc]  # noqa: S311 - a reason for one of the two", True),
        ("# ruff: noqa: S311", True),
        ("# mypy: ignore-errors", True),
    ],
)
def test_an_ignore_or_noqa_without_a_reason_is_found(line: str, is_refused: bool) -> None:
    assert silenced_without_reason(f"import os\n{line}\n") == [2] * is_refused
