"""The built page over HTTP: what is answered, how long it may be kept, and what it may load."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from strata.dashboard.site import STATIC, Site

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.responses import Response

# The whole page, compressed: with it, the first paint stays within a second on a slow line.
MAX_PAGE_BYTES = 300_000


def ask(site: Site, path: str, **headers: str) -> Response:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": raw, "server": ("x", 80)}
    return site.respond(Request(scope))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<p>page</p>" * 100)
    (tmp_path / "assets" / "index-1a2b.js").write_text("run();" * 100)
    return Site(tmp_path)


@pytest.mark.parametrize("path", ["/", "/workers", "/charts", "/no-such-page"])
def test_every_address_of_the_page_is_the_page(site: Site, path: str) -> None:
    answer = ask(site, path)
    assert answer.status_code == 200
    assert answer.body.startswith(b"<p>page</p>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["/assets/gone.js", "/api/nothing", "/metrics", "/../site.py", "/assets/../../site.py", "/%2e%2e/site.py"]
)
def test_what_is_no_file_of_the_page_is_not_found(site: Site, path: str) -> None:
    with pytest.raises(HTTPException) as caught:
        ask(site, path)
    assert caught.value.status_code == 404


def test_only_files_whose_name_changes_with_them_are_kept_without_asking(site: Site) -> None:
    assert ask(site, "/assets/index-1a2b.js").headers["cache-control"] == "public, max-age=31536000, immutable"
    assert ask(site, "/").headers["cache-control"] == "no-cache"


def test_a_browser_that_has_the_file_gets_nothing(site: Site) -> None:
    etag = ask(site, "/").headers["etag"]
    assert ask(site, "/", if_none_match=f'"other", W/{etag}').status_code == 304
    assert ask(site, "/", if_none_match='"other"').status_code == 200


def test_files_are_compressed_for_who_can_read_that(site: Site) -> None:
    packed = ask(site, "/", accept_encoding="br, gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == ask(site, "/").body
    assert "content-encoding" not in ask(site, "/").headers


def test_the_page_may_load_nothing_from_elsewhere_and_run_no_inline_script(site: Site) -> None:
    policy = ask(site, "/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_without_a_build_the_page_says_how_to_get_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    answer = ask(site, "/")
    assert answer.status_code == 404
    assert b"make dashboard" in answer.body
    # Once it is built, it is there.
    (tmp_path / "index.html").write_text("page")
    assert ask(site, "/").body == b"page"


@pytest.mark.part("dashboard")
def test_the_built_page_stays_small() -> None:
    site = Site()
    files = [path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".md"]
    sizes = {path.name: len(ask(site, f"/{path.relative_to(STATIC)}", accept_encoding="gzip").body) for path in files}
    assert len(sizes) >= 4
    assert sum(sizes.values()) < MAX_PAGE_BYTES, sizes


@pytest.mark.part("dashboard")
def test_the_built_page_names_no_other_host_to_load_from() -> None:
    page = (STATIC / "index.html").read_text()
    assert "http" not in page
    styles = "".join(path.read_text() for path in STATIC.rglob("*.css"))
    assert "http" not in styles
    assert "@import" not in styles
