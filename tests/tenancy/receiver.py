"""A receiver of web-hooks: keeps what it gets, and answers with a status, or never to the end."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, status: int | None, location: str, certificate: Path | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.scheme = "https"
        self.status = status
        self.location = location
        self.ended = threading.Event()
        self.got: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}/hook?a=1"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        if self.server.status is None:
            while not self.server.ended.wait(0.05):
                try:
                    self.wfile.write(b"H")
                except OSError:
                    return
            return
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("location", self.server.location)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def receiver(status: int | None, location: str = "", certificate: Path | None = None) -> Iterator[Receiver]:
    with Receiver(status, location, certificate) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()
