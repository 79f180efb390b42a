"""Tables as pages declare them; templates/components/table.html draws them.

Numbers stand at the right, a name never widens its table, and on a phone each row becomes a card that keeps its money.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from control.screens.figures import html_of

_NUMBERS = frozenset({"number", "credits", "balance", "duration"})
_ICONS = {"good": "check", "active": "check", "warn": "warn", "bad": "cross", "": "dot"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `kind` is text, name (the row's head, cut where it is too long), wraps (prose), number, credits,
    balance, time, day, duration, id, state or buttons. A hidden title is read by screen readers only.
    """

    title: str
    kind: str = "text"
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A value that leads somewhere, or that has a second line."""

    value: Any
    href: str = ""
    detail: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A state in a word, with its icon and colour: good, warn, bad, or none."""

    word: str
    tone: str = ""
    detail: str = ""

    def __html__(self) -> str:
        icon = icon_of(_ICONS[self.tone])
        shown = format_html('<span class="state {}">{}{}</span>', self.tone, icon, self.word)
        return format_html('{} <span class="detail">{}</span>', shown, self.detail) if self.detail else shown

    __str__ = __html__


@dataclass(frozen=True, slots=True)
class Button:
    """An action of a row: a link, or with `post` a form of one button that sends `values`. `about` is read after its
    name: “Revoke laptop”.
    """

    name: str
    href: str
    about: str = ""
    tone: str = "quiet"
    post: bool = False
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """Values by column: a plain value, a `Cell`, a `State`, or a list of `Button`s. What is over is shown paler.

    With `sheet` the row's link opens in the side sheet, where a script runs.
    """

    values: Sequence[Any]
    is_over: bool = False
    sheet: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its name, and what stands in its place while it is empty. The links of a pager are addresses, with
    `words` for them: what comes before and after in this order.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str = "None."
    newer: str = ""
    older: str = ""
    words: tuple[str, str] = ("Newer", "Older")
    note: str = ""
    id: str = ""
    csrf: str = field(default="", repr=False)  # for rows with forms: django.middleware.csrf.get_token(request)

    @property
    def heads(self) -> SafeString:
        """The cells of the head row."""
        return format_html_join("", '<th scope="col"{}>{}</th>', map(_head, self.columns))

    @property
    def lines(self) -> Iterable[SafeString]:
        """The rows."""
        return map(self._line, self.rows)

    def _line(self, row: Row) -> SafeString:
        cells = ((self._cell(column, value, row),) for column, value in zip(self.columns, row.values, strict=True))
        over = mark_safe(' class="over"') if row.is_over else ""
        return format_html("<tr{}>{}</tr>", over, format_html_join("", "{}", cells))

    def _cell(self, column: Column, value: Any, row: Row) -> SafeString:
        one = value if isinstance(value, Cell) else Cell(value)
        shown: Any = one.value
        if column.kind == "buttons":
            shown = format_html_join(" ", "{}", ((self._button(button),) for button in shown))
        elif not isinstance(shown, (State, SafeString)):
            shown = html_of(column.kind, shown)
        if one.href:
            shown = format_html('<a href="{}"{}>{}</a>', one.href, mark_safe(" data-sheet") if row.sheet else "", shown)
        elif column.kind == "name":
            shown = format_html("<span>{}</span>", shown)
        if one.detail:
            shown = format_html('{}<span class="detail" title="{}">{}</span>', shown, one.detail, one.detail)
        title = one.title or (str(one.value) if column.kind == "name" else "")
        title = format_html(' title="{}"', title) if title else ""
        if column.kind == "name":
            return format_html('<th scope="row" class="name"{}>{}</th>', title, shown)
        label = "" if column.is_hidden else format_html(' data-label="{}"', column.title)
        kind = "number" if column.kind in _NUMBERS else "word" if column.kind == "state" else column.kind
        return format_html('<td class="{}"{}{}>{}</td>', kind, label, title, shown)

    def _button(self, button: Button) -> SafeString:
        about = format_html('<span class="visually-hidden"> {}</span>', button.about) if button.about else ""
        if not button.post:
            return format_html('<a class="button {}" href="{}">{}{}</a>', button.tone, button.href, button.name, about)
        values = {"csrfmiddlewaretoken": self.csrf, **button.values}
        token = format_html_join("", '<input type="hidden" name="{}" value="{}">', values.items())
        html = '<form method="post" action="{}">{}<button class="{}">{}{}</button></form>'
        return format_html(html, button.href, token, button.tone, button.name, about)


def _head(column: Column) -> tuple[str, str]:
    title: str = column.title
    if column.is_hidden:
        title = format_html('<span class="visually-hidden">{}</span>', title)
    return (mark_safe(' class="number"') if column.kind in _NUMBERS else "", title)


def icon_of(name: str) -> SafeString:
    """Return an icon of static/icons.svg; its meaning has to stand beside it in words."""
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}#{}"/></svg>', static("icons.svg"), name)
