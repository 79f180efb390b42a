"""The audit trail as both sides show it: filters from the address, changes in words, credits in credits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db.models import Field, Model, Q, QuerySet
from django.http import QueryDict
from django.urls import NoReverseMatch, reverse
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from base.ids import first_at
from base.units import format_credits
from billing.models import PlanVersion
from control.screens.figures import grouped, is_of_our_time
from control.screens.tables import Cell, Column, Row, Table
from tenancy.audit.tracked import TRACKED
from tenancy.models import AuditEvent, User

PAGE = 50
SHOWN_FIELDS = 4
_TRACKED = {one.word: one for one in TRACKED}
NOUNS = {
    "tenant": "tenant",
    "project": "project",
    "membership": "member",
    "key": "key",
    "admin_key": "admin key",
    "invitation": "invitation",
    "sign_in_link": "sign-in link",
    "user": "person",
    "second_factor": "second factor",
    "subscription": "subscription",
    "wallet": "wallet",
    "purchase": "purchase",
    "recurring_grant": "recurring grant",
    "invoice": "invoice",
    "vouchers": "vouchers",
    "voucher": "voucher",
    "plan": "plan",
    "plan_version": "plan’s version",
    "rate_card": "price list",
    "rerating": "re-rating",
    "model": "model",
    "alias": "alias",
    "adapter": "adapter",
    "node": "node",
    "deployment": "deployment",
    "replica": "replica",
    "route_rule": "rule",
    "route_target": "rule’s target",
    "fetch": "fetch of a model",
    "plan_move": "move to a plan",
    "web_hook": "web-hook",
}
_VERBS = {"created": "made", "changed": "changed", "deleted": "deleted"}
_OWN = {  # what isn't told by one of the three verbs, in words that go before the object's name
    "membership.created": "added the member",
    "subscription.created": "subscribed to",
    "sign_in_link.created": "made a sign-in link for",
    "sign_in.succeeded": "signed in",
    "sign_in.failed": "failed to sign in as",
    "user.groups": "changed the roles of",
    "user.signed_out": "ended other sessions of",
    "user.exported": "exported the person",
    "user.erased": "erased the person",
    "tenant.exported": "exported the tenant",
    "tenant.erased": "erased the tenant",
    "tenant.viewed": "looked at the pages of the tenant",
    "conversation.shared": "shared a conversation:",
    "conversation.unshared": "withdrew a shared conversation:",
    "conversation.deleted": "deleted a shared conversation:",
    "invitation.created": "invited",
    "invitation.deleted": "took back the invitation of",
    "invitation.accepted": "accepted the invitation",
    "key.revoked": "revoked the key",
    "key.spend_limits": "changed the budget of the key",
    "admin_key.revoked": "revoked the admin key",
    "credit.granted": "granted credit",
    "credit.adjusted": "adjusted credit",
    "credit.scheduled": "granted credit from later on",
    "credit.cancelled": "cancelled a grant to come",
    "credit.voided": "voided a grant",
    "credit.refunded": "refunded a grant",
    "request.refunded": "refunded a request",
    "budget.created": "made the budget",
    "budget.changed": "changed the budget",
    "budget.deleted": "deleted the budget",
    "rerating.stopped": "stopped the re-rating",
    "prices.published": "published prices",
    "mail.tried_again": "had a mail tried again",
    "job.asked": "asked for the job",
}
ACTIONS = {f"{word}.{verb}": f"{_VERBS[verb]} the {noun}" for word, noun in NOUNS.items() for verb in _VERBS} | _OWN
KINDS = {
    "access": ("Tenants and people", ("tenant", "project", "membership", "invitation", "user", "conversation")),
    "sign_ins": ("Signing in", ("sign_in", "sign_in_link", "second_factor")),
    "keys": ("Keys", ("key", "admin_key")),
    "credit": (
        "Credit and subscriptions",
        (
            "credit",
            "wallet",
            "subscription",
            "purchase",
            "vouchers",
            "voucher",
            "request",
            "budget",
            "recurring_grant",
            "invoice",
        ),
    ),
    "terms": ("Plans and prices", ("plan", "plan_version", "plan_move", "rate_card", "prices", "rerating")),
    "models": (
        "Models, engines, routing",
        ("model", "alias", "adapter", "node", "deployment", "replica", "route_rule", "route_target", "fetch"),
    ),
    "system": ("Jobs, mail, web-hooks", ("job", "mail", "web_hook")),
}
"""What can be filtered by: the name of each kind, and how its actions begin."""
OF_TENANTS = ("access", "sign_ins", "keys", "credit", "models", "system")
"""The kinds of which a tenant's own trail has something."""

