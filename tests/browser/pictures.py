"""The pictures of the documents: `python -m tests.browser.pictures [NAME …]` makes them anew in docs/images/.

The site is the same each time but for the dates; look at each picture before it is committed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import openai
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import Site, running_browser, running_site
from tests.stack.stack import ROOT

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000
SEED = "tests.browser.seed_pictures"
QUESTION = "What does a write-ahead log do?"
TICKET = "Give the fields of this ticket: I was charged twice for order 4810376, please send the money back."
WIDE, TALL, PHONE = (1280, 760), (1280, 920), (390, 760)


@dataclass(frozen=True)
class Picture:
    """What is seen at an address: who looks, at which size, and what is done there before."""

    who: str
    address: str
    size: tuple[int, int] = WIDE
    prepare: Callable[[Page], None] | None = None


def asked(page: Page) -> None:
    """Ask something in the chat and have the reason for its model open."""
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    answer = page.locator(".turn.assistant").last
    expect(answer.locator("[data-reading=credits]")).to_be_visible()
    answer.get_by_text("Why this model?").click()
    expect(answer.locator(".route-body")).to_contain_text("chosen")
    page.evaluate("document.activeElement.blur()")


def compared(page: Page) -> None:
    """Compare the prices of a list with new ones."""
    page.get_by_label("Input", exact=True).fill("180")
    page.get_by_label("Output", exact=True).fill("900")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("row", name=re.compile("^Input"))).to_be_visible()
    page.wait_for_load_state("networkidle")


def tried(page: Page) -> None:
    """Ask where a ticket would go."""
    page.get_by_label("Plan").select_option("business")
    page.get_by_label("What it asks").fill(TICKET)
    page.get_by_role("button", name="Try", exact=True).click()
    expect(page.locator("#tried")).to_contain_text("Credits")
    page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")


def side_by_side(page: Page) -> None:
    """Ask two models at once."""
    page.locator("#model-button").click()
    page.get_by_role("radio", name=re.compile("^qwen")).click()
    page.get_by_role("button", name="Compare two models").click()
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator("[data-reading=credits]")).to_have_count(2)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    page.evaluate("document.activeElement.blur()")


def pictures(ids: dict[str, str]) -> dict[str, Picture]:
    """Return all by name; `ids` are those of requests."""
    return {
        "now": Picture("operator", "/operate/"),
        "request": Picture("owner", f"/requests/{ids['ticket']}/"),
        "chat": Picture("owner", "/chat/", TALL, asked),
        "tenant": Picture("operator", "/operate/tenants/northwind-press/"),
        "money": Picture("operator", "/operate/money/"),
        "prices": Picture("operator", "/operate/prices/qwen2.5-7b-instruct/new/", TALL, compared),
        "routing": Picture("operator", "/operate/routing/", TALL, tried),
        "requests": Picture("owner", "/requests/?hours=24"),
        "refused": Picture("owner", f"/requests/{ids['refused']}/"),
        "usage": Picture("owner", "/usage/?days=30&group=model"),
        "home-phone": Picture("owner", "/", PHONE),
        "compare": Picture("owner", "/chat/", prepare=side_by_side),
        "reference": Picture("owner", "/docs/api/chat_completions/"),
    }


def used(site: Site) -> dict[str, str]:
    """Send some requests as a program does, one of them refused; return the ids of those that have a picture."""
    ids = {}
    with openai.OpenAI(api_key=site.inside.ask(f"{SEED}:secret"), base_url=f"{site.url}/v1", max_retries=0) as client:
        for _ in range(2):  # the second finds the first one's prompt in the cache
            answer = client.chat.completions.create(model="auto", messages=[{"role": "user", "content": TICKET}])
        ids["ticket"] = str(answer._request_id)
        try:
            client.chat.completions.create(model="qwen2.5-7b", messages=[{"role": "user", "content": QUESTION}])
        except openai.NotFoundError as refused:
            ids["refused"] = str(refused.request_id)
    for file in site.home.glob("sluice.sqlite3*"):
        file.chmod(0o600)  # as `manage.py setup` makes it
    code, *told = site.inside.ask("manage", "jobs", "--once")
    assert code == 0, told
    site.inside.ask(f"{SEED}:use")
    return ids


def signed_in(site: Site, browser: Browser, who: str) -> BrowserContext:
    """Return a window's context in which they are signed in."""
    options = {"locale": "en-GB", "timezone_id": "Europe/Paris", "color_scheme": "light", "reduced_motion": "reduce"}
    context = browser.new_context(base_url=site.url, **options)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(site.links[who].pop())
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_load_state("load")
    page.close()
    return context


def take(context: BrowserContext, picture: Picture, path: Path) -> None:
    """Take a picture."""
    page = context.new_page()
    page.set_viewport_size({"width": picture.size[0], "height": picture.size[1]})
    page.goto(picture.address)
    if picture.prepare is not None:
        picture.prepare(page)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=path, animations="disabled", caret="hide")
    page.close()


def main(names: list[str]) -> int:
    IMAGES.mkdir(exist_ok=True)
    with running_site(f"{SEED}:make") as site, running_browser() as browser:
        every = pictures(used(site))
        contexts = {who: signed_in(site, browser, who) for who in ("owner", "operator")}
        for name in names or every:
            path = IMAGES / f"{name}.png"
            take(contexts[every[name].who], every[name], path)
            size = path.stat().st_size
            print(f"{size:>8} {path.relative_to(ROOT)}{'  larger than it should be' * (size > MOST_BYTES)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
