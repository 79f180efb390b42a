"""Names in texts: found in any column of characters or JSON, and replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.db.models import F, JSONField, Model, Q, QuerySet, TextField
from django.db.models.functions import Cast

from billing.models import (
    CreditGrant,
    LedgerTransfer,
    Plan,
    PlanVersion,
    RateCard,
    RateCardVersion,
    Reconciliation,
    ScheduledGrant,
)
from billing.triggers import ERASED
from control.belongings.kinds import every
from gateway.runtime.models import TaskState
from routing.models import Deployment, ModelAlias, Node, PublicModel, RouteRule
from tenancy.models import AdminAPIKey, APIKey, AuditEvent, OutgoingMail, User

TEXTS: dict[type[Model], tuple[str, ...]] = {
    LogEntry: ("object_repr", "change_message"),
    OutgoingMail: ("subject", "error"),
    CreditGrant: ("source", "refund_reference"),
    ScheduledGrant: ("reason",),
    APIKey: ("name",),
    AdminAPIKey: ("name",),
    TaskState: ("error",),
    Reconciliation: ("findings",),
}
"""Texts that Sluice or an operator wrote of others, in rows that may change."""

WRITTEN: dict[type[Model], tuple[str, ...]] = {
    Plan: ("slug", "name"),
    PlanVersion: ("allowed_models",),
    RateCard: ("name",),
    RateCardVersion: ("note",),
    PublicModel: ("name", "description"),
    ModelAlias: ("name", "target"),
    Node: ("name",),
    Deployment: ("name", "source"),
    RouteRule: ("name", "examples"),
}
"""What operators wrote for all tenants: it stays, and is told."""


class Words:
    """Words that name a person or tenant: they are found as whole words, in any case unless they are `exact`."""

    def __init__(self, words: Collection[str], *, exact: bool = False) -> None:
        self._words = [word for word in dict.fromkeys(words) if word]
        whole = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in self._words)
        self._pattern = re.compile(whole, re.NOFLAG if exact else re.IGNORECASE)

    def are_in(self, value: Any) -> bool:
        """Whether a text or a value of JSON has one of the words."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        return bool(self._words) and self._pattern.search(text) is not None

    def erased_from(self, value: Any) -> Any:
        """Return a text or value of JSON with `ERASED` in place of the words."""
        match value:
            case str():
                return self._pattern.sub(ERASED, value) if self._words else value
            case list():
                return [self.erased_from(one) for one in value]
            case dict():
                return {self.erased_from(name): self.erased_from(one) for name, one in value.items()}
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
        for row in rows.annotate(**named).filter(found).iterator(chunk_size=500):
            if any(self.are_in(getattr(row, field)) for field in fields):
                yield row


def erase_from_texts(words: Words, models: Collection[type[Model]] = tuple(TEXTS)) -> int:
    """Erase the words from the `TEXTS` of the models; return how many rows had them."""
    count = 0
    for model in models:
        fields = TEXTS[model]
        for row in words.rows(every(model), fields):
            changed = {name: words.erased_from(getattr(row, name)) for name in fields}
            count += every(model).filter(pk=row.pk).update(**changed)
    return count


def erase_from_ledger(words: Words, transfers: QuerySet[LedgerTransfer]) -> int:
    """Erase actors and reasons that have the words."""
    count = 0
    for row in words.rows(transfers, ("actor", "reason")):
        changed = {name: ERASED for name in ("actor", "reason") if words.are_in(getattr(row, name))}
        count += LedgerTransfer.objects.filter(pk=row.pk).update(**changed)
    return count


def erase_from_trail(words: Words, user: User | None, keys: Collection[UUID]) -> None:
    """Erase from the audit trail what the person and their keys are called: as who did it, and as to whom and how."""
    theirs = Q(api_key__in=keys) | Q(target_id__in=[str(key) for key in keys])
    if user is not None:
        theirs |= Q(user=user) | Q(target_id=str(user.pk))
    named = words.rows(every(AuditEvent), ("actor", "target", "before", "after"))
    for event in (*named, *every(AuditEvent).filter(theirs)):
        is_actor = (user is not None and event.user_id == user.pk) or event.api_key_id in keys
        is_target = event.target_id in {str(key) for key in keys} or (
            user is not None and event.target_id == str(user.pk)
        )
        erased: dict[str, Any] = {}
        if is_actor or words.are_in(event.actor):
            erased |= {"actor": ERASED, "address": ""}
        if is_target or any(words.are_in(value) for value in (event.target, event.before, event.after)):
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
