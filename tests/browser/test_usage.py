"""The usage page and the keys in Chromium."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import expect

from base.http import open_directly
from tests.browser.test_chat import answers, ask, pick

pytestmark = [pytest.mark.browser]


def models_with(site, secret):
    request = urllib.request.Request(f"{site.url}/v1/models", headers={"authorization": f"Bearer {secret}"})
    with open_directly(request, timeout=10) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def test_a_key_is_made_copied_used_and_revoked(site, visit):
    page = visit("owner", "/keys/").page
    page.get_by_role("link", name="Create key").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill("laptop")
    dialog.get_by_role("button", name="Create key").click()
    expect(page.get_by_role("heading", name="“laptop” is ready")).to_be_visible()
    page.get_by_role("button", name="Copy key").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    secret = page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(r"sk-sluice-[\w-]{43}", secret)
    assert "river" in models_with(site, secret)
    page.get_by_role("link", name="I saved it").click()
    row = page.get_by_role("row", name=re.compile("^laptop"))
    expect(row).to_contain_text(f"…{secret[-4:]}")
    expect(row).to_contain_text("active")
    row.get_by_role("link", name="Revoke laptop").click()
    page.get_by_label("Type the key’s name").fill("laptop")
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_text("“laptop” is revoked")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^laptop"))).to_contain_text("revoked")
    assert refused_with(site, secret) == 401


@pytest.mark.parametrize("width", [390, 1280])
def test_actions_are_in_sight_however_long_a_name_is(visit, width):
    page = visit("owner", "/keys/new/").page
    page.get_by_label("Name").fill(f"a key of {width} whose name somebody typed at length, to say where it is used")
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("link", name="I saved it").click()
    page.set_viewport_size({"width": width, "height": 800})
    place = page.get_by_role("link", name=re.compile(f"^Revoke a key of {width}")).bounding_box()
    assert place["x"] + place["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def refused_with(site, secret):
    """Return the status that ends the key; it is felt within a second (the test's timeout bounds it)."""
    while True:
        try:
            models_with(site, secret)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


def test_usage_shows_what_the_chat_used(site, visit):
    page = visit("owner").page
    pick(page, "echo")
    ask(page, "count me")
    expect(answers(page).last.locator("[data-reading=credits]")).to_be_visible()
    expect(answers(page).last.get_by_role("button", name="Regenerate")).to_be_visible()
    code, *told = site.inside.ask("manage", "jobs", "--once")
    assert code == 0, told
    page.get_by_role("link", name="Usage", exact=True).click()
    expect(page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    page.get_by_label("Model", exact=True).select_option("echo")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("model=echo"))
    expect(page.locator("svg .bar rect.s1")).not_to_have_count(0)
    page.get_by_text("Show as a table").click()
    expect(page.get_by_role("columnheader", name="echo")).to_be_visible()
    page.get_by_role("link", name="90 days").click()
    expect(page).to_have_url(re.compile("days=90.*model=echo"))
    with page.expect_download() as download:
        page.get_by_role("link", name="Export CSV").click()
    assert download.value.suggested_filename.startswith("usage-acme-")
    page.goto("/usage/")
    for group, told in (("Endpoint", "responses"), ("Member", "owner@acme.example")):
        page.get_by_role("link", name=group, exact=True).click()
        expect(page.locator("#sums").get_by_role("row", name=re.compile(told))).to_be_visible()
    page.get_by_role("link", name="Home", exact=True).click()
    expect(page.get_by_role("row", name=re.compile("echo")).first.get_by_role("link", name="echo")).to_be_visible()


def test_billing_sees_usage_and_no_chat(site, visit):
    page = visit("billing").page
    expect(page).to_have_url(f"{site.url}/")
    expect(page.get_by_role("link", name="Chat", exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name="Create key")).to_have_count(0)


PAGES = ["/", "/usage/", "/keys/", "/models/", "/batches/", "/billing/", "/people/", "/settings/", "/accounts/"]


def test_pages_fit_a_narrow_window(visit):
    page = visit("owner", "/").page
    page.set_viewport_size({"width": 390, "height": 800})
    for path in PAGES:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") == 390, path


ADMIN = [
    "",
    "gateway/tenant/",
    "gateway/apikey/",
    "gateway/membership/",
    "billing/wallet/",
    "billing/ledgertransfer/",
    "billing/usagerecord/",
    "billing/plan/",
    "billing/ratecard/",
    "billing/creditgrant/",
    "routing/deployment/",
    "routing/publicmodel/",
    "routing/routerule/",
]


def test_the_admins_pages_open_without_complaint(visit):
    visitor = visit("operator", "/admin/")
    for path in ADMIN:
        response = visitor.page.goto(f"/admin/{path}")
        assert response.status == 200, path
        expect(visitor.page.locator("#content, main").first).to_be_visible()
        assert visitor.complaints == [], path


def test_the_code_for_an_authenticator_app_can_be_scanned_in_the_dark(visit):
    page = visit("owner", "/accounts/2fa/totp/activate/", color_scheme="dark").page
    code = page.get_by_role("img").and_(page.locator("[src^='data:image/svg']"))
    assert code.evaluate("image => getComputedStyle(image).backgroundColor") == "rgb(255, 255, 255)"