_IN_CREDITS = frozenset(
    {
        "credit_limit",
        "credit_burst",
        "monthly_credits",
        "promise_cap",
        "overdraft_limit",
        "credits_micro",
        "voided_micro",
        "amount",
        "rollover",
        "limit_micro",
    }
    | {"request_fee", "day_limit", "month_limit", "total_limit"}
)
_LABELS = {
    "is_active": "active",
    "slug": "short name",
    "is_staff": "operator",
    "is_superuser": "may do everything",
    "is_ending": "ends with its month",
    "is_offered": "offered",
    "credits_micro": "credits",
    "voided_micro": "credits voided",
    "multiplier_bp": "price factor",
    "request_limit": "requests",
    "request_period_s": "requests counted in",
    "request_burst": "requests at once",
    "credit_limit": "credits",
    "credit_period_s": "credits counted in",
    "credit_burst": "credits at once",
    "token_limit": "tokens",
    "token_period_s": "tokens counted in",
    "token_burst": "tokens at once",
    "flex_bp": "price factor of flex",
    "priority_bp": "price factor of priority",
    "promised_ttft_ms": "first token promised within, ms",
    "promised_ttft_per_1k_ms": "and for 1,000 tokens of the prompt, ms",
    "promised_rate": "tokens a second promised",
    "promised_rate_from": "in answers from, tokens",
    "promise_credit_bp": "share that a miss gives back",
    "promise_cap": "credits that misses give back a month",
    "concurrency": "requests at the same time",
    "slice_tokens": "tokens held ahead",
    "resume_s": "goes on without a reader for",
    "allowed_models": "models",
    "day_limit": "credits a day",
    "month_limit": "credits a month",
    "total_limit": "credits in all",
    "expires_at": "expires",
    "erased_at": "erased",
    "effective_from": "in force from",
    "request_fee": "each request",
    "next_version": "plan of the next month",
    "version": "plan",
    "last_four": "last characters",
    "previous_last_four": "old secret’s last characters",
    "previous_until": "old secret ends",
    "rotated_at": "rotated",
    "groups": "roles",
    "user": "person",
    "grant": "grant",
    "response_storage": "stored responses",
    "response_days": "days of stored responses",
    "file_days": "days of files",
    "batch_days": "days of batches",
    "refusal_days": "days of refused requests",
    "refunded_amount": "money paid back (minor units)",
    "context_length": "context, tokens",
    "rate_card": "price list",
    "exported": "exported",
}
_AS_ALWAYS = frozenset({"name", "is_active", "state", "password"})  # of what is made: the line has the name
_RATE = re.compile(r"(?P<cls>\w+) from (?P<least>\d+)")
_UNIT = " credits for a million tokens"
_PAGES = {  # what a target's kind leads to on the operator's side: by its id, or to a page of all
    "publicmodel": ("operate-model", True),
    "user": ("operate-person", True),
    "deployment": ("operate-engines", False),
    "node": ("operate-engines", False),
    "replica": ("operate-engines", False),
    "plan": ("operate-plans", False),
    "planversion": ("operate-plans", False),
    "ratecard": ("operate-prices", False),
    "ratecardversion": ("operate-prices", False),
    "routerule": ("operate-routing", False),
    "routetarget": ("operate-routing", False),
}
_TABS = {  # what it leads to under its tenant
    "project": "projects",
    "membership": "people",
    "invitation": "people",
    "apikey": "keys",
    "adminapikey": "keys",
    "wallet": "wallet",
    "ledgertransfer": "wallet",
    "subscription": "limits",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The filters of a trail, as its address has them: `action` is one, or a kind of KINDS; `place` what else its query
    begins with.
    """

    who: str = ""
    action: str = ""
    about: str = ""
    first: date | None = None
    last: date | None = None
    before: UUID | None = None
    place: str = ""

    @classmethod
    def of(cls, data: QueryDict, place: str = "") -> Asked:
        """Read the address; a value that can't be read counts as not given."""
        action = data.get("action", "")
        return cls(
            who=_text(data, "who"),
            action=action if action in ACTIONS or action in KINDS else "",
            about=_text(data, "object"),
            first=_day(data.get("from", "")),
            last=_day(data.get("to", "")),
            before=_uuid(data.get("before", "")),
            place=place,
        )

    @property
    def is_filtered(self) -> bool:
        """Whether only some of the events are asked for."""
        return replace(self, before=None, place="") != Asked()

    def query(self, **changes: Any) -> str:
        """Return the address's query with `changes`."""
        one = replace(self, **changes)
        values = {
            "who": one.who, "action": one.action, "object": one.about, "from": one.first or "", "to": one.last or "",
            "before": one.before or "",
        }  # fmt: skip
        given = urlencode({name: value for name, value in values.items() if value})
        return "?" + "&".join(filter(None, (one.place, given)))

    def rows(self, events: QuerySet[AuditEvent]) -> list[AuditEvent]:
        """Return a page of the events that match, newest first, and one more where there are older ones."""
        if self.who:
            user = User.objects.filter(email=self.who.lower()).values_list("pk", flat=True).first()
            events = events.filter(Q(user=user) if user else Q(actor__istartswith=self.who))
        if self.action:
            words = KINDS[self.action][1] if self.action in KINDS else ()
            chosen = [one for one in ACTIONS if one.partition(".")[0] in words] or [self.action]
            events = events.filter(action__in=chosen)
        if self.about:
            events = events.filter(Q(target_id=self.about) | Q(target__istartswith=self.about))
        if self.first:
            events = events.filter(pk__gte=first_at(_midnight(self.first)))
        if self.last and self.last < date.max:
            events = events.filter(pk__lt=first_at(_midnight(self.last + timedelta(days=1))))
        if self.before:
            events = events.filter(pk__lt=self.before)
        return list(events.order_by("-pk")[: PAGE + 1])

    def choices(self, kinds: Iterable[str] = KINDS) -> list[tuple[str, str, list[tuple[str, str]]]]:
        """Return what can be chosen: each kind with its name and the actions of it."""
        return [
            (
                kind,
                KINDS[kind][0],
                [(one, text) for one, text in ACTIONS.items() if one.partition(".")[0] in KINDS[kind][1]],
            )
            for kind in kinds
        ]


def _text(data: QueryDict, name: str) -> str:
    return data.get(name, "").replace("\0", "").strip()[:254]


def _day(text: str) -> date | None:
    try:
        found = parse_date(text)
    except ValueError:
        return None
    return found if found is not None and is_of_our_time(_midnight(found)) else None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Change:
    """A field that changed, in words; `old` is empty where there was none."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name}: {self.old} → {self.new}" if self.old else f"{self.name}: {self.new}"


_COLUMNS = [Column("When", "time"), Column("Who", "name"), Column("What", "wraps"), Column("Change", "wraps")]


def audit_table(found: Sequence[AuditEvent], asked: Asked, *, for_operator: bool, of_one: bool = True) -> Table:
    """Return a page of events as a table; only the operator's leads to the objects. `of_one`: all are of one tenant,
    whose name needn't stand in each line.
    """
    page = found[:PAGE]
    names = _names_of(page)
    rows = [_row(event, names, for_operator=for_operator, of_one=of_one) for event in page]
    empty = "Nothing matches these filters." if asked.is_filtered or asked.before else "Nothing has been changed yet."
    older = asked.query(before=page[-1].pk) if len(found) > PAGE else ""
    newest = asked.query(before=None) if asked.before else ""
    return Table("Audit trail", _COLUMNS, rows, empty, newest, older, words=("Newest", "Older"), id="trail")


def _row(event: AuditEvent, names: dict[tuple[type[Model], str], str], *, for_operator: bool, of_one: bool) -> Row:
    who = Cell(event.actor, _actor_page(event) if for_operator else "", detail=event.address)
    what = format_html("{} {}", capitalised(phrase_of(event)), _named(event, for_operator=for_operator))
    if not of_one and event.tenant is not None and event.target_type != "tenant":
        href = reverse("operate-tenant", args=[event.tenant.slug])
        what = format_html('{} of <a href="{}">{}</a>', what, href, event.tenant.name)
    return Row([event.at, who, format_html("<span>{}</span>", what), _told(changes_of(event, names))])


def capitalised(text: str) -> str:
    """Return the text as a sentence begins."""
    return text[:1].upper() + text[1:]


def phrase_of(event: AuditEvent) -> str:
    """Return the act in words that go before the object's name."""
    word, _, verb = event.action.partition(".")
    if verb == "changed" and (said := _SAID.get(word)) is not None:
        name, by_value = said
        if name in event.after and str(event.after[name]) in by_value:
            return by_value[str(event.after[name])]
    return ACTIONS.get(event.action, event.action.replace("_", " ").replace(".", " "))


_SAID: dict[str, tuple[str, dict[str, str]]] = {
    "tenant": ("is_active", {"False": "suspended the tenant", "True": "activated the tenant"}),
    "user": ("is_active", {"False": "deactivated the person", "True": "activated the person"}),
    "membership": ("is_active", {"False": "removed the member", "True": "let in the member"}),
    "project": ("is_active", {"False": "archived the project", "True": "brought back the project"}),
    "wallet": ("state", {"frozen": "froze the wallet", "open": "unfroze the wallet"}),
}


def _named(event: AuditEvent, *, for_operator: bool) -> str:
    """Return the object's name, with a link where it has a page."""
    if event.action == "sign_in.succeeded" or event.target_type == "ledgertransfer":
        return ""
    href = _page_of(event) if for_operator else ""
    name = _name_of(event)
    return format_html('<a href="{}">{}</a>', href, name) if href else format_html("<strong>{}</strong>", name)


def _name_of(event: AuditEvent) -> str:
    """Return the object's name as of then, without the tenant's, which stands elsewhere in the line."""
    before, after = _AROUND.get(event.target_type, ("", ""))
    name = event.target or event.target_id
    if before and before in name:
        name = name.rpartition(before)[2]
    return _shortened(name.partition(after)[0] if after else name)


_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}([0-9a-f]{8})\b")


