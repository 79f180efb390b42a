"""An operator's work on a bad day, with the clicks that each job takes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_what_is_wrong_is_seen_and_mended(visit, site, job):
    """A failing thing is on the first page; a mail is tried again, an engine drained, the books are checked."""
    site.inside.ask("tests.browser.seed_now:trouble")
    page = visit("operator", "/operate/").page
    need = page.locator("article.need", has_text="Models: river")
    with job("Operator", "see what is wrong, since when, what it hit, and its cure", page):
        expect(need.locator(".state")).to_have_text("critical")
        expect(need.locator("p.muted")).to_have_text(re.compile(r"^since \d+ \w+, \d\d:\d\d"))
        expect(need).to_contain_text("no replica is ready: does not answer")
        for told in (
            "What it hits Requests for it fail.",
            "What to do see its worker's log, or start it: manage.py worker --node local",
        ):
            expect(need).to_contain_text(told, use_inner_text=True)
    with job("Operator", "copy the cure of what is wrong", page) as hand:
        hand.button("Copy", need)
        assert page.evaluate("navigator.clipboard.readText()") == "manage.py worker --node local"

    with job("Operator", "try a mail again", page) as hand:
        hand.click(page.locator(".lights a", has_text="Mail"))
        hand.button(re.compile("Try again"))
        expect(page.get_by_role("status").first).to_contain_text("1 mail will be tried again")

    page.goto("/operate/")
    with job("Operator", "check the books", page) as hand:
        hand.button("Check the books")
        expect(page.get_by_role("status").first).to_contain_text("Asked for: Books")

    with job("Operator", "take an engine out of service", page) as hand:
        hand.click(page.locator(".lights a", has_text="Engines"))
        hand.click(page.get_by_role("link", name="thinker"))
        hand.link(re.compile("^Take out of service"))
        hand.button("Take out of service")
        expect(page.locator("#live h1 + .state")).to_have_text("off")
    page.get_by_role("link", name="Put into service").click()
    page.get_by_role("button", name="Put into service").click()
    expect(page.locator("#live h1 + .state")).to_have_text("ready")  # by polling: the gateway opens it meanwhile
