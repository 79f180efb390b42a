"""Every page of both sides as it looks: found by its URL's name, so that no page goes unseen."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from base.http import open_directly

pytestmark = [pytest.mark.browser]
AXE = (Path(__file__).parent.parent / "vendor/axe.min.js").read_text()
MOST_BYTES = 100_000
WIDTHS = {"wide": 1280, "phone": 390}
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
FINDINGS = """async () => {
  const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
  const found = await axe.run(document, {runOnly: rules});
  const place = (one) => one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ");
  return found.violations.map((one) => `${one.id}: ${place(one)}`);
}"""
VISIBLE = "() => document.body.innerText"


def named(resolver: URLResolver, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and address of every view whose address has no parameter."""
    for pattern in resolver.url_patterns:
        address = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from named(pattern, address)
        elif isinstance(pattern, URLPattern) and pattern.name and "<" not in address:
            yield pattern.name, f"/{address}"


def pages_of(side: str) -> list[str]:
    return sorted({address for name, address in named(get_resolver()) if name.startswith(side)})


@pytest.fixture(scope="module")
def full(site):
    """A tenant with a long name, keys, people and requests, some of them refused."""
    secret = site.inside.ask("tests.browser.seed:fill")
    for number in range(6):
        chat(site, secret, {"model": "echo", "messages": [{"role": "user", "content": f"number {number}"}]})
    chat(site, secret, {"model": "nothing-of-this-name", "messages": []})
    chat(site, secret, {"model": "echo", "messages": [{"role": "user", "content": "words " * 9_000}]})
    code, *told = site.inside.ask("manage", "jobs", "--once")
    assert code == 0, told


def chat(site, secret, body):
    request = urllib.request.Request(f"{site.url}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("authorization", f"Bearer {secret}")
    request.add_header("content-type", "application/json")
    try:
        open_directly(request, timeout=60).close()
    except urllib.error.HTTPError as refused:
        refused.close()


def wrong_with(page, width):
    """Return all that is wrong with the page's looks."""
    found = list(page.evaluate(FINDINGS))
    over = page.evaluate("document.documentElement.scrollWidth") - width
    if over > 0:
        found.append(f"{over} px wider than the window")
    found += [f"an id in full: {one}" for one in UUID.findall(page.evaluate(VISIBLE))]
    return found


def look(visit, who, pages, width, theme):
    page = visit(who, pages[0], color_scheme=theme).page
    page.set_viewport_size({"width": WIDTHS[width], "height": 900})
    wrong = {}
    for address in pages:
        asked = page.request.get(address)
        if asked.status == 405 or not asked.headers.get("content-type", "").startswith("text/html"):
            continue  # only answers to forms, or is a download or data of a script
        if asked.status != 200:
            wrong[address] = [f"answers {asked.status}"]
            continue
        answer = page.goto(address)
        page.evaluate(AXE)
        found = wrong_with(page, WIDTHS[width])
        if len(answer.body()) > MOST_BYTES:
            found.append(f"{len(answer.body())} bytes of HTML")
        if found:
            wrong[address] = found
    return wrong


LOOKS = [
    ("wide", "light"),
    ("phone", "dark"),
    pytest.param("wide", "dark", marks=pytest.mark.sweep),
    pytest.param("phone", "light", marks=pytest.mark.sweep),
]


ACCOUNT = ["/accounts/", "/accounts/2fa/totp/activate/", "/accounts/2fa/webauthn/add/"]


@pytest.mark.parametrize(("width", "theme"), LOOKS)
@pytest.mark.parametrize("who", ["long", "boss"])
def test_the_tenants_pages_are_in_order(full, visit, who, width, theme):
    assert look(visit, who, [*pages_of("console-"), *ACCOUNT], width, theme) == {}


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_the_operators_pages_are_in_order(full, visit, width, theme):
    assert look(visit, "operator", pages_of("operate-"), width, theme) == {}


def test_all_sides_have_pages():
    assert len(pages_of("console-")) > 5
    assert "/operate/" in pages_of("operate-")
