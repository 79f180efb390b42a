"""The statements of a flush, the same for both databases: name, the values that all rows share, and the rows.

A database's encoder turns these into parameters: the shared values first, then the rows' columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import msgspec

from billing.ids import day_of, uuid7
from billing.rating import CLASSES, FORMULA
from billing.writer.changes import Changes
from billing.writer.operations import LEASE_SECONDS, Settle

Row = tuple[Any, ...]
Write = tuple[str, Row, list[Row]]

_encode = msgspec.json.Encoder().encode


def writes(changes: Changes) -> Iterator[Write]:
    """Yield (statement, what its rows share, rows) in the order of writing; statements without rows are left out."""
    for name, shared, rows in _writes(changes):
        if found := list(rows):
            yield name, shared, found


def _writes(changes: Changes) -> Iterator[tuple[str, Row, Iterable[Row]]]:
    now = changes.now
    lease = now + timedelta(seconds=LEASE_SECONDS)
    renewed = sorted(changes.renewed, key=lambda request: request.int)
    yield "insert_holds", (now, lease), _holds(changes)
    yield "extend_holds", (), ((amount, request) for request, amount in changes.extended.items())
    yield "repin_holds", (), _repinned(changes)
    yield "renew_holds", (lease,), ((request, _json(dict(changes.renewed[request]))) for request in renewed)
    yield "move_wallets", (), ((*deltas, wallet) for wallet, deltas in changes.wallets.items())
    yield "insert_usage", (FORMULA, now), _usage_records(changes)
    yield "insert_transfers", (now,), ((b.wallet, b.request, b.order, b.amount, b.grant) for b in changes.burns)
    yield "insert_revisions", (FORMULA, now), _revisions(changes)
    yield "insert_true_up_transfers", (now,), _true_up_transfers(changes)
    yield "insert_expiries", (), _expiries(changes)
    yield "take_grants", (), ((taken, grant) for grant, taken in changes.grants.items())
    yield "end_grants", (now,), ((one.grant.id,) for one in changes.expired.values() if not one.grant.remaining)
    yield "note_grant_changes", (), ((at, wallet) for wallet, at in changes.grant_changes.items())
    yield "delete_holds", (), ((closing.operation.request,) for closing in changes.closed)
    yield "insert_outbox", (), [(_outbox_payload(changes),)] if changes.has_usage_events else ()


def _holds(changes: Changes) -> Iterator[Row]:
    """Yield the new holds: id, wallet, tenant, project, key, user, model, deployment, card, multiplier, owner, amount,
    and the facts as one JSON text.
    """
    for op, amount in changes.reserved:
        yield (
            op.request, op.wallet, op.tenant, op.project, op.api_key, op.user, op.model, op.deployment,
            op.card_version, op.multiplier_bp, op.owner, amount, _json(dict(op.facts)),
        )  # fmt: skip


def _repinned(changes: Changes) -> Iterator[Row]:
    """Yield what holds are pinned to now: deployment, card, model, the facts as one JSON text; then the hold."""
    for op in changes.repinned.values():
        yield op.deployment, op.card_version, op.model, _json(dict(op.facts)), op.request


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
            bool(facts.get("waived")), facts.get("finish") or "", facts.get("ttft_ms"), facts.get("duration_ms"),
            _json(facts["route"]) if "route" in facts else None,
        )  # fmt: skip


def _revisions(changes: Changes) -> Iterator[Row]:
    """Yield the next revisions: id, request, day, revision, charge, six classes, finish ("": unchanged)."""
    for correction in changes.corrections:
        op = correction.operation
        yield (
            uuid7(), op.request, day_of(op.request), correction.revision, op.charge,
            *(op.classes.get(name, 0) for name in CLASSES), op.finish,
        )  # fmt: skip


def _true_up_transfers(changes: Changes) -> Iterator[Row]:
    """Yield the transfers of true-ups: wallet, debit's kind, credit's kind, request, order, amount, grant."""
    for one in changes.true_up_transfers:
        yield one.wallet, *one.direction.value, one.request, one.order, one.amount, one.grant


def _expiries(changes: Changes) -> Iterator[Row]:
    """Yield the transfers to breakage: wallet, grant, amount, the grant's end."""
    for one in changes.expired.values():
        yield one.grant.wallet, one.grant.id, one.amount, one.grant.expires_at


def _outbox_payload(changes: Changes) -> str:
    """Return the JSON of a ``usage`` event: requests with a first record, and [request, revision] of later ones."""
    payload: dict[str, Any] = {"records": [closing.operation.request for closing in changes.closed]}
    if changes.corrections:
        payload["revisions"] = [[one.operation.request, one.revision] for one in changes.corrections]
    return _json(payload)


def _json(value: object) -> str:
    return _encode(value).decode()
