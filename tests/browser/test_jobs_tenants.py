"""The operator's jobs around a tenant, in a browser, with the clicks that each takes."""

from __future__ import annotations

import re
import zipfile

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser]


def test_an_operators_jobs_around_a_tenant(visit, job):
    page = visit("operator", "/operate/").page

    with job("Operator", "make a tenant with plan and owner", page) as hand:
        hand.link("Tenants")
        hand.link("New tenant")
        page.get_by_label("Name", exact=True).fill("Tidewater")
        page.get_by_label("Short name").fill("tidewater")
        page.get_by_label("Plan").select_option("business")
        page.get_by_label("Owner’s address").fill("boss@tidewater.example")
        hand.button("Make the tenant")
        expect(page.get_by_role("heading", name="Tidewater")).to_be_visible()
        expect(page.get_by_text(re.compile(r"/invitations/\S+")).first).to_be_visible()

    with job("Operator", "grant credit", page) as hand:
        hand.find("tidew", "Tidewater")
        hand.link("Grant credit")
        page.get_by_label("Credits").fill("250")
        page.get_by_label("Reason").fill("invoice 7")
        hand.button("Grant")
        expect(page.get_by_text("250 credits are granted.")).to_be_visible()
        expect(page.locator("#ledger")).to_contain_text("20,250")

    with job("Operator", "make a tenant's key", page) as hand:
        hand.find("tidew", "Tidewater")
        hand.link("New key")
        page.get_by_label("Name", exact=True).fill("ci")
        hand.button("Make the key")
        secret = page.locator("#secret").inner_text()
        assert secret.startswith("sk-sluice-")

    with job("Operator", "find a key's tenant by its last letters", page) as hand:
        hand.find(secret[-4:], f"ci …{secret[-4:]}")
        expect(page.locator("#keys")).to_contain_text(secret[-4:])

    with job("Operator", "invite somebody to a tenant", page) as hand:
        hand.find("tidew", "Tidewater")
        hand.link("Invite")
        page.get_by_label("Address").fill("second@tidewater.example")
        hand.button("Invite")
        expect(page.locator("#invitations")).to_contain_text("second@tidewater.example")

    with job("Operator", "see a tenant's pages as its owner, and come back", page) as hand:
        hand.find("tidew", "Tidewater")
        hand.link("See as owner")
        hand.button("See its pages")
        expect(page.get_by_text("as its owner does")).to_be_visible()
        hand.button("Back to operating")
        expect(page.get_by_role("heading", name="Tidewater")).to_be_visible()

    with job("Operator", "export what a tenant has", page) as hand:
        hand.find("tidew", "Tidewater")
        hand.link("Export")
        with page.expect_download() as download:
            hand.button("Download")
        assert "members.jsonl" in " ".join(zipfile.ZipFile(download.value.path()).namelist())

    with job("Operator", "suspend a tenant", page) as hand:
        hand.find("tidew", "Tidewater")
        hand.link("Suspend")
        page.get_by_label("Reason").fill("abuse")
        page.get_by_label("Type tidewater to confirm").fill("tidewater")
        hand.button("Suspend")
        expect(page.locator(".page-head .state").first).to_have_text("Suspended")
