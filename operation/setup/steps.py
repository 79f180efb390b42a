"""Progress of a command, for people at a terminal: one line a step, with its time, and the welcome at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from django.conf import settings

from gateway.logs import fitted, for_reader
from operation.setup import demo
from routing.models import PublicModel
from tenancy.services import links

_NAME, _LINE = 34, 79


class Steps:
    """Writes to `out` if that is a terminal, and nothing otherwise.

    A step that isn't over leaves the cursor at its line's begin, so that a line of the log takes its place.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._began: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Show `name` with the seconds that it takes, counting while it lasts."""
        ended = threading.Event()
        counting = threading.Thread(target=self._count, args=(name, ended), daemon=True)
        self.show(name)
        counting.start()
        mark = "failed"
        try:
            yield
            mark = "done"
        except KeyboardInterrupt:
            mark = "stopped"
            raise
        finally:
            ended.set()
            counting.join()
            self.end(name, mark)

    def _count(self, name: str, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            self.show(name)

    def show(self, name: str, doing: str = "") -> None:
        """Show that `name` goes on, for so many seconds since it was first shown."""
        seconds = time.monotonic() - self._began.setdefault(name, time.monotonic())
        self._write(f"  {name:{_NAME}} {doing}… {f'{seconds:.0f} s' if seconds >= 1 else ''}"[:_LINE] + "\r")

    def end(self, name: str, mark: str) -> None:
        """Show that `name` is over, for good."""
        began = self._began.pop(name, None)
        self._write(f"  {name:{_NAME}} {mark}" + (f" in {time.monotonic() - began:.1f} s\n" if began else "\n"))

    def _write(self, line: str) -> None:
        if self._is_terminal:
            self._out.write(for_reader("") + line)
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
    models = ", ".join(facts.models) or "none yet: manage.py models add <hub id | folder | GGUF file>"
    call = (
        ""
        if not facts.models
        else f"""
  KEY={facts.api_key}
  curl {facts.base_url}/v1/chat/completions \\
    -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
    -d '{{"model": "auto", "max_tokens": 100, "temperature": 0, "messages":
         [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""
    )
    return f"""
Sluice is set up in {settings.SLUICE_HOME}
{fitted(f"  models    {models}")}
  API key   {facts.api_key}
  sign in   once, within 15 minutes (`manage.py quickstart` gives another):
  {facts.sign_in_url}
{call}"""
