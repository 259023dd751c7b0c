"""A real OTLP receiver in this process: it speaks gRPC or HTTP, and keeps every span that it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as stubs
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class SentSpan:
    """A span as it came over the wire."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began_s: float
    ended_s: float
    attributes: dict[str, Any]
    resource: dict[str, Any]
    error: str | None

    @property
    def service(self) -> str:
        name: str = self.resource["service.name"]
        return name


class Receiver(stubs.TraceServiceServicer):
    """Keeps spans; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._spans: list[SentSpan] = []
        self._lock = threading.Lock()
        self.endpoint = ""

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            self._spans += read_spans(request)
        return messages.ExportTraceServiceResponse()

    def spans(self, name: str | None = None) -> list[SentSpan]:
        with self._lock:
            return [span for span in self._spans if name in (None, span.name)]

    def traces(self, root: str) -> dict[str, list[SentSpan]]:
        """Return the spans of the traces that have a root of this name."""
        roots = {span.trace_id for span in self.spans(root) if not span.parent_id}
        return {trace_id: [span for span in self.spans() if span.trace_id == trace_id] for trace_id in roots}


def read_spans(request: Any) -> Iterator[SentSpan]:
    for group in request.resource_spans:
        resource = _read_attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield SentSpan(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    began_s=span.start_time_unix_nano / 1e9,
                    ended_s=span.end_time_unix_nano / 1e9,
                    attributes=_read_attributes(span.attributes),
                    resource=resource,
                    error=span.status.message if span.status.code == Status.STATUS_CODE_ERROR else None,
                )


def _read_attributes(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Receive by gRPC until the block ends; port 0 takes a free one."""
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(4))
    stubs.add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


@contextmanager
def receiving_http() -> Iterator[Receiver]:
    """Receive protobuf by HTTP until the block ends."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            if self.headers["Content-Encoding"] == "gzip":
                import gzip

                body = gzip.decompress(body)
            receiver.Export(messages.ExportTraceServiceRequest.FromString(body), None)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
