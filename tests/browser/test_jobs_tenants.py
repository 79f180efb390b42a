"""The operator's jobs around a tenant, in a browser: how many clicks each takes, beside those of the admin's tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from playwright.sync_api import Page, expect

MOST = {  # clicks from any of the operator's pages, and from the admin's first page in its tables
    "make a tenant with plan and owner": (3, 3),
    "grant credit": (3, 4),
    "find a key's tenant by its last letters": (1, 1),
    "make a key": (3, 4),
    "invite a member": (3, 5),
    "suspend": (3, 4),
    "see as the owner and come back": (4, None),
}


@dataclass
class Clicks:
    """Counts what is clicked for each job; typing isn't counted."""

    page: Page
    counted: dict[str, int] = field(default_factory=dict)
    job: str = ""

    def begin(self, job: str) -> None:
        self.job = job
        self.counted[job] = 0

    def on(self, name: str, role: str = "link") -> None:
        self.page.get_by_role(role, name=name, exact=True).first.click()
        self.counted[self.job] += 1


def test_an_operators_jobs_around_a_tenant(visit):
    visitor = visit("operator", "/operate/")
    page = visitor.page
    clicks = Clicks(page)

    clicks.begin("make a tenant with plan and owner")
    clicks.on("Tenants")
    clicks.on("New tenant")
    page.get_by_label("Name", exact=True).fill("Tidewater")
    page.get_by_label("Short name").fill("tidewater")
    page.get_by_label("Plan").select_option("business")
    page.get_by_label("Owner’s address").fill("boss@tidewater.example")
    clicks.on("Make the tenant", "button")
    expect(page.get_by_role("heading", name="Tidewater")).to_be_visible()
    expect(page.get_by_text(re.compile(r"/invitations/\S+")).first).to_be_visible()

    clicks.begin("grant credit")
    found(page, "tidew", clicks, "Tidewater")
    clicks.on("Grant credit")
    page.get_by_label("Credits").fill("250")
    page.get_by_label("Reason").fill("invoice 7")
    clicks.on("Grant", "button")
    expect(page.get_by_text("250 credits are granted.")).to_be_visible()
    expect(page.locator("#ledger")).to_contain_text("20,250")

    clicks.begin("make a key")
    found(page, "tidew", clicks, "Tidewater")
    clicks.on("New key")
    page.get_by_label("Name", exact=True).fill("ci")
    clicks.on("Make the key", "button")
    secret = page.locator("#secret").inner_text()
    assert secret.startswith("sk-sluice-")

    clicks.begin("find a key's tenant by its last letters")
    found(page, secret[-4:], clicks, f"ci …{secret[-4:]}")
    expect(page.locator("#keys")).to_contain_text(secret[-4:])

    clicks.begin("invite a member")
    found(page, "tidew", clicks, "Tidewater")
    clicks.on("Invite")
    page.get_by_label("Address").fill("second@tidewater.example")
    clicks.on("Invite", "button")
    expect(page.locator("#invitations")).to_contain_text("second@tidewater.example")

    clicks.begin("see as the owner and come back")
    found(page, "tidew", clicks, "Tidewater")
    clicks.on("See as owner")
    clicks.on("See its pages", "button")
    expect(page.get_by_text("as its owner does")).to_be_visible()
    clicks.on("Back to operating", "button")
    expect(page.get_by_role("heading", name="Tidewater")).to_be_visible()

    clicks.begin("suspend")
    found(page, "tidew", clicks, "Tidewater")
    clicks.on("Suspend")
    page.get_by_label("Reason").fill("abuse")
    page.get_by_label("Type tidewater to confirm").fill("tidewater")
    clicks.on("Suspend", "button")
    expect(page.locator(".page-head .state").first).to_have_text("Suspended")

    print("\n| job | clicks | in the admin's tables |\n|---|---|---|")
    for job, count in clicks.counted.items():
        most, tables = MOST[job]
        print(f"| {job} | {count} | {tables or 'not there'} |")
        assert count <= most, job


def found(page: Page, text: str, clicks: Clicks, name: str) -> None:
    """Go to what Ctrl+K finds."""
    page.keyboard.press("Control+k")
    page.locator("#find input[type=search]").fill(text)
    page.locator("#found a", has_text=name).first.click()
    clicks.counted[clicks.job] += 1
    page.wait_for_load_state("load")
