"""Finding a request from what a client's SDK printed, in Chromium, and its page in the side sheet."""

from __future__ import annotations

import re

import openai
import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser]


@pytest.fixture
def client(site):
    secret = site.inside.ask("tests.browser.seed:secret", "acme")
    with openai.OpenAI(api_key=secret, base_url=f"{site.url}/v1", max_retries=0) as client:
        yield client


def refused_as(site, client, model):
    """Ask for a model that there isn't; return the id that the SDK tells, once a gateway has written it."""
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}])
    while not site.inside.ask("tests.browser.seed:is_kept", refused.value.request_id):  # bounded by the test's timeout
        continue
    return refused.value.request_id


ANYWHERE = {"Owner": ("owner", "", ("/usage/", "/chat/")), "Operator": ("operator", "/operate", ("/operate/prices/",))}
"""Of each role who it is, its side, and pages where somebody begins."""


@pytest.mark.parametrize("role", ANYWHERE)
def test_a_request_is_explained_in_two_steps_from_anywhere(visit, client, role, job):
    """Ctrl+K with any form of its id, Enter: what it cost by line, and why it went there."""
    answered = client.chat.completions.create(model="river", messages=[{"role": "user", "content": "Hello"}])
    name, side, pages = ANYWHERE[role]
    page = visit(name, pages[0]).page
    with job(role, "say why a request cost that and went there", page) as hand:
        for begin in pages:
            for printed in (answered.id, answered._request_id):
                page.goto(begin)
                hand.find(printed)
                page.wait_for_url(f"**{side}/requests/*/")
                costs = page.get_by_role("region", name="What it cost")
                expect(costs.get_by_role("row", name=re.compile(r"^Charge .*\d"))).to_be_visible()
                expect(page.get_by_role("region", name="Why river")).to_contain_text("You asked for river")


@pytest.mark.parametrize("role", ANYWHERE)
def test_a_refused_request_is_found_by_the_id_that_the_sdk_printed(site, visit, client, role, job):
    printed = refused_as(site, client, "gpt-4o")
    name, side, [begin, *_] = ANYWHERE[role]
    page = visit(name, begin).page
    with job(role, "say why a request was refused", page) as hand:
        hand.find(printed)
        page.wait_for_url(f"**{side}/requests/{printed}/")
        expect(page.get_by_role("heading", name="Model not found")).to_be_visible()
        expect(page.get_by_role("main")).to_contain_text("gpt-4o")
        expect(page.get_by_role("main")).to_contain_text("What to do: Take auto or a name of the page Models")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_row_opens_in_the_side_sheet_and_gives_the_focus_back(site, visit, client, width):
    answered = client.chat.completions.create(model="river", messages=[{"role": "user", "content": "Hello"}])
    refused_as(site, client, "a-model-of-a-name-that-somebody-typed-at-length-" + "x" * 70)
    visitor = visit("owner", "/requests/")
    page = visitor.page
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    row = page.get_by_role("row", name=re.compile("river.*a program"))
    expect(row.first).to_contain_text("stop")
    link = row.first.get_by_role("link", name="river")
    link.focus()
    page.keyboard.press("Enter")
    sheet = page.get_by_role("dialog", name="Details")
    expect(sheet.get_by_role("heading", name="What it cost")).to_be_visible()
    expect(sheet.get_by_role("heading", name="Why river")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("Escape")
    expect(link).to_be_focused()
    page.get_by_label("Id of a request").fill(answered.id)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What it waited for")).to_be_visible()
    page.get_by_role("link", name="Requests").first.click()
    page.locator("sluice-chart a.bar").last.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("row").filter(has_text="river").first).to_be_visible()
