"""The documents by section, in the order of the navigation: the one place that says which files are pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

ROOT: Path = settings.BASE_DIR
REFERENCE = "api"
"""The address of the endpoints' pages below /docs/."""


@dataclass(frozen=True, slots=True)
class Page:
    """A document: its address below /docs/, its name in the navigation, and its Markdown file in the repository.

    `panel` names the figures of the installation that stand beside it.
    """

    slug: str
    title: str
    source: str
    panel: str = ""

    @property
    def path(self) -> Path:
        """The file."""
        return ROOT / self.source


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the navigation. Pages for those who use the API (`theirs`) show the reader's own address."""

    title: str
    pages: tuple[Page, ...]
    theirs: bool = False
    is_folded: bool = False


def _docs(name: str, title: str, panel: str = "") -> Page:
    return Page(name, title, f"docs/{name}.md", panel)


def _readme(package: str, title: str) -> Page:
    return Page(f"inside/{package}", title, f"{package}/README.md")


def _decisions() -> tuple[Page, ...]:
    found = sorted((ROOT / "docs/decisions").glob("*.md"))
    return tuple(
        Page(
            f"decisions/{one.stem}", one.read_text().partition("\n")[0].removeprefix("# "), f"docs/decisions/{one.name}"
        )
        for one in found
    )


SECTIONS = (
    Section(
        "Quick start",
        (
            _docs("quickstart/developer", "For developers"),
            _docs("quickstart/owner", "For tenant owners"),
            _docs("quickstart/operator", "For operators"),
        ),
        theirs=True,
    ),
    Section(
        "Concepts",
        (
            _docs("credits", "Credits: what a request costs", "metering"),
            _docs("statements", "Statements, and how to verify them"),
            _docs("concepts/prefill-and-decode", "Prefill and decode", "speed"),
            _docs("concepts/kv-cache", "The KV cache", "memory"),
            _docs("concepts/prefix-caching", "Prefix caching", "caching"),
            _docs("concepts/batching", "Batching", "batching"),
            _docs("concepts/speculation", "Speculation", "speed"),
            _docs("concepts/quantisation", "Quantisation", "models"),
            _docs("concepts/constrained-decoding", "Constrained decoding", "speed"),
            _docs("routing", "Routing: what auto does"),
        ),
        theirs=True,
    ),
    Section(
        "Guides",
        (
            _docs("fields", "Demands and wishes"),
            _docs("tools", "Tools and reasoning"),
            _docs("messages", "Anthropic's Messages"),
            _docs("idempotency", "Asking again, resuming"),
            _docs("requests", "Requests and their pages"),
            _docs("chat", "The chat page"),
            _docs("batches", "Files and batches"),
            _docs("adapters", "Adapters"),
            _docs("desk", "Support desks"),
            Page("examples", "A thousand tickets", "examples/README.md"),
            _docs("clients", "Clients that work"),
        ),
        theirs=True,
    ),
    Section("Reference", (_docs("errors", "Errors"), _docs("limits", "Limits", "limits")), theirs=True),
    Section(
        "Operating",
        (
            _docs("operations", "Deploy, back up, restore"),
            _docs("settings", "Settings"),
            _docs("operators", "Tenants, people, audit"),
            _docs("models", "Models"),
            _docs("remote", "Remote engines"),
            _docs("nodes", "Workers on other machines"),
            _docs("scaling", "Several gateways"),
            _docs("monitoring", "Monitoring"),
            _docs("jobs", "Periodic work"),
            _docs("isolation", "What tenants share"),
            Page("security", "Security", "SECURITY.md"),
            Page("upgrading", "Upgrading", "UPGRADING.md"),
        ),
    ),
    Section(
        "Inside",
        (
            _docs("architecture", "Architecture"),
            _docs("engine", "The engine"),
            _docs("benchmarks", "Benchmarks"),
            *(
                _readme(package, title)
                for package, title in (
                    ("gateway", "The data plane"),
                    ("control", "The control plane"),
                    ("billing", "Billing"),
                    ("routing", "Routing"),
                    ("inference", "Rows, steps, blocks"),
                    ("fleet", "The fleet"),
                    ("tenancy", "Tenancy"),
                    ("operation", "Operation"),
                    ("base", "The base"),
                    ("desk", "The desk"),
                )
            ),
            Page("model-card", "The desk's models", "desk/specialists/MODEL_CARD.md"),
            Page("contributing", "Contributing", "CONTRIBUTING.md"),
            Page("changelog", "Changelog", "CHANGELOG.md"),
            *_decisions(),
        ),
        is_folded=True,
    ),
)
PAGES = {page.slug: (section, page) for section in SECTIONS for page in section.pages}
BY_SOURCE = {page.source: page for _, page in PAGES.values()}
FILES = {
    "docs/log-line.schema.json": "application/json",
    "docs/statement-example.jsonl": "application/jsonl",
    "billing/verify/sluice_verify.py": "text/x-python",
    "examples/tickets.py": "text/x-python",
    "examples/tickets.csv": "text/csv",
    **{f"docs/images/{one.name}": "image/png" for one in (ROOT / "docs/images").glob("*.png")},
}
"""What pages link to that is no page, as it is sent."""


def beside(page: Page) -> tuple[Page | None, Page | None]:
    """Return the pages before and after `page` in the navigation."""
    every = [one for section in SECTIONS for one in section.pages]
    place = every.index(page)
    return (every[place - 1] if place else None), (every[place + 1] if place + 1 < len(every) else None)


def all_pages() -> Iterator[Page]:
    """Yield each page in the navigation's order."""
    yield from (page for section in SECTIONS for page in section.pages)