def _shortened(text: str) -> str:
    """Return the text with the ids in it as pages show them."""
    return _ID.sub(r"…\1", text)


_AROUND = {  # what stands before and after the name in a row's text
    "membership": ("", " in "),
    "invitation": ("", " → "),
    "signinlink": ("", " until "),
    "project": (" · ", ""),
    "wallet": (" · ", ""),
    "subscription": (": ", ""),
}


def _page_of(event: AuditEvent) -> str:
    """Return where an operator finds the object; empty where it has no page."""
    slug = event.tenant.slug if event.tenant is not None else ""
    if event.target_type == "tenant" and slug:
        return reverse("operate-tenant", args=[slug])
    if (tab := _TABS.get(event.target_type)) and slug:
        return reverse(f"operate-tenant-{tab}", args=[slug])
    name, by_id = _PAGES.get(event.target_type, ("", False))
    try:
        return reverse(name, args=[event.target_id] if by_id else []) if name else ""
    except NoReverseMatch:
        return ""


def _actor_page(event: AuditEvent) -> str:
    if event.user_id is not None:
        return reverse("operate-person", args=[event.user_id])
    if event.api_key_id is not None and event.tenant is not None:
        return reverse("operate-tenant-keys", args=[event.tenant.slug])
    return ""


def _told(changes: Sequence[Change]) -> SafeString:
    """Return the changes a line each; past the first few they are folded."""

    def lines(some: Sequence[Change]) -> SafeString:
        return format_html_join("", "<li>{}</li>", ((str(one),) for one in some))

    if not changes:
        return SafeString("")
    first = format_html('<ul class="changes">{}</ul>', lines(changes[:SHOWN_FIELDS]))
    if len(changes) <= SHOWN_FIELDS:
        return first
    rest = changes[SHOWN_FIELDS:]
    html = '<div>{}<details class="twin"><summary>{} more</summary><ul class="changes">{}</ul></details></div>'
    return format_html(html, first, len(rest), lines(rest))


