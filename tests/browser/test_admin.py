"""The operator's tables in Chromium: `visit` fails where the content security policy stopped anything."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser]
LONG = f"A{'very' * 20}longname GmbH & Co. KG"


def test_a_stranger_is_led_to_the_sign_in(site, browser):
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    page.goto("/admin/gateway/tenant/")
    expect(page).to_have_url(re.compile("/accounts/login/.next=%2Fadmin%2Fgateway%2Ftenant%2F"))
    context.close()


def test_tables_are_listed_and_a_long_name_widens_no_page(visit):
    page = visit("operator", "/admin/").page
    expect(page.get_by_role("link", name="Operator’s pages")).to_be_visible()
    page.get_by_role("link", name="Tenants", exact=True).last.click()
    page.get_by_role("link", name="Add tenant").click()
    page.get_by_label("Name:").press_sequentially(LONG)
    expect(page.get_by_label("Slug:")).to_have_value(re.compile("^averyvery"))  # Django's script writes it
    page.get_by_label("Slug:").fill("lengthy")
    page.get_by_label("Owner email:").fill("boss@long.example")
    page.get_by_role("button", name="Save", exact=True).click()
    page.set_viewport_size({"width": 390, "height": 800})
    expect(page.get_by_role("link", name=LONG).first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("row", name=LONG).get_by_role("link").first.click()
    page.get_by_role("link", name="Deactivate…").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_label("Type the slug “lengthy” to confirm").fill("lengthy")
    page.get_by_role("button", name="Deactivate").click()
    expect(page.get_by_role("status")).to_contain_text("is deactivated")


def test_a_key_is_made_with_a_search_a_window_for_its_project_and_a_day(visit):
    page = visit("operator", "/admin/gateway/apikey/add/").page
    page.get_by_label("Name:").fill("of the back room")
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Add another project").click()
    window = opened.value
    choose(window, "Tenant", "acme", "Acme")
    window.get_by_label("Name:").fill("Back room")
    with window.expect_event("close"):
        window.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".field-project")).to_contain_text("Acme · Back room")
    page.get_by_role("link", name="Choose a Date").click()
    page.locator("#calendarbox0").get_by_role("link", name="Tomorrow").click()
    page.get_by_role("link", name="Choose a Time").click()
    page.locator("#clockbox0").get_by_role("link", name="Noon").click()
    expect(page.get_by_label("Time", exact=True)).to_have_value("12:00:00")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Copy").click()
    assert re.fullmatch(r"sk-sluice-[\w-]{43}", page.evaluate("navigator.clipboard.readText()"))


def test_rows_are_filtered_by_another_row_and_by_days(visit):
    page = visit("operator", "/admin/gateway/auditevent/").page
    choose(page, "Tenant", "poor", "Poor")
    page.get_by_role("button", name="Apply").first.click()
    expect(page).to_have_url(re.compile("tenant__id__exact="))
    expect(page.locator("#result_list .field-tenant").first).to_have_text("Poor")
    assert set(page.locator("#result_list .field-tenant").all_inner_texts()) == {"Poor"}
    page.get_by_label("Up to:").fill("2020-01-01")
    page.get_by_role("button", name="Apply").last.click()
    expect(page.get_by_text("0 audit events")).to_be_visible()
    expect(page.locator(".select2-selection__rendered").first).to_contain_text("Poor")  # both hold together


def test_a_row_is_added_and_deleted(visit):
    page = visit("operator", "/admin/routing/modelalias/add/").page
    page.get_by_label("Name:").fill("gpt-admin")
    page.get_by_label("Target:").select_option("river")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("link", name="gpt-admin").last.click()
    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name="Yes, I’m sure").click()
    expect(page.get_by_text("0 aliases")).to_be_visible()


def test_the_theme_that_was_picked_holds_in_the_tables_too(visit):
    page = visit("operator", "/admin/").page
    ground = "getComputedStyle(document.body).backgroundColor"
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(ground)
    page.goto("/admin/gateway/user/")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Light").click()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert page.evaluate(ground) != dark


def choose(page, label, text, name):
    """Search in Django's field for a row of another table."""
    page.locator(f'span[role="combobox"][aria-label^="{label}"]').click()
    page.get_by_role("searchbox").last.fill(text)
    page.get_by_role("option", name=name, exact=True).click()
