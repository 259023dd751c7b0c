"""The documentation's site: every public name has its entry, links lead somewhere, and nothing comes from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

import strata
from scripts import site

pytestmark = [pytest.mark.part("docs"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    site.build(folder)
    return folder


def test_every_public_name_has_its_entry(built: Path) -> None:
    page = (built / "api.html").read_text()
    assert {f"strata.{name}" for name in strata.__all__ if name != "__version__"} <= set(site.public_names())
    assert [name for name in strata.__all__ if name != "__version__" and f'id="strata.{name}"' not in page] == []


def test_every_page_of_docs_is_in_the_site(built: Path) -> None:
    pages = {page.stem for page in (site.ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in built.glob("*.html")}


def test_the_site_needs_no_network(built: Path) -> None:
    assert site.find_outside(built) == set()


def test_a_page_that_loads_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<link rel="stylesheet" href="https://fonts.example/a.css"><script src="http://cdn.example/b.js"></script>'
        '<a href="https://link.example">a link</a>'
    )
    (tmp_path / "style.css").write_text("@font-face { src: url('https://fonts.example/c.woff2') }")
    assert site.find_outside(tmp_path) == {
        "https://fonts.example/a.css",
        "http://cdn.example/b.js",
        "https://fonts.example/c.woff2",
    }
