"""A tenant's jobs in a browser, each from the first page, with the clicks that it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visitor
from tests.browser.test_usage import models_with

pytestmark = [pytest.mark.browser]


@dataclass
class Hand:
    """Counts the clicks of one job."""

    visitor: Visitor
    clicks: int = 0

    @property
    def page(self) -> Page:
        return self.visitor.page

    def click(self, place: Locator) -> None:
        self.clicks += 1
        place.click()

    def link(self, name: str | re.Pattern[str], within: Locator | None = None) -> None:
        exact = isinstance(name, str)
        self.click((within or self.page).get_by_role("link", name=name, exact=exact).first)

    def button(self, name: str, within: Locator | None = None) -> None:
        self.click((within or self.page).get_by_role("button", name=name, exact=True).first)

    def go(self, name: str) -> None:
        """Follow the navigation."""
        self.link(name, self.page.get_by_role("navigation", name="Pages"))


COUNTED: dict[str, tuple[int, int]] = {}


@pytest.fixture(scope="module", autouse=True)
def _told() -> Iterator[None]:
    """Print the table of clicks at the end."""
    yield
    lines = [f"| {job} | {clicks} | {most} |" for job, (clicks, most) in COUNTED.items()]
    print("", "| job of a tenant | clicks | at most |", "|---|---|---|", *lines, sep="\n")


@pytest.fixture
def job(visit) -> Iterator[Callable[..., Hand]]:
    """`job("make a key", most=3)` opens the owner's first page; the test fails where it takes more clicks."""
    hands: list[tuple[str, int, Hand]] = []

    def begin(name: str, most: int, who: str = "owner") -> Hand:
        hand = Hand(visit(who, "/"))
        hands.append((name, most, hand))
        return hand

    yield begin
    for name, most, hand in hands:
        COUNTED[name] = hand.clicks, most
        assert hand.clicks <= most, name


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row", name=re.compile(name))


def test_a_key_is_made_and_used(site, job):
    hand = job("make a key", 4)
    page = hand.page
    hand.go("Keys")
    hand.link("Create key")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("job key")
    hand.button("Create key", dialog)
    hand.button("Copy key")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert "river" in models_with(site, page.evaluate("navigator.clipboard.readText()"))


def test_a_key_gets_another_secret(site, job, visit):
    site.inside.ask("tests.browser.seed:key", "acme", "turned")
    hand = job("rotate a key", 4)
    page = hand.page
    hand.go("Keys")
    hand.link("turned")
    hand.button("Make new secret")
    hand.button("Copy key")
    assert "river" in models_with(site, page.evaluate("navigator.clipboard.readText()"))
    page.goto("/keys/")
    expect(row(page, "^turned")).to_contain_text("and …")


def test_somebody_is_invited_and_the_invitation_withdrawn(job):
    hand = job("invite somebody", 2)
    page = hand.page
    hand.go("People")
    page.get_by_label("Invite by mail").fill("new@acme.example")
    hand.button("Invite")
    expect(page.get_by_text("new@acme.example is invited as member")).to_be_visible()
    page.get_by_role("button", name="Withdraw new@acme.example").click()
    expect(page.get_by_text("The invitation of new@acme.example is withdrawn.")).to_be_visible()


def test_a_role_is_changed(site, job):
    site.inside.ask("tests.browser.seed:joined", "acme", "changing@acme.example", "member")
    hand = job("change a role", 4)
    page = hand.page
    hand.go("People")
    hand.link("Change role of changing@acme.example")
    hand.click(page.get_by_role("radio", name=re.compile("^Billing")))
    hand.button("Save")
    expect(page.get_by_text("changing@acme.example is billing now.")).to_be_visible()


def test_somebody_is_removed(site, job):
    site.inside.ask("tests.browser.seed:joined", "acme", "leaving@acme.example", "member")
    hand = job("remove somebody", 3)
    page = hand.page
    hand.go("People")
    hand.link("Remove leaving@acme.example")
    page.get_by_label("Type the address").fill("leaving@acme.example")
    hand.button("Remove")
    expect(page.get_by_text("leaving@acme.example is no member any more.")).to_be_visible()


def test_a_project_is_made(job):
    hand = job("make a project", 2)
    page = hand.page
    hand.go("Settings")
    page.get_by_label("New project").fill("Research")
    hand.button("Make project")
    expect(page.get_by_text("The project “Research” is there")).to_be_visible()


def test_the_spending_of_a_day_leads_to_its_requests(site, job):
    site.inside.ask("tests.browser.seed:spend", "acme")
    hand = job("find a day's spending and its requests", 2)
    page = hand.page
    hand.go("Usage")
    bar = page.locator("svg a.bar").last
    told = bar.get_attribute("aria-label")
    assert re.search(r": [\d.]+", told)
    hand.clicks += 1
    bar.focus()
    bar.press("Enter")  # by keyboard, as Tab and Enter do
    expect(page).to_have_url(re.compile(r"/requests/\?since=[\d-]+T00:00:00Z&until="))


def test_usage_and_ledger_are_exported(job):
    hand = job("export usage", 2)
    page = hand.page
    hand.go("Usage")
    with page.expect_download() as download:
        hand.link("Export CSV")
    assert download.value.suggested_filename.startswith("usage-acme-")
    hand = job("export the ledger", 2, "billing")
    hand.go("Billing")
    with hand.page.expect_download() as download:
        hand.link("Export ledger")
    assert download.value.suggested_filename.startswith("ledger-acme-")


def test_a_models_command_is_copied(job):
    hand = job("get a model's command", 3)
    page = hand.page
    hand.go("Models")
    card = page.locator("section#river")
    hand.click(card.get_by_text("Ask river"))
    hand.button("Copy curl of river", card)
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("curl http://127.0.0.1")
    assert '"model": "river"' in text


def test_a_person_gives_a_name_and_keeps_the_navigation(job):
    hand = job("change one's name", 3)
    page = hand.page
    hand.click(page.get_by_role("button", name=re.compile("^Account")))
    hand.link("Your account")
    page.get_by_label("Name").fill("Olga Owner")
    hand.button("Save")
    expect(page.get_by_text("Your name is saved.")).to_be_visible()
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
