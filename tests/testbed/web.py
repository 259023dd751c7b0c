"""A web server with files in memory: with ranges or without, and with the few pages of a hub of datasets."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

HUB = re.compile(r"/api/datasets/([^/]+/[^/]+)/(revision|tree)/([^/?]+)")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class WebServer(ThreadingHTTPServer):
    """Serves ``files`` by path; ``asked`` is each request's path, and the range that it asked for.

    Each entry of ``faults`` is what one request gets in place of its reply: an HTTP status, no reply at all, or half of
    one. ``redirects`` leads from paths to URLs, and ``tokens`` has the Authorization header of each request.
    """

    daemon_threads = True

    def __init__(
        self, *, has_ranges: bool = True, has_length: bool = True, has_total: bool = True, has_etag: bool = True
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.tokens: list[str | None] = []
        self.faults: list[int | Literal["no reply", "half a reply"]] = []
        self.redirects: dict[str, str] = {}
        self.has_ranges = has_ranges
        self.has_length = has_length
        self.has_total = has_total
        self.has_etag = has_etag

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    protocol_version = "HTTP/1.0"

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((path, self.headers.get("Range")))
        self.server.tokens.append(self.headers.get("Authorization"))
        fault = self.server.faults.pop(0) if self.server.faults else None
        if fault == "no reply":
            return
        if isinstance(fault, int):
            self._send(fault, b"", {})
            return
        if target := self.server.redirects.get(path):
            self._send(302, b"", {"Location": target})
            return
        if found := HUB.match(path):
            self._answer_hub(found[1], found[2])
            return
        path = re.sub(rf"^/datasets/([^/]+/[^/]+)/resolve/{COMMIT}/", r"/hub/\1/", path)
        data = self.server.files.get(path)
        if data is None:
            self._send(404, b"", {})
            return
        headers = {"ETag": '"' + hashlib.md5(data).hexdigest() + '"'} if self.server.has_etag else {}
        is_cut = fault == "half a reply"
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.server.has_ranges:
            start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data) if self.server.has_total else '*'}"
            self._send(206, data[start : end + 1], headers, is_cut=is_cut)
        else:
            self._send(200, data, headers, is_cut=is_cut)

    def _answer_hub(self, repository: str, what: str) -> None:
        start = f"/hub/{repository}/"
        files = {path.removeprefix(start): data for path, data in self.server.files.items() if path.startswith(start)}
        if not files:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif what == "revision":
            self._send(200, json.dumps({"id": repository, "sha": COMMIT, "siblings": []}).encode(), {})
        else:
            tree = [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in files.items()
            ]
            self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, is_cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.server.has_length:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if is_cut else data)


@contextmanager
def serve_files(**options: bool) -> Iterator[WebServer]:
    """Run a server until the end of the block."""
    server = WebServer(**options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
