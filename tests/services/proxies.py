"""The proxies with the files of `deploy/`, on free ports, in front of given gateways; and gateways with a script."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.services.ports import lease_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@contextlib.contextmanager
def nginx(gateways: list[str], folder: Path, control: str = "") -> Iterator[str]:
    """Run nginx in front of two gateways, and of `control` or the first of them for pages; yields its address."""
    certificate(folder)
    plain, port = lease_port(), lease_port()
    text = (DEPLOY / "nginx.conf").read_text()
    for written, here in (
        ("127.0.0.1:8001", gateways[0]),
        ("127.0.0.1:8002", gateways[1]),
        ("127.0.0.1:8003", control or gateways[0]),
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/", f"{folder}/"),
        ("sluice.example.com", "127.0.0.1"),
    ):
        assert written in text, written
        text = text.replace(written, here)
    (folder / "sluice.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""
    paths = " ".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {paths} include {folder}/sluice.conf; }}\n"
    )
    command = ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with running(command, port, folder):
        yield f"https://127.0.0.1:{port}"


@contextlib.contextmanager
def caddy(gateways: list[str], folder: Path, control: str = "", site: str = "http://127.0.0.1:{port}") -> Iterator[str]:
    """Run Caddy in front of two gateways, and of `control` or the first of them for pages; yields its address."""
    port = lease_port()
    own = {
        "SLUICE_SITE": site.format(port=port),
        "SLUICE_GATEWAYS": " ".join(gateways),
        "SLUICE_CONTROL": control or gateways[0],
        "XDG_DATA_HOME": str(folder),
    }
    command = ["caddy", "run", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"]
    with running(command, port, folder, {**os.environ, **own, "XDG_CONFIG_HOME": str(folder)}):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def running(
    command: list[str], port: int, folder: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that listens on the port, ended in the end."""
    binary = shutil.which(command[0])
    assert binary is not None
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([binary, *command[1:]], stdout=log, stderr=log, env=environment)
    try:
        while not is_listening(port):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.01)
        yield process
    finally:
        process.terminate()
        process.wait(100)


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def certificate(folder: Path) -> None:
    """Write a key and its self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .add_extension(address, critical=False)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "sluice.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    own = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "sluice.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *own))


@dataclass
class Scripted:
    """A gateway that does as it is told: ``answer`` the request's headers, size and beginning, ``die`` once it has read
    it, or ``stream`` a second event only when `go_on` is set. It says that it is well whatever it does.
    """

    does: str = "answer"
    seen: list[str] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    client_left: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        script = self

        class Handler(StreamRequestHandler):
            def handle(self) -> None:
                script.take(self)

        ThreadingTCPServer.allow_reuse_address = True
        self._server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Listen no more."""
        self.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, handler: StreamRequestHandler) -> None:
        line = handler.rfile.readline().decode()
        if not line:
            return
        headers: dict[str, str] = {}
        while field_line := handler.rfile.readline().decode().strip():
            name, _, value = field_line.partition(":")
            headers[name.lower()] = value.strip()
        body = self._body(handler, headers)
        if line.split()[1] == "/healthz":  # a proxy looks whether it is well
            handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
            return
        self.seen.append(line.split()[1])
        if self.does == "die":
            return
        if self.does == "stream":
            self._stream(handler)
            return
        told = {"headers": headers, "bytes": len(body), "begins": body[:8].decode("latin-1")}
        content = json.dumps(told).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
        handler.wfile.write(f"{head}connection: close\r\n\r\n".encode() + content)

    def _body(self, handler: StreamRequestHandler, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(handler.rfile.readline(), 16):
                parts.append(handler.rfile.read(size))
                handler.rfile.readline()
            handler.rfile.readline()
            return b"".join(parts)
        return handler.rfile.read(int(headers.get("content-length", 0)))

    def _stream(self, handler: StreamRequestHandler) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        handler.wfile.write(head + chunk(b"data: first\n\n"))
        watcher = threading.Thread(target=self._watch, args=(handler,), daemon=True)
        watcher.start()
        self.go_on.wait(200)
        with contextlib.suppress(OSError):
            handler.wfile.write(chunk(b"data: second\n\n") + b"0\r\n\r\n")

    def _watch(self, handler: StreamRequestHandler) -> None:
        with contextlib.suppress(OSError):
            handler.connection.recv(1)
        self.client_left.set()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
