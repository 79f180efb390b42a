"""Names in texts: found in any column of characters or JSON, and replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.db import transaction
from django.db.models import F, JSONField, Model, Q, QuerySet, TextField
from django.db.models.functions import Cast

from billing.models import (
    CostSample,
    CreditGrant,
    Invoice,
    LedgerTransfer,
    Plan,
    PlanMove,
    PlanVersion,
    Purchase,
    RateCard,
    RateCardVersion,
    Reconciliation,
    RecurringGrant,
    Rerating,
    ScheduledGrant,
    SpendBudget,
    VoucherBatch,
)
from billing.seals.leaves import keep_words
from billing.triggers import ERASED
from control.belongings.kinds import CHUNK, every, in_chunks
from gateway.runtime.models import TaskState
from routing.models import Deployment, Fetch, ModelAlias, Node, PublicModel, RouteRule
from tenancy.models import AdminAPIKey, Alert, APIKey, AuditEvent, Delivery, OutgoingMail, User

TEXTS: dict[type[Model], tuple[str, ...]] = {
    LogEntry: ("object_repr", "change_message"),
    OutgoingMail: ("subject", "error"),
    CreditGrant: ("source", "paid_reference", "refund_reference"),
    Purchase: ("made_by",),
    VoucherBatch: ("note", "made_by"),
    ScheduledGrant: ("actor", "reason", "paid_reference"),
    RecurringGrant: ("made_by", "reason"),
    Invoice: ("reason",),
    SpendBudget: ("name",),
    APIKey: ("name",),
    AdminAPIKey: ("name",),
    TaskState: ("error",),
    Alert: ("title", "text", "remedy"),
    Delivery: ("body", "error"),
    Fetch: ("source", "asked_by"),
    PlanMove: ("error", "asked_by"),
    Reconciliation: ("findings",),
    Rerating: ("asked_by", "reason"),
}
"""Texts that Sluice or an operator wrote of others, in rows that may change."""

WRITTEN: dict[type[Model], tuple[str, ...]] = {
    Plan: ("slug", "name"),
    PlanVersion: ("allowed_models",),
    RateCard: ("name",),
    RateCardVersion: ("note",),
    CostSample: ("name", "device"),
    PublicModel: ("name", "description"),
    ModelAlias: ("name", "target"),
    Node: ("name",),
    Deployment: ("name", "source"),
    RouteRule: ("name", "examples"),
}
"""What operators wrote for all tenants: it stays, and is told."""


_SAID = ("actor", "reason")


class Words:
    """Words that name a person or tenant: found whole, in any case unless they are `exact`.

    An address is none that ends or begins within a longer one. Names `beside` may be those of others as well: they are
    erased only from rows that have one of the words too.
    """

    def __init__(self, words: Collection[str], *, beside: Collection[str] = (), exact: bool = False) -> None:
        self._words = [word for word in dict.fromkeys(words) if word]
        case = re.NOFLAG if exact else re.IGNORECASE
        self._finds = _pattern(self._words, case)
        self._erases = _pattern([*self._words, *filter(None, beside)], case)

    def are_in(self, value: Any) -> bool:
        """Whether a text, or one in a value of JSON, has one of the words."""
        match value:
            case str():
                return self._finds.search(value) is not None
            case list():
                return any(self.are_in(one) for one in value)
            case dict():
                return any(self.are_in(one) for one in value.values())
        return False

    def erased_from(self, value: Any) -> Any:
        """Return a text or value of JSON with `ERASED` in place of the words and names; its keys stay."""
        match value:
            case str():
                return self._erases.sub(ERASED, value)
            case list():
                return [self.erased_from(one) for one in value]
            case dict():
                return {name: self.erased_from(one) for name, one in value.items()}
        return value

    def rows(self, rows: QuerySet[Any], fields: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of which one of the fields has a word."""
        if not self._words:
            return
        found, named = Q(), {}
        for field in fields:
            is_json = isinstance(rows.model._meta.get_field(field), JSONField)
            named[f"{field}_text"] = Cast(F(field), TextField())
            # SQLite has JSON as it was encoded: with escapes.
            spelt = {*self._words, *(json.dumps(word)[1:-1] for word in self._words if is_json)}
            for word in spelt:
                found |= Q(**{f"{field}_text__icontains": word})
        for some in in_chunks(rows.annotate(**named).filter(found)):
            yield from (row for row in some if any(self.are_in(getattr(row, field)) for field in fields))