def changes_of(event: AuditEvent, names: dict[tuple[type[Model], str], str] | None = None) -> list[Change]:
    """Return what changed, in words. `names` are those of the rows that ids lead to."""
    word = event.action.partition(".")[0]
    if event.action == "prices.published":
        return _prices(event)
    found = []
    fields = event.after or event.before
    for name, value in fields.items():
        if name == "grant" or (name == "is_active" and phrase_of(event) in _SAID.get(word, ("", {}))[1].values()):
            continue
        field = _field(word, name)
        old = _in_words(name, event.before[name], field, names or {}) if name in event.before and event.after else ""
        new = _in_words(name, value, field, names or {})
        if event.action.endswith(".created") and (new in ("none", "no", _name_of(event)) or name in _AS_ALWAYS):
            continue
        found.append(Change(capitalised(_LABELS.get(name) or _label(name, field)), old, new))
    return found


def _prices(event: AuditEvent) -> list[Change]:
    """Return the prices of each class of tokens that changed, before and after."""
    found = []
    for name, value in event.after.items():
        if event.before.get(name) == value:
            continue
        old = _price(name, event.before[name]).removesuffix(_UNIT) if name in event.before else ""
        found.append(Change(capitalised(_class_of(name)), old, _price(name, value)))
    return found


def _class_of(name: str) -> str:
    """Return which tokens a price is of; a version says other things beside its prices."""
    rate = _RATE.fullmatch(name)
    if rate is None:
        return _LABELS.get(name, name)
    least = int(rate["least"])
    return rate["cls"].replace("_", " ") + (f" from {grouped(least)} tokens on" if least else "")


