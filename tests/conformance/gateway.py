"""The gateway of a conformance run: `manage.py serve` on a home of its own, with SQLite, and one tenant's key."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inference.sources.first_models import CHAT
from tests.services.ports import lease_port
from tests.stack.stack import ROOT, Stack, environment_of, migrated


@dataclass(frozen=True)
class Gateway:
    """Where it is (without /v1), a key of its only tenant and one that administers it, and the folder of SmolLM2, None
    where it is missing.
    """

    url: str
    key: str
    admin_key: str
    folder: Path | None
    said: list[str]

    @property
    def environment(self) -> dict[str, str]:
        """What the clients' programs are told."""
        found = {"SLUICE_URL": self.url, "SLUICE_KEY": self.key, "SLUICE_ADMIN_KEY": self.admin_key}
        return found if self.folder is None else {**found, "SLUICE_TOKENIZER": str(self.folder)}


@contextmanager
def serving() -> Iterator[Gateway]:
    """Serve the models of a run until the end of the block; nothing of it is left behind, SIGTERM or not."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="sluice-conformance-") as folder, migrated(Path(folder)):
        home, port = Path(folder), lease_port()
        url = f"http://127.0.0.1:{port}"
        environment = environment_of(home, SLUICE_BASE_URL=url)
        environment |= dict.fromkeys(("SLUICE_API_RATE_CALLER", "SLUICE_API_RATE_ADDRESS"), "1000000/minute")
        seed = [sys.executable, "-m", "tests.conformance.seed"]
        told = subprocess.run(seed, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
        seeded = json.loads(told.splitlines()[-1])
        stack = Stack(home, environment, port, {})
        stack.start()
        try:
            model = home / "models" / CHAT
            yield Gateway(url, seeded["key"], seeded["admin_key"], model if model.is_dir() else None, stack.said)
        finally:
            try:
                stack.stop()
            finally:
                stack.close()
