"""The built page over HTTP: its files, how long a browser may keep them, and what it may load.

Every file is read once and then answered from memory, so that no path of a request ever reaches a file system.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".md": "text/markdown; charset=utf-8",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFETY: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
# Paths of the API: an unknown one is an error there, never the page.
_API: Final = ("api/", "metrics")
_NOT_BUILT: Final = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Strata</title>
<h1>The dashboard is not built here</h1>
<p>The coordinator runs, and its API answers: <a href="api/dashboard">/api/dashboard</a>.</p>
<p>In a clone of the repository, <code>make dashboard</code> builds the page; it needs npm (node 20.19 or newer).
Then start the coordinator again. A released wheel has the page in it.</p>
<p>Without the page, <code>strata top</code> shows a job at a glance in a terminal.</p>
</html>
"""


@dataclass(frozen=True)
class StaticFile:
    """One file of the page as it is answered."""

    content_type: str
    body: bytes
    cache_control: str
    etag: str = field(init=False)
    gzipped: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "etag", f'"{hashlib.sha256(self.body).hexdigest()[:24]}"')
        # A fixed time in the header, so that the same file has the same bytes; a font is compressed already.
        packed = b"" if self.content_type == _TYPES[".woff2"] else gzip.compress(self.body, 6, mtime=0)
        object.__setattr__(self, "gzipped", packed)

    def respond(self, request: Request, *, status: int = 200) -> Response:
        """Return the answer to a request, which is empty if the browser has the file."""
        headers = {**_SAFETY, "ETag": self.etag, "Cache-Control": self.cache_control, "Vary": "Accept-Encoding"}
        known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
        if status == 200 and self.etag in known:
            return Response(status_code=304, headers=headers)
        body = self.body
        if self.gzipped and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = self.gzipped, "gzip"
        return Response(body, status, headers, media_type=self.content_type)


class Site:
    """The page in a folder, or what to do about its absence."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder
        self._files: dict[str, StaticFile] | None = None

    @property
    def is_built(self) -> bool:
        """Whether there is a page to show."""
        return (self._folder / "index.html").is_file()

    def respond(self, request: Request) -> Response:
        """Return a file of the page; an address that is no file's is the page itself, which knows what it means."""
        path = request.url.path.lstrip("/")
        if path.startswith(_API):
            raise HTTPException(404)
        if not self.is_built:
            return StaticFile(_TYPES[".html"], _NOT_BUILT, "no-store").respond(request, status=404)
        if self._files is None:
            self._files = _read(self._folder)
        name = path if "." in path.rpartition("/")[2] else "index.html"
        if (found := self._files.get(name)) is None:
            raise HTTPException(404)
        return found.respond(request)

    def route(self) -> Route:
        """Return the route that answers whatever no route before it does."""

        async def answer(request: Request) -> Response:
            return self.respond(request)

        return Route("/{path:path}", answer, methods=["GET"], include_in_schema=False)


def _read(folder: Path) -> dict[str, StaticFile]:
    files = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in _TYPES:
            name = path.relative_to(folder).as_posix()
            # The names of assets carry a digest of what is in them; all others are asked for each time.
            cache = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
            files[name] = StaticFile(_TYPES[path.suffix], path.read_bytes(), cache)
    return files