def words_of(email: str, user: User | None) -> Words:
    """Return how a person is named; a name of one word may be anybody's, and is erased with the account alone."""
    return Words([email], beside=[user.name] if user is not None and " " in user.name else [])


def _pattern(words: Sequence[str], case: re.RegexFlag) -> re.Pattern[str]:
    """Return the pattern that finds any of the words as a whole; nothing where there are none."""
    whole = (
        # What may stand in an address goes on with it: a quote or full stop only between two letters.
        rf"(?<![\w+%-])(?<!\w[.']){re.escape(word)}(?![\w-]|\.\w)"
        if "@" in word
        else rf"(?<!\w){re.escape(word)}(?!\w)"
        for word in words
    )
    return re.compile("|".join(whole) or r"(?!)", case)


def erase_from_texts(words: Words, models: Collection[type[Model]] = tuple(TEXTS)) -> int:
    """Erase the words from the `TEXTS` of the models; return how many rows had them."""
    count = 0
    for model in models:
        fields = TEXTS[model]
        for row in words.rows(every(model), fields):
            changed = {name: words.erased_from(getattr(row, name)) for name in fields}
            count += every(model).filter(pk=row.pk).update(**changed)
    return count


def erase_from_books(words: Words, user: User | None, keys: Collection[UUID]) -> None:
    """Erase what the person and their keys are called from the audit trail, and from the ledger's actors and reasons.

    Transfers come last: by the address in one a rerun finds its event, whose reason may have the name alone.
    """
    transfers = LedgerTransfer.objects.exclude(code=LedgerTransfer.Code.CHARGE)
    theirs = [row.pk for row in words.rows(transfers, _SAID)]
    parts = [theirs[start : start + CHUNK] for start in range(0, len(theirs), CHUNK)]
    mine = {str(key) for key in keys} | ({str(user.pk)} if user is not None else set())
    by = Q(api_key__in=keys) | (Q(user=user) if user is not None else Q(pk__in=()))
    told = [Q(target_type="ledgertransfer", target_id__in=[str(pk) for pk in part]) for part in parts]
    tied = (in_chunks(every(AuditEvent).filter(about)) for about in (by | Q(target_id__in=mine), *told))
    named = words.rows(every(AuditEvent), ("actor", "target", "before", "after"))
    for event in chain(named, chain.from_iterable(chain.from_iterable(tied))):
        is_actor = event.api_key_id in keys or (user is not None and event.user_id == user.pk)
        _erase_from_event(words, event, is_actor=is_actor, is_target=event.target_id in mine)
    for part in parts:
        some = LedgerTransfer.objects.filter(pk__in=part)
        with transaction.atomic():
            keep_words(some)
            for row in some:
                said = {name: getattr(row, name) for name in _SAID}
                changed = {name: ERASED for name, text in said.items() if words.erased_from(text) != text}
                LedgerTransfer.objects.filter(pk=row.pk).update(**changed)


def _erase_from_event(words: Words, event: AuditEvent, *, is_actor: bool, is_target: bool) -> None:
    erased: dict[str, Any] = {}
    if is_actor or words.erased_from(event.actor) != event.actor:
        erased |= {"actor": ERASED, "address": ""}
    told = [event.target, event.before, event.after]
    if is_target or words.erased_from(told) != told:
        erased |= {"target": ERASED, "before": {}, "after": {}}
    unlike = Q(pk__in=())
    for name, value in erased.items():
        unlike |= ~Q(**{name: value})
    every(AuditEvent).filter(unlike, pk=event.pk).update(**erased)


def still_written(words: Words) -> list[str]:
    """Return the rows of operators' own words that name it, which only they can rename."""
    return [
        f"{model._meta.verbose_name} {row}"
        for model, fields in WRITTEN.items()
        for row in words.rows(every(model), fields)
    ]
