"""Markdown as the documents are written in it, rendered with headings that links can name, tables and code that can be
scrolled by keyboard, and links that lead to pages of the site.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from posixpath import dirname, join, normpath
from typing import Any

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from control.api.data_plane import BASE
from control.docs.site import BY_SOURCE, FILES, PAGES, REFERENCE, ROOT, Page

LOCAL = "http://127.0.0.1:8000"
"""The address in the documents' examples, which the site replaces by the reader's own."""
NAMED = ("code", "variable")
"""Columns of tables whose texts in backticks are found by a link."""

_FILES = "/docs/files/"
_NOT_OF_SLUGS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading below the page's title, its anchor, and the plain text up to the next one."""

    level: int
    title: str
    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page's HTML, in which `BASE` stands for the reader's base URL, and what it is found by."""

    title: str
    html: SafeString
    headings: tuple[Heading, ...]


def slug_of(title: str, taken: Mapping[str, int]) -> str:
    """Return a heading's anchor, by the rule of the sites that show repositories; the `taken` ones get a number."""
    plain = _NOT_OF_SLUGS.sub("", title.lower()).replace(" ", "-")
    return f"{plain}-{taken[plain]}" if taken.get(plain) else plain


@dataclass
class _Gathered:
    """The renderer's notes on its way through a page."""

    page: Page
    theirs: bool
    blocks: int = 0


class _Renderer(RendererHTML):
    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Return a block of code with the button that copies it."""
        token, seen = tokens[idx], env["seen"]
        seen.blocks += 1
        code = token.content.replace(LOCAL, BASE) if seen.theirs else token.content
        return code_block(code, token.info.split(" ")[0], f"code-{seen.blocks}")

    def code_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Return an indented block likewise."""
        return self.fence(tokens, idx, options, env)

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Begin a table that scrolls by itself."""
        return '<div class="scroll" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """End it."""
        return "</table></div>\n"

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Begin a link to where the site has its target, or a text in its place where the site doesn't have it."""
        target = address_of(env["seen"].page, str(tokens[idx].attrGet("href")))
        if target is None:
            return '<span class="elsewhere">'
        return f'<a href="{escape(target)}">'

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """End the link, or the text in its place."""
        opened, depth = idx, 0
        while True:
            opened -= 1
            depth += {"link_close": 1, "link_open": -1}.get(tokens[opened].type, 0)
            if depth < 0:
                break
        known = address_of(env["seen"].page, str(tokens[opened].attrGet("href"))) is not None
        return "</a>" if known else "</span>"

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Return an image of the site, with its size so that nothing moves when it comes."""
        target = address_of(env["seen"].page, str(tokens[idx].attrGet("src"))) or ""
        size = ""
        if (path := target.removeprefix(_FILES)) in FILES:
            with (ROOT / path).open("rb") as file:
                width, height = struct.unpack(">16x2I", file.read(24))  # PNG's first chunk
            size = f' width="{width}" height="{height}"'
        return f'<img src="{escape(target)}" alt="{escape(tokens[idx].content)}"{size} loading="lazy">'

    def code_inline(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Return a text in backticks, with its anchor where a table tells of it."""
        named = tokens[idx].meta.get("anchor", "")
        identified = f' id="{escape(named)}"' if named else ""
        return f"<code{identified}>{escape(tokens[idx].content)}</code>"


def code_block(code: str, language: str, identifier: str) -> SafeString:
    """Return a block of code that is scrolled by keyboard, with the button that copies it."""
    about = f' data-language="{escape(language)}"' if language else ""
    html = (
        f'<div class="code"{about}><pre tabindex="0"><code id="{identifier}">{escape(code.rstrip())}</code></pre>'
        f'<button type="button" class="quiet copy" data-copy="#{identifier}">Copy</button></div>\n'
    )
    return SafeString(html)


def address_of(page: Page, link: str) -> str | None:
    """Return the address on the site of what `page` links to; None where the site doesn't have it."""
    if link.startswith(("http:", "https:", "mailto:", "#", "/")):
        return link
    path, _, anchor = link.partition("#")
    source = normpath(join(dirname(page.source), path))
    suffix = f"#{anchor}" if anchor else ""
    if source in BY_SOURCE:
        return f"/docs/{BY_SOURCE[source].slug}/{suffix}"
    if source in FILES:
        return _FILES + source
    return "/docs/architecture/" if source == "docs/decisions" else None


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")


def inline(text: str) -> SafeString:
    """Return a line of Markdown as HTML."""
    page = Page("", "", "docs/errors.md")
    env = {"seen": _Gathered(page, theirs=False)}
    html: str = _parser().renderInline(text, env)
    return SafeString(html)


@cache
def rendered(slug: str) -> Rendered:
    """Return that page of the site, rendered once in each process."""
    section, page = PAGES[slug]
    return render(page.path.read_text(), page, theirs=section.theirs)


def render(text: str, page: Page, *, theirs: bool) -> Rendered:
    """Return the Markdown `text` of a page as HTML."""
    env: dict[str, Any] = {"seen": _Gathered(page, theirs)}
    tokens = _parser().parse(text, env)
    anchors: set[str] = set()
    _name_cells(tokens, anchors)
    headings = _headings(tokens, anchors)
    html = _parser().renderer.render(tokens, _parser().options, env)
    title = headings[0].title if headings else page.title
    return Rendered(
        title=title,
        html=mark_safe(html),  # noqa: S308 - rendered without raw HTML
        headings=tuple(headings),
    )


def _headings(tokens: Sequence[Token], anchors: set[str]) -> list[Heading]:
    """Give each heading its anchor; return them with the text below each."""
    taken: dict[str, int] = {}
    found: list[tuple[int, str, str, list[str]]] = []
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            title = _plain(tokens[at + 1])
            anchor = slug_of(title, taken)
            taken[slug_of(title, {})] = taken.get(slug_of(title, {}), 0) + 1
            token.attrSet("id", anchor)
            anchors.add(anchor)
            found.append((int(token.tag[1]), title, anchor, []))
        elif token.type in ("inline", "fence") and found and tokens[at - 1].type != "heading_open":
            found[-1][3].append(_plain(token))
    return [Heading(level, title, anchor, " ".join(parts)) for level, title, anchor, parts in found]


def _plain(token: Token) -> str:
    if token.children is None:
        return token.content
    return "".join(
        one.content if one.type in ("text", "code_inline") else " " * (one.type == "softbreak")
        for one in token.children
    )


def _name_cells(tokens: Sequence[Token], anchors: set[str]) -> None:
    """Give the entries of tables, in their columns `NAMED`, anchors."""
    named, column = -1, -1
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            named = -1
        elif token.type == "tr_open":
            column = -1
        elif token.type in ("th_open", "td_open"):
            column += 1
            inner = tokens[at + 1]
            if token.type == "th_open" and inner.content in NAMED:
                named = column
            elif token.type == "td_open" and column == named:
                for one in inner.children or ():
                    if one.type == "code_inline" and one.content not in anchors:
                        one.meta["anchor"] = one.content
                        anchors.add(one.content)


def operation_address(identifier: str) -> str:
    """Return the address of an endpoint's page."""
    return f"/docs/{REFERENCE}/{identifier}/"
