"""An operator's jobs around models, prices, plans and rules in Chromium, with the clicks that each needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.upstream import MODEL, Upstream, serving_in_thread

pytestmark = pytest.mark.browser
MOST = {  # clicks from any of the operator's pages, and what the admin's tables needed
    "add a model and have auto use it": (9, 17),
    "publish a price": (5, 6),
    "see where a request would go": (2, 4),
    "order a rule by dragging": (1, None),
    "order a rule by keyboard": (1, 4),
    "compare two plans": (2, None),
    "withdraw a model": (4, 4),
}


class Hand:
    """Clicks, and counts them by job."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks, self.job = page, {}, ""

    def begin(self, job: str) -> None:
        self.job = job
        self.clicks[job] = 0

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks[self.job] += 1

    def link(self, name: str) -> None:
        self.click(self.page.get_by_role("link", name=name, exact=True).first)

    def button(self, name: str) -> None:
        self.click(self.page.get_by_role("button", name=name, exact=True).first)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving_in_thread(Upstream("vllm")) as server:
        yield server


def order_of(page: Page) -> list[str]:
    return page.locator(".rules .rule-name > a").all_inner_texts()


def test_a_model_is_added_priced_led_to_and_withdrawn(visit, upstream, capsys):
    visitor = visit("operator", "/operate/")
    page = visitor.page
    hand = Hand(page)

    hand.begin("add a model and have auto use it")
    hand.link("Models")
    hand.link("Add a model")
    hand.link("At another server")
    page.get_by_label("Address").fill(upstream.address)
    hand.button("List its models")
    expect(page.get_by_role("radio", name=MODEL)).to_be_checked()
    page.get_by_label("Kind of server").select_option("vllm")
    page.get_by_label("Public name").fill("delta")
    hand.button("Test and add")
    expect(page.get_by_role("heading", name="It answers")).to_be_visible()
    hand.link("Next: price")
    page.get_by_label("Input").fill("3")
    page.get_by_label("Output").fill("12")
    page.get_by_label("A million tokens read").fill("1")
    page.get_by_label("A million tokens written").fill("3")
    hand.button("Save and go on")
    expect(page.get_by_role("heading", name="Who may ask for it")).to_be_visible()
    hand.link("Skip")
    page.get_by_role("checkbox", name=re.compile("^fields")).focus()
    page.keyboard.press("Space")
    page.get_by_label("Weight in fields").fill("999999")
    hand.button("Save and go on")
    expect(page.locator("#auto")).to_contain_text("yes")
    expect(page.get_by_text("margin 67 %")).to_be_visible()
    expect(page.get_by_text("margin 75 %")).to_be_visible()

    hand.begin("publish a price")
    hand.link("Prices")
    hand.link("delta")
    hand.link("Publish new prices")
    page.get_by_label("Input").fill("4")
    hand.button("Compare")
    expect(page.get_by_role("row", name=re.compile(r"Input.*\+33\.3%"))).to_be_visible()
    expect(page.get_by_text("Nothing was used that this list prices.")).to_be_visible()  # it loads by itself
    hand.button("Publish")
    expect(page.get_by_role("status").first).to_contain_text("The prices of delta are published")

    hand.begin("see where a request would go")
    hand.link("Routing")
    page.get_by_label("Plan").select_option("business")
    page.get_by_label("What it asks").fill("Please extract this.")
    hand.button("Try")
    expect(page.locator("#tried")).to_contain_text("Credits")

    hand.begin("withdraw a model")
    hand.link("Models")
    hand.link("delta")
    hand.link("Withdraw…")
    page.get_by_label("Type the model’s name").fill("delta")
    hand.button("Withdraw model")
    expect(page.get_by_role("status").first).to_contain_text("delta is withdrawn")
    tell(hand, capsys)


def test_rules_are_ordered_by_dragging_and_by_keyboard_and_plans_compared(visit, capsys):
    visitor = visit("operator", "/operate/routing/")
    page = visitor.page
    hand = Hand(page)
    before = order_of(page)
    handle = page.locator(".rules .handle")

    hand.begin("order a rule by dragging")
    start, end = handle.nth(0).bounding_box(), page.locator(".rules > li").nth(1).bounding_box()
    page.mouse.move(start["x"] + 8, start["y"] + 8)
    page.mouse.down()
    page.mouse.move(start["x"] + 8, end["y"] + end["height"] - 2, steps=5)
    with page.expect_navigation():
        page.mouse.up()
    hand.clicks[hand.job] += 1
    expect(page.locator(".rules .rule-name > a").first).to_have_text(before[1])
    assert order_of(page) == [before[1], before[0], *before[2:]]

    hand.begin("order a rule by keyboard")
    page.get_by_role("button", name=f"Try {before[0]} earlier").focus()
    page.keyboard.press("Enter")
    hand.clicks[hand.job] += 1
    expect(page.locator(".rules .rule-name > a").first).to_have_text(before[0])
    assert order_of(page) == before

    hand.begin("compare two plans")
    hand.link("Plans")
    page.get_by_label("Plan", exact=True).select_option("free")
    page.get_by_label("and", exact=True).select_option("max")
    hand.button("Compare")
    expect(page.get_by_role("row", name=re.compile("Credits a month 100 100,000"))).to_be_visible()
    tell(hand, capsys)


def tell(hand: Hand, capsys) -> None:
    """Print the table, and hold each job to its clicks."""
    with capsys.disabled():
        for job, clicks in hand.clicks.items():
            print(f"\n{job:<36} {clicks:>3} clicks, before {MOST[job][1] or 'not possible'}", end="")
    assert {job: clicks for job, clicks in hand.clicks.items() if clicks > MOST[job][0]} == {}
