"""Writes the audit trail's events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model

from billing.triggers import ERASED, TriggerSpec
from tenancy.audit import LEAST_AUDIT_DAYS, origin
from tenancy.models import AuditEvent, User

GUARD = TriggerSpec(
    "gateway.AuditEvent",
    "the audit trail is append-only",
    when=(
        (
            "DELETE",
            {
                "postgresql": f"OLD.at > now() - interval '{LEAST_AUDIT_DAYS} days'",
                "sqlite": f"OLD.at > datetime('now', '-{LEAST_AUDIT_DAYS} days')",
            },
        ),
    ),
    erasable=(
        ("actor", f"NEW.actor = '{ERASED}'"),
        ("target", f"NEW.target = '{ERASED}'"),
        ("before", "NEW.\"before\" = '{}'"),
        ("after", "NEW.\"after\" = '{}'"),
        ("address", "NEW.address = ''"),
    ),
)
"""Refused by the database: every change but the erasure of names, and the removal of an event of the last year."""
HIDDEN = "(not shown)"
LONGEST = 120
_SECRET = re.compile(r"key|token|secret|password|authorization", re.IGNORECASE)  # names in a deployment's options
_encode = DjangoJSONEncoder().default


def record(
    action: str,
    target: Model,
    *,
    tenant: UUID | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    user: User | None = None,
) -> AuditEvent:
    """Write an event: `action` on `target`, with the current origin, in the open transaction.

    `user` is who did it when nobody is signed in yet. `after` also has the reason that was given (`origin.because`).
    Values of `before` and `after` are kept as JSON shows them.
    """
    at = origin.current()
    who = user or at.user
    if reason := origin.reason_given():
        after = {**(after or {}), "reason": reason}
    event = AuditEvent(
        tenant_id=tenant,
        user=who,
        api_key=at.key,
        actor=(at.actor if user is None else user.email)[:254],
        action=action,
        target_type=target._meta.model_name or "",
        target_id=str(target.pk),
        target=str(target)[:254],
        before=_plain(before),
        after=_plain(after),
        address=at.address[:45],
        request=at.request_id,
    )
    event.save(force_insert=True)
    return event


def change_of(event: AuditEvent) -> str:
    """Return what changed, in one line: the new values, with the old ones of what was changed; cut at LONGEST."""
    if not event.after:
        return ""
    parts = []
    for name, value in event.after.items():
        old = f"{_short(event.before[name])} → " if name in event.before else ""
        parts.append(f"{name}: {old}{_short(value)}")
    line = "; ".join(parts)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    text = "–" if value in (None, "") else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values as JSON has them; what JSON doesn't know becomes text."""
    return {name: _value(value) for name, value in (values or {}).items()}


def _value(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [_value(one) for one in value]
    if isinstance(value, dict):
        return {str(name): HIDDEN if _SECRET.search(str(name)) else _value(one) for name, one in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return _encode(value)
