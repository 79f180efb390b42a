"""A gateway as a process on a home of its own, with fake engines inside it, and Chromium to look at its pages."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from base.http import open_directly
from tests.browser.jobs import Jobs, counting
from tests.services.ports import lease_port
from tests.stack.stack import ROOT, Inside, environment_of, migrated

CHROMIUM = os.environ.get("SLUICE_CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
STRANGER = ""  # who isn't signed in
expect.set_options(timeout=60_000)  # machines are slow at times


@dataclass
class Site:
    """A gateway with people who may sign in; `links` are their unused sign-in links by name."""

    home: Path
    environment: dict[str, str]
    port: int
    inside: Inside
    links: dict[str, list[str]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the gateway and wait until it is ready."""
        log = (self.home / "gateway.log").open("ab")
        command = [sys.executable, "manage.py", "gateway", "--port", str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)
        log.close()
        while not self._is_ready():  # bounded by the test's timeout
            if self.process.poll() is not None:
                pytest.fail("the gateway ended:\n" + (self.home / "gateway.log").read_text()[-4000:])
            with pytest.raises(subprocess.TimeoutExpired):
                self.process.wait(0.1)

    def stop(self) -> None:
        """End the gateway at once, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _is_ready(self) -> bool:
        try:
            with open_directly(f"{self.url}/readyz", timeout=1):
                return True
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@contextmanager
def running_site(seed: str = "tests.browser.seed:make") -> Iterator[Site]:
    """Seed a home and serve it; whatever happens, nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="sluice-browser-") as folder, migrated(Path(folder)):
        port = lease_port()
        own = {"SLUICE_BASE_URL": f"http://127.0.0.1:{port}", "SLUICE_REMOTE_NETWORKS": "127.0.0.0/8"}
        environment = environment_of(Path(folder), **own)
        site = Site(Path(folder), environment, port, Inside(environment))
        try:
            site.links = site.inside.ask(seed)
            site.start()
            yield site
        finally:
            site.stop()
            site.inside.close()


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@dataclass
class Visitor:
    """Somebody's browser window, signed in; `complaints` are the console's errors and uncaught exceptions."""

    page: Page
    context: BrowserContext
    complaints: list[str]


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    with running_site() as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    # Not for the whole session: Playwright keeps an event loop running, which asynchronous tests can't bear.
    with running_browser() as running:
        yield running


@pytest.fixture(scope="package")
def cookies() -> dict[str, Any]:
    """Cookies of those who signed in before, by name."""
    return {}


@pytest.fixture
def visit(site: Site, browser: Browser, cookies: dict[str, Any]) -> Iterator[Any]:
    """`visit("owner", "/usage/")` opens a window in which the owner is signed in and returns its Visitor; `STRANGER` is
    nobody.

    A test fails when one of its windows complained, unless it emptied `complaints` itself.
    """
    visitors: list[Visitor] = []

    def open_window(name: str, path: str = "/chat/", **options: Any) -> Visitor:
        context = browser.new_context(base_url=site.url, viewport={"width": 1280, "height": 800}, **options)
        context.set_default_timeout(60_000)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        visitor = Visitor(page, context, [])
        visitors.append(visitor)
        context.on("console", lambda message: _note(visitor.complaints, message))  # of windows that pages open, too
        context.on("weberror", lambda error: visitor.complaints.append(str(error.error)))
        if name in cookies:
            context.add_cookies(cookies[name])
        elif name != STRANGER:
            page.goto(site.links[name].pop())
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(f"{site.url}/**")
            cookies[name] = context.cookies()
        page.goto(path)
        return visitor

    yield open_window
    for visitor in visitors:
        visitor.context.close()
    assert [visitor.complaints for visitor in visitors] == [[]] * len(visitors)


@pytest.fixture
def job(record_property: Any) -> Jobs:
    """`counting` of this test: a block with a hand that is held to the clicks of its job."""
    return counting(record_property)


def _note(complaints: list[str], message: ConsoleMessage) -> None:
    if message.type == "error":
        complaints.append(f"{message.text} {message.location['url']}")
