"""An operator's work on a bad day, by mouse, with the clicks that each job needs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.slow


class Hand:
    """Clicks, and counts them."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks = page, 0

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks += 1


@pytest.fixture
def hand(visit, site) -> Callable[[str], Hand]:
    return lambda path: Hand(visit("operator", path).page)


def test_what_is_wrong_is_seen_and_mended(hand, site, capsys):
    """A failing thing is on the first page; a mail is tried again, an engine drained, the books are checked."""
    site.inside.ask("tests.browser.seed_now:trouble")
    seen = hand("/operate/")
    page = seen.page
    need = page.locator("article.need", has_text="Models: river")
    expect(need).to_contain_text("since")
    expect(need).to_contain_text("Requests for it fail.")
    seen.click(need.get_by_role("button", name="Copy"))
    assert page.evaluate("navigator.clipboard.readText()") == "manage.py worker --node local"
    told = {"copy the cure of what fails": seen.clicks}

    mail = Hand(page)
    mail.click(page.locator(".lights a", has_text="Mail"))
    mail.click(page.get_by_role("button", name=re.compile("Try again")).first)
    expect(page.get_by_role("status").first).to_contain_text("1 mail will be tried again")
    told["try a mail again"] = mail.clicks

    page.goto("/operate/")
    books = Hand(page)
    books.click(page.get_by_role("button", name="Check the books"))
    expect(page.get_by_role("status").first).to_contain_text("Asked for: Books")
    told["check the books"] = books.clicks

    drain = Hand(page)
    drain.click(page.locator(".lights a", has_text="Engines"))
    drain.click(page.get_by_role("link", name="thinker"))
    drain.click(page.get_by_role("link", name="Take out of service"))
    drain.click(page.get_by_role("button", name="Take out of service"))
    expect(page.locator("#live h1 + .state")).to_have_text("off")
    told["drain an engine"] = drain.clicks
    page.get_by_role("link", name="Put into service").click()
    page.get_by_role("button", name="Put into service").click()
    expect(page.locator("#live h1 + .state")).to_have_text("ready")  # by polling: the gateway opens it meanwhile
    assert told == {"copy the cure of what fails": 1, "try a mail again": 2, "check the books": 1, "drain an engine": 4}
    with capsys.disabled():
        print(*(f"| {job} | {clicks} |" for job, clicks in told.items()), sep="\n")
