"""The statements of a flush, the same for both databases: name, the values that all rows share, and the rows.

A database's encoder turns these into parameters: the shared values first, then the rows' columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from base.ids import day_of, uuid7
from base.leases import LEASE
from billing.rating import CLASSES, FORMULA
from billing.writer.changes import Changes
from billing.writer.operations import Settle

Row = tuple[Any, ...]
Write = tuple[str, Row, list[Row]]

_encode = msgspec.json.Encoder().encode


def writes(changes: Changes) -> Iterator[Write]:
    """Yield (statement, what its rows share, rows) in the order of writing; statements without rows are left out."""
    for name, changed, shared, rows in _WRITES:
        if getattr(changes, changed) and (found := list(rows(changes))):
            yield name, shared(changes.now), found


def _holds(changes: Changes) -> Iterator[Row]:
    """Yield the new holds: id, wallet, tenant, project, key, budget, user, model, deployment, card, multiplier, owner,
    amount, and the facts as one JSON text.
    """
    for op, amount in changes.reserved:
        yield (
            op.request, op.wallet, op.tenant, op.project, op.api_key, op.budget, op.user, op.model, op.deployment,
            op.card_version, op.multiplier_bp, op.owner, amount, _json(dict(op.facts)),
        )  # fmt: skip


def _renewed(changes: Changes) -> Iterator[Row]:
    """Yield the renewed holds by id, each with its checkpoint as one JSON text."""
    for request in sorted(changes.renewed, key=lambda request: request.int):
        yield request, _json(dict(changes.renewed[request]))


def _repinned(changes: Changes) -> Iterator[Row]:
    """Yield what holds are pinned to now: deployment, card, model, the multiplier if it changes, the facts as one JSON
    text; then the hold.
    """
    for op in changes.repinned.values():
        yield op.deployment, op.card_version, op.model, op.multiplier_bp, _json(dict(op.facts)), op.request


def _usage_records(changes: Changes) -> Iterator[Row]:
    """Yield the new usage records: request, day, charge, exact, six classes, then how it ended and, where the hold
    doesn't say it, the route as JSON.
    """
    for closing in changes.closed:
        op, facts = closing.operation, closing.operation.facts
        classes = op.classes if isinstance(op, Settle) else {}
        yield (
            op.request, day_of(op.request), closing.charge, closing.exact,
            *(classes.get(name, 0) for name in CLASSES),
            bool(facts.get("waived")), _storable(facts.get("finish") or ""),
            facts.get("ttft_ms"), facts.get("duration_ms"),
            _json(facts["route"]) if "route" in facts else None,
        )  # fmt: skip


def _revisions(changes: Changes) -> Iterator[Row]:
    """Yield the next revisions: id, request, day, revision, charge, six classes, finish ("": unchanged)."""
    for correction in changes.corrections:
        op = correction.operation
        yield (
            uuid7(), op.request, day_of(op.request), correction.revision, op.charge,
            *(op.classes.get(name, 0) for name in CLASSES), _storable(op.finish),
        )  # fmt: skip


def _true_up_transfers(changes: Changes) -> Iterator[Row]:
    """Yield the transfers of true-ups: wallet, debit's kind, credit's kind, request, order, amount, grant."""
    for one in changes.true_up_transfers:
        yield one.wallet, *one.direction.value, one.request, one.order, one.amount, one.grant


def _begun(changes: Changes) -> Iterator[Row]:
    """Yield the scheduled grants that have begun: id, µcr of it that repay an overdraft."""
    for one in changes.begun:
        yield one.scheduled.id, one.repaid


def _expiries(changes: Changes) -> Iterator[Row]:
    """Yield the transfers to breakage: wallet, grant, amount, the grant's end."""
    for one in changes.expired.values():
        yield one.grant.wallet, one.grant.id, one.amount, one.grant.expires_at


def _budgets(changes: Changes) -> Iterator[Row]:
    """Yield what counts in the budgets: held, day, spent in it, month, spent in it, spent in all; then the budget."""
    for one in changes.budgets.values():
        yield one.held, one.day, one.day_spent, one.month, one.month_spent, one.total_spent, one.id


def _outbox_payload(changes: Changes) -> str:
    """Return the JSON of a ``usage`` event: requests with a first record, and [request, revision] of later ones."""
    payload: dict[str, Any] = {"records": [closing.operation.request for closing in changes.closed]}
    if changes.corrections:
        payload["revisions"] = [[one.operation.request, one.revision] for one in changes.corrections]
    return _json(payload)


def _json(value: object) -> str:
    """Return the JSON of `value`; see `_storable`, which hardly any needs."""
    with suppress(UnicodeEncodeError):
        text = _encode(value).decode()
        if "\\u0000" not in text:
            return text
    return _encode(_storable(value)).decode()


def _storable(value: Any) -> Any:
    """Return `value` with the characters replaced that not every database keeps: NUL and half a character.

    What a foreign server or a worker said of a failure stands in facts, and no such word may keep a hold open.
    """
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_storable(name): _storable(one) for name, one in value.items()}
    return [_storable(one) for one in value] if isinstance(value, list | tuple) else value


def _nothing(_: datetime) -> Row:
    return ()


def _now(now: datetime) -> Row:
    return (now,)


def _formula_and_now(now: datetime) -> Row:
    return FORMULA, now


def _lease_end(now: datetime) -> Row:
    return (now + LEASE,)


# The statements in their order: name, the part of Changes that they write, what their rows share, the rows.
_WRITES: tuple[tuple[str, str, Callable[[datetime], Row], Callable[[Changes], Iterable[Row]]], ...] = (
    ("insert_holds", "reserved", lambda now: (now, now + LEASE), _holds),
    ("begin_grants", "begun", _nothing, _begun),
    ("book_begun", "begun", _nothing, lambda c: ((one.scheduled.id,) for one in c.begun)),
    ("repay_overdrafts", "begun", _nothing, lambda c: (one for one in _begun(c) if one[1])),
    ("delete_scheduled", "begun", _nothing, lambda c: ((one.scheduled.id,) for one in c.begun)),
    ("extend_holds", "extended", _nothing, lambda c: ((amount, request) for request, amount in c.extended.items())),
    ("repin_holds", "repinned", _nothing, _repinned),
    ("renew_holds", "renewed", _lease_end, _renewed),
    ("move_wallets", "wallets", _nothing, lambda c: ((*deltas, wallet) for wallet, deltas in c.wallets.items())),
    ("count_budgets", "budgets", _nothing, _budgets),
    ("insert_usage", "closed", _formula_and_now, _usage_records),
    ("insert_transfers", "burns", _now, lambda c: ((b.wallet, b.request, b.order, b.amount, b.grant) for b in c.burns)),
    ("insert_revisions", "corrections", _formula_and_now, _revisions),
    ("insert_true_up_transfers", "true_up_transfers", _now, _true_up_transfers),
    ("insert_expiries", "expired", _nothing, _expiries),
    ("take_grants", "grants", _nothing, lambda c: ((taken, grant) for grant, taken in c.grants.items())),
    ("end_grants", "expired", _now, lambda c: ((e.grant.id,) for e in c.expired.values() if not e.grant.remaining)),
    ("note_grant_changes", "grant_changes", _nothing, lambda c: ((at, one) for one, at in c.grant_changes.items())),
    ("delete_holds", "closed", _nothing, lambda c: ((closing.operation.request,) for closing in c.closed)),
    ("insert_outbox", "has_usage_events", _nothing, lambda c: [(_outbox_payload(c),)]),
)
