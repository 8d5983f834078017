"""An HTTP server of files in a thread of its own: it knows ranges as servers do, or does what a test wants instead."""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: answers a request itself, and returns True if it has
Answer = Callable[["Handler"], bool]
BLOCK = 65_536


class Origin(ThreadingHTTPServer):
    """Serves one body at every path. What it answers, tests change as they go."""

    daemon_threads = True

    def __init__(self, body: bytes, host: str, tls: ssl.SSLContext | None) -> None:
        super().__init__((host, 0), Handler)
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.body, self.etag = body, '"1"'
        #: the date of the content, for servers without ETags
        self.modified = ""
        self.ranges = True
        self.status, self.headers = 200, dict[str, str]()
        #: called with the position in the body before each block is sent
        self.before: Callable[[int], None] = lambda _: None
        self.answers: dict[str, Answer] = {}
        self.asked: list[Handler] = []
        self.connections = 0
        #: bytes of bodies that were sent
        self.sent = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.server_address[0]!s}:{self.port}"

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def process_request(self, *arguments: object) -> None:
        self.connections += 1
        super().process_request(*arguments)  # type: ignore[arg-type]

    def handle_error(self, *_: object) -> None:
        """Clients of these tests break off."""


class Handler(BaseHTTPRequestHandler):
    server: Origin
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        origin = self.server
        origin.asked.append(self)
        answer = origin.answers.get(self.path)
        if answer is None or not answer(self):
            self.file()

    def file(self) -> None:
        origin, size = self.server, len(self.server.body)
        if origin.status != 200:
            self.head(origin.status, {"Content-Length": "0"})
            return
        fresh = (("If-None-Match", origin.etag), ("If-Modified-Since", origin.modified))
        if any(value and self.headers.get(name) == value for name, value in fresh):
            self.head(304)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        is_same = self.headers.get("If-Range") in {None, origin.etag}
        offset = int(asked[1]) if asked and is_same and origin.ranges else 0
        if offset and offset >= size:
            self.head(416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
            return
        headers = {**origin.headers, "Content-Length": str(size - offset)}
        if offset:
            headers["Content-Range"] = f"bytes {offset}-{size - 1}/{size}"
        self.head(206 if offset else 200, headers)
        whole = memoryview(origin.body)
        for at in range(offset, size, BLOCK):
            origin.before(at)
            block = whole[at : at + BLOCK]
            self.wfile.write(block)
            origin.sent += len(block)

    def head(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Send a status and headers, with the ETag."""
        self.send_response(status)
        for name, value in (("ETag", self.server.etag), ("Last-Modified", self.server.modified)):
            if value:
                self.send_header(name, value)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@contextlib.contextmanager
def serving(body: bytes = b"a model", host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Origin]:
    origin = Origin(body, host, tls)
    thread = threading.Thread(target=origin.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield origin
    finally:
        origin.shutdown()
        origin.server_close()


def redirect(to: str, status: int = 302) -> Answer:
    def answer(handler: Handler) -> bool:
        handler.head(status, {"Location": to, "Content-Length": "0"})
        return True

    return answer
