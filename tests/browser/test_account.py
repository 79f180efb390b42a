"""A person's own page in Chromium: a passkey that signs in by itself, and sessions that are ended elsewhere."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser]
KEY = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


@pytest.fixture
def signed_in(site, browser):
    """Return a function that opens a window in which somebody is signed in anew; the host is one that passkeys have."""
    contexts = []

    def open_window(email, host="localhost"):
        context = browser.new_context(base_url=f"http://{host}:{site.port}", viewport={"width": 1280, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.goto(re.sub(r"//[^/]*", f"//{host}:{site.port}", site.inside.ask("tests.browser.seed:link", email)))
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(re.compile(r":\d+/$"))
        return page

    yield open_window
    for context in contexts:
        context.close()


def confirm(page):
    """Confirm on the page that asks for it that the passkey is there."""
    page.get_by_role("link", name="Use a security key").click()
    page.get_by_role("button", name="Use a security key").click()


def test_a_passkey_is_added_signs_in_by_itself_and_is_removed(signed_in):
    page = signed_in("member@acme.example")
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    session.send("WebAuthn.addVirtualAuthenticator", {"options": KEY})
    page.goto("/accounts/")
    page.get_by_role("link", name="Add a passkey").click()
    page.get_by_label("Name:").fill("This laptop")
    page.get_by_label("Passwordless").check()
    page.get_by_role("button", name="Add", exact=True).click()
    confirm(page)  # the codes are shown to who has it
    expect(page.get_by_role("heading", name="Recovery Codes")).to_be_visible()
    page.goto("/accounts/")
    row = page.get_by_role("row", name=re.compile("This laptop"))
    expect(row).to_contain_text("signs in alone")
    expect(page.get_by_text("10 left")).to_be_visible()
    page.get_by_role("row", name=re.compile("this one")).get_by_role("button", name=re.compile("Sign out")).click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_role("button", name="Use a passkey").click()
    page.wait_for_url(re.compile(r":\d+/$"))
    page.goto("/accounts/")
    row.get_by_role("link", name=re.compile("Remove")).click()
    confirm(page)  # a sign-in of before is not enough
    page.get_by_role("button", name="Remove").click()
    expect(page).to_have_url(re.compile("/accounts/#factors"))
    expect(page.get_by_text("This laptop")).to_have_count(0)


def test_without_a_passkey_the_page_says_why_none_is_taken(signed_in):
    page = signed_in("billing@acme.example", "127.0.0.1")
    page.goto("/accounts/2fa/webauthn/add/")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("not on an IP address")


def test_a_session_elsewhere_is_ended_and_asks_to_sign_in(signed_in):
    here, there = signed_in("both@acme.example"), signed_in("both@acme.example")
    there.goto("/accounts/")
    here.goto("/accounts/")
    others = here.locator("#sessions").get_by_role("button", name=re.compile("^End"))
    expect(others).not_to_have_count(0)
    here.get_by_role("button", name="End all others").click()
    expect(here.get_by_role("status")).to_contain_text("ended")
    expect(others).to_have_count(0)
    there.goto("/accounts/")
    expect(there).to_have_url(re.compile("/accounts/login/"))
