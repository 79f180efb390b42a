"""A tenant's jobs in a browser, each from the first page, with the clicks that it takes."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import STRANGER
from tests.browser.test_usage import models_with

pytestmark = [pytest.mark.browser]


@pytest.fixture
def home(visit) -> Page:
    """The owner's first page."""
    return visit("owner", "/").page


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row", name=re.compile(name))


def test_a_newcomer_comes_from_the_invitation_to_a_charged_request(site, visit, job):
    """With what the mail and the pages say, and no document: the command that is shown runs as it was copied."""
    mail = site.inside.ask("tests.browser.seed:invited", "newcomers", "first@newcomers.example")
    [link] = re.findall(r"http://\S+", mail)
    page = visit(STRANGER, link).page
    with job("Owner", "come from the invitation to the first charged request", page) as hand:
        for field in page.locator("input[type=password]").all():
            field.fill("correct horse battery staple")
        hand.button("Join as owner")
        page.get_by_label("Its name").fill("first program")  # the step that Home shows
        hand.button("Create key")
        hand.button("Copy command")
        command = page.evaluate("navigator.clipboard.readText()")
        environment = {**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(["bash", "-ec", command], env=environment, capture_output=True, text=True, check=False)
        assert '"finish_reason":' in done.stdout, done
        hand.go("Requests")
        request = row(page, "first program").first
        expect(request).to_contain_text("stop")
    request.get_by_role("link").first.click()
    sheet = page.get_by_role("dialog", name="Details")
    expect(sheet.get_by_role("heading", name="What it cost")).to_be_visible()
    assert re.search(r"0\.\d*[1-9]", sheet.get_by_role("row", name=re.compile("^Charge")).first.inner_text())


def test_a_key_is_made_and_used(site, home, job):
    with job("Owner", "make a key", home) as hand:
        hand.go("Keys")
        hand.link("Create key")
        dialog = home.get_by_role("dialog")
        dialog.get_by_label("Name").fill("job key")
        hand.button("Create key", dialog)
        hand.button("Copy key")
        expect(home.get_by_role("button", name="Copied")).to_be_visible()
    assert "river" in models_with(site, home.evaluate("navigator.clipboard.readText()"))


def test_a_key_gets_another_secret(site, home, job):
    site.inside.ask("tests.browser.seed:key", "acme", "turned")
    with job("Owner", "rotate a key", home) as hand:
        hand.go("Keys")
        hand.link("turned")
        hand.button("Make new secret")
        hand.button("Copy key")
    assert "river" in models_with(site, home.evaluate("navigator.clipboard.readText()"))
    home.goto("/keys/")
    expect(row(home, "^turned")).to_contain_text("and …")


def test_people_are_invited_given_a_role_and_removed(site, home, job):
    for name in ("changing", "leaving"):
        site.inside.ask("tests.browser.seed:joined", "acme", f"{name}@acme.example", "member")
    with job("Owner", "invite somebody", home) as hand:
        hand.go("People")
        home.get_by_label("Invite by mail").fill("new@acme.example")
        hand.button("Invite")
        expect(home.get_by_text("new@acme.example is invited as member")).to_be_visible()
    home.get_by_role("button", name="Withdraw new@acme.example").click()
    expect(home.get_by_text("The invitation of new@acme.example is withdrawn.")).to_be_visible()

    with job("Owner", "change a role", home) as hand:
        hand.go("People")
        hand.link("Change role of changing@acme.example")
        hand.click(home.get_by_role("radio", name=re.compile("^Billing")))
        hand.button("Save")
        expect(home.get_by_text("changing@acme.example is billing now.")).to_be_visible()

    with job("Owner", "remove somebody", home) as hand:
        hand.go("People")
        hand.link("Remove leaving@acme.example")
        home.get_by_label("Type the address").fill("leaving@acme.example")
        hand.button("Remove")
        expect(home.get_by_text("leaving@acme.example is no member any more.")).to_be_visible()


def test_a_project_is_made(home, job):
    with job("Owner", "make a project", home) as hand:
        hand.go("Settings")
        home.get_by_label("New project").fill("Research")
        hand.button("Make project")
        expect(home.get_by_text("The project “Research” is there")).to_be_visible()


def test_the_spending_of_a_day_leads_to_its_requests(site, home, job):
    site.inside.ask("tests.browser.seed:spend", "acme")
    with job("Owner", "find a day's spending and its requests", home) as hand:
        hand.go("Usage")
        bar = home.locator("svg a.bar").last
        assert re.search(r": [\d.]+", bar.get_attribute("aria-label"))
        hand.press(bar, "Enter")  # by keyboard, as Tab and Enter do
        expect(home).to_have_url(re.compile(r"/requests/\?since=[\d-]+T00:00:00Z&until="))


def test_usage_ledger_and_all_that_the_tenant_has_are_exported(home, visit, job):
    with job("Owner", "export usage", home) as hand:
        hand.go("Usage")
        with home.expect_download() as download:
            hand.link("Export CSV")
    assert download.value.suggested_filename.startswith("usage-acme-")
    with job("Owner", "export all that the tenant has", home) as hand:
        hand.go("Settings")
        with home.expect_download() as download:
            hand.link("Download")
    assert "members.jsonl" in " ".join(zipfile.ZipFile(download.value.path()).namelist())
    page = visit("billing", "/").page
    with job("Billing", "export the ledger", page) as hand:
        hand.go("Billing")
        with page.expect_download() as download:
            hand.link("Export ledger")
    assert download.value.suggested_filename.startswith("ledger-acme-")


def test_a_models_command_is_copied(home, job):
    with job("Owner", "get a model's command", home) as hand:
        hand.go("Models")
        card = home.locator("section#river")
        hand.click(card.get_by_text("Ask river"))
        hand.button("Copy curl of river", card)
    text = home.evaluate("navigator.clipboard.readText()")
    assert text.startswith("curl http://127.0.0.1")
    assert '"model": "river"' in text


def test_a_person_gives_a_name_and_keeps_the_navigation(home, job):
    with job("Owner", "change one's name", home) as hand:
        hand.button(re.compile("^Account"))
        hand.link("Your account")
        home.get_by_label("Name").fill("Olga Owner")
        hand.button("Save")
        expect(home.get_by_text("Your name is saved.")).to_be_visible()
    expect(home.get_by_role("navigation", name="Pages")).to_be_visible()
