"""The documents: each page is served, small and in order, links lead somewhere, and nothing of the API goes untold."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from django.conf import settings
from django.test import Client

from control.docs import site
from control.docs.reference import error_sections, operations
from control.docs.search import search
from control.docs.site import PAGES
from control.screens import shell

pytestmark = pytest.mark.django_db

MOST_BYTES = 200_000


class _Read(HTMLParser):
    """What of a page is looked at: headings, ids, links, landmarks, and scrollable parts that the tab key passes by."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.ids, self.links, self.images, self.navigations, self.unfocused = [], [], [], [], [], []
        self.mains = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img" and given["src"].endswith(".png"):
            assert given["alt"]
            assert int(given["width"]) > int(given["height"]) / 3
            self.images.append(given["src"])
        if tag in ("nav", "aside"):
            self.navigations.append((tag, given.get("aria-label")))
        if (tag == "pre" or given.get("class") == "scroll") and given.get("tabindex") != "0":
            self.unfocused.append(given)
        self.mains += tag == "main"


@pytest.fixture(scope="module")
def addresses():
    """The address of every page."""
    documents, endpoints = (f"/docs/{slug}/" for slug in PAGES), (f"/docs/api/{name}/" for name in operations())
    return ["/docs/", "/docs/api/", "/docs/search/?q=prefix+cache", *documents, *endpoints]


@pytest.fixture(scope="module")
def read(django_db_setup, django_db_blocker):
    """Return what a page is, as somebody who isn't signed in has it; each page is asked for once."""
    pages = {}

    def read(address):
        if address not in pages:
            with django_db_blocker.unblock():
                answer = Client().get(address)
            assert answer.status_code == 200, address
            pages[address] = (answer.content, _Read(answer.content.decode()))
        return pages[address]

    return read


def test_pages_are_small_and_in_order(read, addresses):
    for address in addresses:
        content, page = read(address)
        assert len(content) < MOST_BYTES, address
        assert str(settings.BASE_DIR).encode() not in content, address
        assert page.headings.count(1) == 1, address
        steps = [later - earlier for earlier, later in pairwise(page.headings)]
        assert max(steps, default=0) <= 1, (address, page.headings)
        assert len(set(page.ids)) == len(page.ids), address
        assert page.mains == 1
        assert len(set(page.navigations)) == len(page.navigations), address
        assert page.unfocused == [], address


def test_every_link_and_anchor_leads_somewhere(read, addresses):
    known = {each.partition("?")[0] for each in addresses}
    lost = []
    for address in addresses:
        for link in read(address)[1].links:
            path, _, anchor = link.partition("#")
            path = (path or address).partition("?")[0]
            if not path.startswith("/docs/") or path.startswith(("/docs/search/", "/docs/files/")):
                continue
            if path not in known or (anchor and anchor not in read(path)[1].ids):
                lost.append((address, link))
    assert lost == []


def test_files_that_pages_link_to_are_sent(read, addresses, client):
    pages = [read(address)[1] for address in addresses]
    linked = {link for page in pages for link in (*page.links, *page.images) if link.startswith("/docs/files/")}
    assert len(linked) > 10
    for link in linked:
        answer = client.get(link)
        assert answer.status_code == 200, link
        assert answer.content == (site.ROOT / link.removeprefix("/docs/files/")).read_bytes()
    for other in ("manage.py", "var/secret.key", "../manage.py", "docs/credits.md"):
        assert client.get(f"/docs/files/{other}").status_code == 404


LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
IGNORED = {"node_modules", "var", "build"}


def test_every_relative_link_of_a_markdown_file_leads_to_a_file():
    """Also those of files that are no page, such as the README, and pictures."""
    found = [path for path in site.ROOT.rglob("*.md") if not IGNORED & set(path.parts) and ".venv" not in str(path)]
    links = [(path, link) for path in found for link in LINK.findall(path.read_text()) if ":" not in link]
    assert len(links) > 100
    lost = [f"{path}: {link}" for path, link in links if link[0] != "/" and not (path.parent / link).exists()]
    assert lost == []


def test_pages_and_buttons_that_quick_starts_name_are_there():
    titles = {entry.title for entry in (*shell.TENANT, *shell.OPERATOR)} | {"Operate"}
    templates = "".join(path.read_text() for path in (site.ROOT / "templates").rglob("*.html"))
    for path in (site.ROOT / "docs/quickstart").glob("*.md"):
        names = re.findall(r"(?<!\*)\*([A-Z][^*\n]+)\*(?!\*)", path.read_text())
        assert names, path
        assert [name for name in names if name not in titles and f">{name}<" not in templates] == [], path


def test_every_document_is_a_page():
    told = {page.source for page in site.all_pages()}
    assert {path.relative_to(site.ROOT).as_posix() for path in (site.ROOT / "docs").rglob("*.md")} <= told
    assert all(page.path.is_file() for page in site.all_pages())


def test_every_field_has_a_meaning():
    for operation in operations().values():
        fields = [*operation.parameters, *operation.body, *operation.over_websocket, *operation.headers]
        fields += [field for answer in operation.answers for field in answer.fields]
        assert [field.name for field in fields if not field.meaning] == [], operation.id
        assert operation.summary
        assert operation.errors


def test_meanings_are_shown_without_backticks(read):
    content, _ = read("/docs/api/chat_completions/")
    text = re.sub(r"<pre.*?</pre>", "", content.decode(), flags=re.DOTALL)
    assert "`" not in text
    assert "<code>auto</code>" in text


def test_every_error_of_an_endpoint_is_told_with_its_anchor(read):
    _, page = read("/docs/errors/")
    codes = {code.code for codes in error_sections().values() for code in codes}
    assert len(codes) > 100
    assert codes <= set(page.ids)
    assert all(code.meaning for codes in error_sections().values() for code in codes)
    of_chat = {code.code for _, codes in operations()["chat_completions"].errors for code in codes}
    of_files = {code.code for _, codes in operations()["files_list"].errors for code in codes}
    assert {"invalid_json", "credit_balance_exhausted", "guidance_invalid", "missing_api_key"} <= of_chat
    assert "file_not_found" in of_files
    assert not {"credit_balance_exhausted", "invalid_json"} & of_files


@pytest.mark.parametrize(
    ("query", "address"),
    [
        ("context_length_exceeded", "/docs/errors/"),
        ("SLUICE_MAX_BODY_BYTES", "/docs/settings/"),
        ("prefix caching", "/docs/concepts/prefix-caching/"),
        ("thinking_token_budget", "/docs/api/"),
    ],
)
def test_search_finds_parts_of_pages(query, address):
    assert any(hit.part.address.startswith(address) for hit in search(query)[:5])


def test_search_takes_anything(client):
    for query in ("", "   ", "*(", "x" * 500, "<b>auto</b>", "wordthatisnowhere"):
        page = client.get("/docs/search/", {"q": query})
        assert page.status_code == 200
        assert b"<b>auto" not in page.content


def test_old_addresses_lead_on(client):
    assert client.get("/api/docs/").headers["location"] == "/docs/api/"
    assert client.get("/docs").headers["location"] == "/docs/"
    assert client.get("/docs/nothing/").status_code == 404
    assert client.get("/docs/api/nothing/").status_code == 404
    assert client.post("/docs/").status_code == 405
