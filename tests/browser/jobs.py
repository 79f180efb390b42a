"""The jobs of each role and their clicks: a test of each counts them; a run's end and docs/benchmarks.md list them.

A click is a press of a button, a link or a choice that is needed; typing, and Enter in a field, isn't counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from playwright.sync_api import Locator, Page

NONE, UNKNOWN = "no page", "–"  # of jobs that the pages before couldn't do, and of those that nobody counted in them
JOBS: dict[str, dict[str, tuple[int, int | str]]] = {
    "Operator": {  # from any of the operator's pages
        "see what is wrong, since when, what it hit, and its cure": (0, NONE),
        "copy the cure of what is wrong": (1, NONE),
        "say why a request cost that and went there": (0, UNKNOWN),
        "say why a request was refused": (0, NONE),
        "make a tenant with plan and owner": (3, 3),
        "grant credit": (3, 4),
        "make a tenant's key": (3, 4),
        "find a key's tenant by its last letters": (1, 1),
        "invite somebody to a tenant": (3, 5),
        "suspend a tenant": (3, 4),
        "export what a tenant has": (3, UNKNOWN),
        "see a tenant's pages as its owner, and come back": (4, NONE),
        "add a model and have auto use it": (9, 17),
        "publish a price": (5, 6),
        "withdraw a model": (4, 4),
        "see where a request would go": (2, 4),
        "order a rule by dragging": (1, NONE),
        "order a rule by keyboard": (1, 4),
        "compare two plans": (2, NONE),
        "try a mail again": (2, NONE),
        "check the books": (1, NONE),
        "take an engine out of service": (4, UNKNOWN),
    },
    "Owner": {  # from Home
        "come from the invitation to the first charged request": (4, UNKNOWN),
        "make a key": (4, UNKNOWN),
        "rotate a key": (4, UNKNOWN),
        "invite somebody": (2, UNKNOWN),
        "change a role": (4, UNKNOWN),
        "remove somebody": (3, UNKNOWN),
        "make a project": (2, UNKNOWN),
        "say why a request cost that and went there": (0, UNKNOWN),
        "say why a request was refused": (0, NONE),
        "find a day's spending and its requests": (2, UNKNOWN),
        "export usage": (2, UNKNOWN),
        "export all that the tenant has": (2, UNKNOWN),
        "get a model's command": (3, UNKNOWN),
        "change one's name": (3, UNKNOWN),
    },
    "Billing": {"export the ledger": (2, UNKNOWN)},
    "Member": {"converse over a closed tab": (3, UNKNOWN)},
}
"""Of each job the clicks, and those in the pages before."""


def lines_of_table() -> list[str]:
    """Return the table as docs/benchmarks.md has it."""
    rows = [
        f"| {role} | {name} | {now} | {before} |" for role, jobs in JOBS.items() for name, (now, before) in jobs.items()
    ]
    return ["| role | job | clicks | before |", "|---|---|---|---|", *rows]


@dataclass
class Hand:
    """Clicks on a page, and counts."""

    page: Page
    clicks: int = 0

    def click(self, target: Locator) -> None:
        """Click on it."""
        target.click()
        self.clicks += 1

    def link(self, name: str | re.Pattern[str], within: Locator | None = None) -> None:
        """Follow the first link of that name."""
        self.click(self._first("link", name, within))

    def button(self, name: str | re.Pattern[str], within: Locator | None = None) -> None:
        """Press the first button of that name."""
        self.click(self._first("button", name, within))

    def go(self, name: str) -> None:
        """Follow the navigation."""
        self.link(name, self.page.get_by_role("navigation", name="Pages"))

    def press(self, target: Locator, key: str) -> None:
        """Press a key where a hand would click."""
        target.focus()
        self.page.keyboard.press(key)
        self.clicks += 1

    def find(self, text: str, name: str = "") -> None:
        """Go to what Ctrl+K finds: with Enter to the first, by a click to another."""
        self.page.keyboard.press("Control+k")
        self.page.locator("#find input[type=search]").fill(text)
        found = self.page.locator("#found a")
        if name:
            self.click(found.filter(has_text=name).first)
        else:
            found.first.wait_for()
            self.page.keyboard.press("Enter")
        self.page.wait_for_load_state("load")

    def _first(self, role: str, name: str | re.Pattern[str], within: Locator | None) -> Locator:
        return (within or self.page).get_by_role(role, name=name, exact=isinstance(name, str)).first  # type: ignore[arg-type]


Jobs = Callable[[str, str, Page], AbstractContextManager[Hand]]


def counting(record: Callable[[str, object], None]) -> Jobs:
    """Return `job(role, name, page)`: a block with a Hand, which fails where the job takes other clicks."""

    @contextmanager
    def job(role: str, name: str, page: Page) -> Iterator[Hand]:
        hand = Hand(page)
        yield hand
        clicks, before = JOBS[role][name]
        record("row", ["clicks of each job, and before", f"{hand.clicks:>3} {before!s:>8}  {role}: {name}"])
        assert hand.clicks == clicks, name

    return job