def _price(name: str, value: Any) -> str:
    """Return a price in credits, which events of former releases have in µcr."""
    if _RATE.fullmatch(name) is None and (name != "request_fee" or isinstance(value, int)):
        return _in_words(name, value, None, {})
    shown = format_credits(value, separator=",") if isinstance(value, int) else str(value)
    return shown + (_UNIT if _RATE.fullmatch(name) else " credits")


def _field(word: str, name: str) -> Field[Any, Any] | None:
    tracked = _TRACKED.get(word)
    if tracked is None:
        return None
    try:
        field = tracked.model._meta.get_field(name)
    except FieldDoesNotExist:
        return None
    return field if isinstance(field, Field) else None


def _label(name: str, field: Field[Any, Any] | None) -> str:
    return str(field.verbose_name) if field is not None else name.replace("_", " ")


def _in_words(name: str, value: Any, field: Field[Any, Any] | None, names: dict[tuple[type[Model], str], str]) -> str:
    """Return a value as people read it."""
    related = field.related_model if field is not None else None
    if value in (None, "", [], {}):
        return "none"
    if isinstance(value, bool):
        said = "yes" if value else "no"
    elif isinstance(value, int):
        said = _number(name, value)
    elif related is not None and not isinstance(related, str):
        said = names.get((related, str(value)), f"…{str(value)[-8:]}")
    elif isinstance(value, list):
        said = ", ".join(map(str, value))
    elif isinstance(value, dict):
        said = ", ".join(f"{key}: {one}" for key, one in value.items())
    elif field is not None and field.choices:
        said = str(dict(field.flatchoices).get(value, value))
    else:
        said = _moment(str(value)) or str(value)
    return _shortened(said)


def _number(name: str, value: int) -> str:
    if name in _IN_CREDITS:
        return f"{format_credits(value, separator=',')} credits"
    if name.endswith("_bp"):
        return f"× {value / 10_000:g}"
    if name.endswith("_s"):
        return f"{grouped(value)} s"
    return grouped(value)


def _moment(text: str) -> str:
    """Return a moment of UTC as people read it; empty where the text is none."""
    try:
        at = parse_datetime(text) if "T" in text else None
    except ValueError:
        return ""
    return "" if at is None else f"{at.astimezone(UTC):%-d %b %Y, %H:%M} UTC"


def _names_of(events: Sequence[AuditEvent]) -> dict[tuple[type[Model], str], str]:
    """Return the names of the rows that ids among the changes lead to: one query for each model."""
    wanted: dict[type[Model], set[str]] = defaultdict(set)
    for event in events:
        word = event.action.partition(".")[0]
        for values in (event.before, event.after):
            for name, value in values.items():
                field = _field(word, name)
                related = field.related_model if field is not None else None
                if related is not None and not isinstance(related, str) and value:
                    wanted[related].add(str(value))
    found: dict[tuple[type[Model], str], str] = {}
    for model, ids in wanted.items():
        rows = model._base_manager.select_related("plan") if model is PlanVersion else model._base_manager.all()  # noqa: SLF001
        try:
            chosen = list(rows.filter(pk__in=ids))
        except (ValidationError, ValueError):  # an id of another kind than the model has by now
            continue
        found |= {(model, str(row.pk)): getattr(row, "name", "") or str(row) for row in chosen}
    return found
