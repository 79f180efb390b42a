"""Progress of a command, for people at a terminal: one line a step, with its time, and the welcome at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from django.conf import settings

from operation.setup import demo
from routing.models import PublicModel
from tenancy.services import links

_WIDTH = 34


class Steps:
    """Writes to `out` if that is a terminal, and nothing otherwise."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show `name` with the seconds that it takes, counting while it lasts."""
        if not self._is_terminal:
            yield
            return
        began, ended = time.monotonic(), threading.Event()
        counting = threading.Thread(target=self._count, args=(name, began, ended), daemon=True)
        counting.start()
        mark = "failed"
        try:
            yield
            mark = "done"
        finally:
            ended.set()
            counting.join()
            self._write(name, f"{mark} in {time.monotonic() - began:.1f} s\n")

    def _count(self, name: str, began: float, ended: threading.Event) -> None:
        self._write(name, "…")
        while not ended.wait(1.0):
            self._write(name, f"… {time.monotonic() - began:.0f} s")

    def _write(self, name: str, state: str) -> None:
        self._out.write(f"\r  {name:{_WIDTH}} {state}")
        self._out.flush()


@dataclass(frozen=True, slots=True)
class Welcome:
    """First facts for a newcomer: the base URL, a key, a link that signs in once, and the models."""

    base_url: str
    api_key: str
    sign_in_url: str
    models: list[str]


def welcome(base_url: str) -> Welcome:
    """Make what is missing of the demo tenant and mint a sign-in link for its operator."""
    made = demo.ensure_demo()
    models = list(PublicModel.objects.filter(is_active=True).values_list("name", flat=True))
    return Welcome(base_url, made.api_key, links.mint_link(user=made.user, base_url=base_url), models)


def told(facts: Welcome) -> str:
    """Return `facts` for people."""
    call = (
        ""
        if not facts.models
        else f"""
  curl {facts.base_url}/v1/chat/completions \\
    -H "Authorization: Bearer {facts.api_key}" -H "Content-Type: application/json" \\
    -d '{{"model": "auto", "max_tokens": 100, "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""
    )
    return f"""
Sluice is set up in {settings.SLUICE_HOME}
  models    {", ".join(facts.models) or "none yet: manage.py models add <hub id | folder | GGUF file>"}
  API key   {facts.api_key}
  sign in   {facts.sign_in_url}
            (once, within 15 minutes; `manage.py quickstart` gives another)
{call}"""
