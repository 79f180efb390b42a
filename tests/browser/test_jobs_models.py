"""An operator's jobs around models, prices, plans and rules in Chromium, with the clicks that each takes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.upstream import MODEL, Upstream, serving_in_thread

pytestmark = pytest.mark.browser


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving_in_thread(Upstream("vllm")) as server:
        yield server


def order_of(page: Page) -> list[str]:
    return page.locator(".rules .rule-name > a").all_inner_texts()


def test_a_model_is_added_priced_led_to_and_withdrawn(visit, upstream, job):
    page = visit("operator", "/operate/").page

    with job("Operator", "add a model and have auto use it", page) as hand:
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

    with job("Operator", "publish a price", page) as hand:
        hand.link("Prices")
        hand.link("delta")
        hand.link("Publish new prices")
        page.get_by_label("Input").fill("4")
        hand.button("Compare")
        expect(page.get_by_role("row", name=re.compile(r"Input.*\+33\.3%"))).to_be_visible()
        expect(page.get_by_text("Nothing was used that this list prices.")).to_be_visible()  # it loads by itself
        hand.button("Publish")
        expect(page.get_by_role("status").first).to_contain_text("The prices of delta are published")

    with job("Operator", "see where a request would go", page) as hand:
        hand.link("Routing")
        page.get_by_label("Plan").select_option("business")
        page.get_by_label("What it asks").fill("Please extract this.")
        hand.button("Try")
        expect(page.locator("#tried")).to_contain_text("Credits")

    with job("Operator", "withdraw a model", page) as hand:
        hand.link("Models")
        hand.link("delta")
        hand.link("Withdraw…")
        page.get_by_label("Type the model’s name").fill("delta")
        hand.button("Withdraw model")
        expect(page.get_by_role("status").first).to_contain_text("delta is withdrawn")


def test_rules_are_ordered_by_dragging_and_by_keyboard_and_plans_compared(visit, job):
    page = visit("operator", "/operate/routing/").page
    before = order_of(page)
    handle = page.locator(".rules .handle")

    with job("Operator", "order a rule by dragging", page) as hand:
        start, end = handle.nth(0).bounding_box(), page.locator(".rules > li").nth(1).bounding_box()
        page.mouse.move(start["x"] + 8, start["y"] + 8)
        page.mouse.down()
        page.mouse.move(start["x"] + 8, end["y"] + end["height"] - 2, steps=5)
        with page.expect_navigation():
            page.mouse.up()
        hand.clicks += 1
        expect(page.locator(".rules .rule-name > a").first).to_have_text(before[1])
        assert order_of(page) == [before[1], before[0], *before[2:]]

    with job("Operator", "order a rule by keyboard", page) as hand:
        hand.press(page.get_by_role("button", name=f"Try {before[0]} earlier"), "Enter")
        expect(page.locator(".rules .rule-name > a").first).to_have_text(before[0])
        assert order_of(page) == before

    with job("Operator", "compare two plans", page) as hand:
        hand.link("Plans")
        page.get_by_label("Plan", exact=True).select_option("free")
        page.get_by_label("and", exact=True).select_option("max")
        hand.button("Compare")
        expect(page.get_by_role("row", name=re.compile("Credits a month 100 100,000"))).to_be_visible()
