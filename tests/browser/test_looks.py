"""Every page of both sides as it looks: found by its URL's name, so that no page goes unseen."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from base.http import open_directly

pytestmark = [pytest.mark.browser]
AXE = (Path(__file__).parent.parent / "vendor/axe.min.js").read_text()
MOST_BYTES = 100_000
WIDTHS = (1280, 390)
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
PARAMETER = re.compile(r"<[^>]+>")
FINDINGS = """async (run) => {
  const { violations } = await axe.run(document, {runOnly: run});
  const place = (one) => one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ");
  return violations.map((one) => `${one.id}: ${place(one)}`);
}"""
ALL = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
COLOURS = {"type": "rule", "values": ["color-contrast"]}  # the rule that another theme may break
HIDDEN = """(width) => {
  const name = (cell) => cell.dataset.label ?? cell.innerText.trim().slice(0, 40);
  const found = [];
  for (const table of document.querySelectorAll("#main table")) {
    if (!table.checkVisibility()) continue;
    const panel = table.closest(".table-panel, .scroll") ?? table.parentElement;
    const right = panel.getBoundingClientRect().left + panel.clientWidth + 1;
    for (const cell of table.querySelectorAll("tbody tr:first-child > *")) {
      const box = cell.getBoundingClientRect();
      if (!box.width && cell.textContent.trim()) found.push(`a column without width: ${name(cell)}`);
      if (width > 1000 && box.right > right) found.push(`a column out of sight: ${name(cell)}`);
    }
  }
  return found;
}"""
VISIBLE = "() => document.body.innerText"


def named(resolver: URLResolver, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and address of every view."""
    for pattern in resolver.url_patterns:
        address = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from named(pattern, address)
        elif isinstance(pattern, URLPattern) and pattern.name:
            yield pattern.name, f"/{address}"


def pages_of(side: str) -> list[str]:
    """Return the addresses that have no parameter."""
    return sorted({address for name, address in named(get_resolver()) if name.startswith(side) and "<" not in address})


def pages_about(side: str, things: dict[str, list[str]], *, is_own: bool) -> list[str]:
    """Return the addresses with parameters, with things in their place: things' own pages, or those below them."""
    found = set()
    for name, address in named(get_resolver()):
        if name.startswith(side) and "<" in address and address.endswith(">/") == is_own:
            parts = address.split("/")
            choices = [_values(parts, at, things) if "<" in part else [part] for at, part in enumerate(parts)]
            found |= {"/".join(chosen) for chosen in product(*choices)}
    return sorted(found)


def _values(parts: list[str], at: int, things: dict[str, list[str]]) -> list[str]:
    folder = parts[at - 1]
    values = things.get("/".join(parts[1:at]))
    return [PARAMETER.sub(quote(value), parts[at]) for value in values or things[folder]]


@pytest.fixture(scope="module")
def things(site):
    """A tenant with long names, keys, people and requests, some of them refused; and what of it stands in addresses."""
    secret = site.inside.ask("tests.browser.seed_looks:fill")
    for number in range(3):
        chat(site, secret, {"model": "echo", "messages": [{"role": "user", "content": f"number {number}"}]})
    for model in ("nothing-of-this-name", "n" * 120):
        chat(site, secret, {"model": model, "messages": []})
    chat(site, secret, {"model": "echo", "messages": [{"role": "user", "content": "words " * 9_000}]})
    code, *told = site.inside.ask("manage", "jobs", "--once")
    assert code == 0, told
    return site.inside.ask("tests.browser.seed_looks:things")


def chat(site, secret, body):
    request = urllib.request.Request(f"{site.url}/v1/chat/completions", json.dumps(body).encode())
    request.add_header("authorization", f"Bearer {secret}")
    request.add_header("content-type", "application/json")
    try:
        open_directly(request, timeout=60).close()
    except urllib.error.HTTPError as refused:
        refused.close()


def wrong_with(page) -> Iterator[str]:
    """Yield all that is wrong with the page's looks, at both widths and in both themes."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="light")
        yield from page.evaluate(FINDINGS, ALL)
        over = page.evaluate("document.documentElement.scrollWidth") - width
        if over > 0:
            yield f"{over} px wider than {width}"
        yield from page.evaluate(HIDDEN, width)
        page.emulate_media(color_scheme="dark")
        yield from page.evaluate(FINDINGS, COLOURS)
    yield from (f"an id in full: {one}" for one in UUID.findall(page.evaluate(VISIBLE)))


def look(visit, who, pages):
    """Return what is wrong, by page; answers to forms, downloads, data of scripts and redirects are no pages."""
    page = visit(who, "/accounts/", reduced_motion="reduce").page
    wrong, seen = {}, 0
    for address in pages:
        asked = page.request.get(address, max_redirects=0)
        if asked.status in {302, 301, 405} or not asked.headers.get("content-type", "").startswith("text/html"):
            continue
        if asked.status != 200:
            wrong[address] = [f"answers {asked.status}"]
            continue
        answer = page.goto(address)
        page.evaluate(AXE)
        found = list(wrong_with(page))
        if len(answer.body()) > MOST_BYTES:
            found.append(f"{len(answer.body())} bytes of HTML")
        if found:
            wrong[address] = found
        seen += 1
    assert seen >= 5
    return wrong


ACCOUNT = ["/accounts/"]
SIDES = {"long": "console-", "boss": "console-", "operator": "operate-"}  # boss's tenant is empty


@pytest.mark.parametrize("who", SIDES)
def test_pages_are_in_order(things, visit, who):
    about = [] if who == "boss" else pages_about(SIDES[who], things, is_own=True)
    account = [] if who == "operator" else ACCOUNT
    assert look(visit, who, pages_of(SIDES[who]) + about + account) == {}


@pytest.mark.sweep
@pytest.mark.parametrize("who", ["long", "operator"])
def test_what_is_asked_about_things_is_in_order(things, visit, who):
    assert look(visit, who, pages_about(SIDES[who], things, is_own=False)) == {}


def test_all_sides_have_pages():
    assert len(pages_of("console-")) > 5
    assert "/operate/" in pages_of("operate-")
