"""An installation in which every check is fine, with stand-ins for what it talks to."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
from django.core.management import call_command

from base import clock
from billing.services import cards, plans, wallets
from billing.services.plan_models import include_models
from gateway.runtime.data_plane import STANDING, Standing
from gateway.runtime.observed import Kind, leave_canaries, note, version
from operation.checks.checks import examine
from routing.models import Node
from routing.services.catalogue import add_model
from routing.services.defaults import ensure_default_routes
from tenancy.models import Project, Tenant
from tenancy.services import keys
from tests.services.postgres import find_binaries

ROOT = Path(__file__).resolve().parents[3]


class _Http(BaseHTTPRequestHandler):
    """Answers as a gateway's probes, as a collector and as a gateway asked by pages, by the server's `answers`."""

    def do_GET(self) -> None:
        status, body = self.server.answers.get(self.path, (404, b"{}"))
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - http.server looks for this name

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Smtp(socketserver.StreamRequestHandler):
    """Greets, and says yes until the client quits."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            self.wfile.write(b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 yes\r\n")


class _SmtpServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


class StandIn:
    """A server on a port of its own that can end and begin again there."""

    def __init__(self, make) -> None:
        self._make = make
        self.answers = {}
        self.port = 0
        self.begin()

    def begin(self) -> None:
        self._server = self._make(("127.0.0.1", self.port))
        self._server.answers = self.answers
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def end(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class Well:
    """The installation: `failing` are the checks that fail now, with the ways out of each."""

    def __init__(self, home: Path, settings, monkeypatch, redis) -> None:
        self.home, self.settings, self.patch, self.redis = home, settings, monkeypatch, redis
        self.http, self.smtp = (
            StandIn(lambda at: ThreadingHTTPServer(at, _Http)),
            StandIn(lambda at: _SmtpServer(at, _Smtp)),
        )
        self.address = f"http://127.0.0.1:{self.http.port}"
        ready = (200, b'{"status": "ready"}')
        self.http.answers |= {"/readyz": ready, "/health": (200, b""), "/v1/traces": (200, b"")}
        self.http.answers[STANDING] = (200, msgspec.json.encode(Standing({}, {}, {})))
        self._set()
        plans.ensure_default_plans()
        cards.ensure_default_cards()
        cards.ensure_card("card", "chat")
        self.model = home / "model"
        self.model.mkdir()
        self.deployment = add_model(
            name="sound", kinds=["chat"], context_length=512, rate_card="card", source=str(self.model)
        )
        ensure_default_routes()
        include_models("free", ["sound"])
        self.tenant = Tenant.objects.create(name="One", slug="one")
        wallets.ensure_operator_accounts()
        plans.subscribe(self.tenant.id, "free")
        project = Project.objects.create(tenant=self.tenant, name="Default")
        self.key, _ = keys.create_key(tenant=self.tenant, project=project, name="key")
        Node.objects.update(seen_at=clock.now())
        self.gateway()
        leave_canaries()

    def _set(self) -> None:
        settings = self.settings
        self.patch.setenv("CC", "true")  # compiles whatever it is given
        self.patch.setenv("SLUICE_RUNTIME_DIR", str(self.home))
        self.patch.setenv("PATH", f"{find_binaries()}:{os.environ['PATH']}")
        settings.SLUICE_HOME = self.home
        files = {"BACKEND": "django.core.files.storage.FileSystemStorage"}
        settings.STORAGES = settings.STORAGES | {"files": files | {"OPTIONS": {"location": str(self.home / "files")}}}
        settings.REDIS_URL = self.redis.url
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", self.smtp.port
        settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
        settings.OTEL_EXPORTER_OTLP_ENDPOINT = settings.SLUICE_DATA_PLANE = self.address

    def close(self) -> None:
        self.http.end()
        self.smtp.end()

    def gateway(self, name="a", *, ago=0, started=3600, **facts) -> None:
        """Note a gateway as it was `ago` seconds before now."""
        now = clock.now()
        given = {"host": "here", "version": version(), "failing": {}, "deployments": {"sound": "ready"}}
        given["started_at"] = (now - timedelta(seconds=started)).isoformat()
        note(Kind.GATEWAY, name, given | facts)
        from gateway.runtime.models import Observation

        Observation.objects.filter(name=name).update(at=now - timedelta(seconds=ago))

    def failing(self) -> dict[str, list[str]]:
        """Make all checks, and return the ways out of what each failing one found."""
        return {
            result.check.name: [finding.mend for finding in result.findings if not finding.is_fine]
            for result in examine(self.address)
            if not (result.is_fine or result.lacks)
        }


def commands(mend: str) -> list[str]:
    """Return the commands that a way out names."""
    return re.findall(r"`([^`]+)`", mend)


def paste(mend: str) -> None:
    """Run the first command of a way out: one of `manage.py` in this process, which has the test's settings."""
    [line, *_] = commands(mend)
    words = shlex.split(line)
    if len(words) > 1 and words[1].endswith("manage.py"):
        assert Path(words[0]).exists() or shutil.which(words[0])
        call_command(*words[2:])
        return
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


@contextmanager
def installation(home: Path, settings, monkeypatch, redis) -> Iterator[Well]:
    """Return one in which all is well."""
    home.mkdir(mode=0o700)
    well = Well(home, settings, monkeypatch, redis)
    try:
        yield well
    finally:
        well.close()
