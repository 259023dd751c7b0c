"""The XML API of Google Cloud Storage in front of a server that has only the JSON API.

obstore speaks XML; fake-gcs-server stores and checks preconditions, but takes writes only as JSON. This front
translates, and keeps the parts of multipart uploads until they are completed. It decides nothing itself.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.error
import urllib.request
import uuid
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.testbed.pace import stretch

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    backend: str
    uploads: dict[str, dict[int, bytes]]

    def do_GET(self) -> None:
        bucket, key, query = self._target()
        if key:
            self._read(bucket, key)
        else:
            self._list(bucket, query)

    def do_HEAD(self) -> None:
        bucket, key, _ = self._target()
        self._read(bucket, key)

    def do_PUT(self) -> None:
        bucket, key, query = self._target()
        body = self._body()
        if "uploadId" in query:
            self.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            self._answer(200, headers={"ETag": f'"{uuid.uuid4().hex}"'})
        else:
            self._store(bucket, key, body)

    def do_POST(self) -> None:
        bucket, key, query = self._target()
        body = self._body()
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.uploads[upload] = {}
            self._answer(
                200,
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>",
            )
        else:
            parts = self.uploads.pop(query["uploadId"][0])
            numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)<", body)]
            self._store(bucket, key, b"".join(parts[number] for number in numbers), completes=True)

    def do_DELETE(self) -> None:
        bucket, key, query = self._target()
        if "uploadId" in query:
            self.uploads.pop(query["uploadId"][0], None)
            self._answer(204)
        else:
            self._forward("DELETE", f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}", success=204)

    def _store(self, bucket: str, key: str, body: bytes, *, completes: bool = False) -> None:
        metadata = {
            name.lower().removeprefix("x-goog-meta-"): value
            for name, value in self.headers.items()
            if name.lower().startswith("x-goog-meta-")
        }
        url = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart&name={quote(key, safe='')}"
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            url += f"&ifGenerationMatch={generation}"
        cut = uuid.uuid4().hex
        head = json.dumps({"name": key, "metadata": metadata})
        message = b"".join(
            [
                f"--{cut}\r\nContent-Type: application/json\r\n\r\n{head}\r\n".encode(),
                f"--{cut}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
                body,
                f"\r\n--{cut}--\r\n".encode(),
            ]
        )
        answer = self._ask("POST", url, message, {"Content-Type": f"multipart/related; boundary={cut}"})
        if answer is not None:
            etag = _etag(json.loads(answer))
            text = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
            self._answer(200, text if completes else "", {"ETag": etag})

    def _read(self, bucket: str, key: str) -> None:
        path = f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}"
        answer = self._ask("GET", path)
        if answer is None:
            return
        info = json.loads(answer)
        size, etag = int(info["size"]), _etag(info)
        if self.headers.get("If-Match", etag) != etag:
            self._answer(412)
            return
        headers = {"ETag": etag, "Last-Modified": "Sun, 15 Nov 2026 12:00:00 GMT"}
        headers |= {f"x-goog-meta-{name}": value for name, value in info.get("metadata", {}).items()}
        if self.command == "HEAD":
            self._answer(200, headers=headers, size=size)
            return
        start, end, status = 0, size, 200
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end, status = int(wanted[1]), min(size, int(wanted[2] or size) + 1), 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            if start >= size:
                self._answer(416)
                return
        try:
            data = self._fetch("GET", f"{path}?alt=media&generation={info['generation']}")
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                # It was written over between the two questions, so it is asked for anew, as what it is now.
                self._read(bucket, key)
            else:
                self._answer(error.code)
            return
        self._answer(status, data[start:end], headers)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        answer = self._ask("GET", f"/storage/v1/b/{bucket}/o?prefix={quote(prefix, safe='')}")
        if answer is not None:
            contents = "".join(
                f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size>"
                f"<ETag>{_etag(item)}</ETag><LastModified>{item['updated']}</LastModified></Contents>"
                for item in json.loads(answer).get("items", [])
            )
            self._answer(200, f"<ListBucketResult>{contents}</ListBucketResult>")

    def _target(self) -> tuple[str, str, dict[str, list[str]]]:
        split = urlsplit(self.path)
        bucket, _, key = split.path.lstrip("/").partition("/")
        return bucket, unquote(key), parse_qs(split.query, keep_blank_values=True)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _forward(self, method: str, path: str, *, success: int) -> None:
        if self._ask(method, path) is not None:
            self._answer(success)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> bytes | None:
        """Ask the server behind; pass its refusal on and return None."""
        try:
            return self._fetch(method, path, body, headers)
        except urllib.error.HTTPError as error:
            self._answer(error.code)
            return None

    def _fetch(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        message = urllib.request.Request(self.backend + path, body, headers or {}, method=method)
        with urllib.request.urlopen(message, timeout=stretch(20)) as response:
            answer: bytes = response.read()
            return answer

    def _answer(
        self,
        status: int,
        body: str | bytes = b"",
        headers: dict[str, str] | None = None,
        size: int | None = None,
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if size is None else size))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing: what matters fails a test."""


def _etag(info: dict[str, Any]) -> str:
    return f'"{info["generation"]}"'


@contextlib.contextmanager
def xml_front(backend: str) -> Iterator[str]:
    """Serve the XML API for the server at ``backend``; yield the address."""
    handler = type("Front", (_Front,), {"backend": backend, "uploads": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(stretch(10))
