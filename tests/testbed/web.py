"""A web server with files in memory: with ranges or without, and with the few pages of a hub of datasets."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

HUB = re.compile(r"/api/datasets/([^/]+/[^/]+)/(revision|tree)/([^/?]+)")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class WebServer(ThreadingHTTPServer):
    """Serves ``files`` by path; ``asked`` is each request's path, and the range that it asked for."""

    daemon_threads = True

    def __init__(self, *, has_ranges: bool = True, has_length: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.has_ranges = has_ranges
        self.has_length = has_length

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
        if found := HUB.match(path):
            self._answer_hub(found[1], found[2])
            return
        path = re.sub(rf"^/datasets/([^/]+/[^/]+)/resolve/{COMMIT}/", r"/hub/\1/", path)
        data = self.server.files.get(path)
        if data is None:
            self._send(404, b"", {})
            return
        etag = '"' + hashlib.md5(data).hexdigest() + '"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.server.has_ranges:
            start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            self._send(206, data[start : end + 1], {"Content-Range": f"bytes {start}-{end}/{len(data)}", "ETag": etag})
        else:
            self._send(200, data, {"ETag": etag})

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

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.server.has_length:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


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
