"""What the repository's own files promise about each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)", fenced)) | set(re.findall(r"`make ([a-z-]+)", text))
    later = set(re.findall(r"`make ([a-z-]+)`[^.|\n]*not yet", text))
    assert named - later, page
    assert named - later <= TARGETS


def test_no_requirement_names_a_registry() -> None:
    for path in (ROOT / "requirements").glob("*.*"):
        assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links", path.read_text()), path


def test_no_lock_of_a_node_package_names_a_registry() -> None:
    for path in (ROOT / "requirements").glob("*/package-lock.json"):
        assert '"resolved"' not in path.read_text(), path


def test_every_pinned_requirement_has_a_hash() -> None:
    for name in ("dev.txt", "services.txt", "bench.txt"):
        text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
        pins = [line for line in text.splitlines() if "==" in line and not line.startswith("#")]
        assert pins, name
        assert all("--hash=sha256:" in line for line in pins), name


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"
