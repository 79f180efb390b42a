"""The statements of a flush, the same for both databases: name, the values that all rows share, and the rows.

A database's encoder turns these into parameters: the shared values first, then the rows' columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from base.ids import day_of, uuid7
from base.leases import LEASE
from billing.codes import Code
from billing.rating import CLASSES, FORMULA
from billing.writer.changes import Changes, Transfer
from billing.writer.operations import Rerate, Settle, TrueUp

Row = tuple[Any, ...]
Write = tuple[str, Row, list[Row]]

_encode = msgspec.json.Encoder().encode


def writes(changes: Changes) -> Iterator[Write]:
    """Yield (statement, what its rows share, rows) in the order of writing; statements without rows are left out."""
    for name, changed, shared, rows in _WRITES:
        if getattr(changes, changed) and (found := list(rows(changes))):
            yield name, shared(changes), found


def _holds(changes: Changes) -> Iterator[Row]:
    """Yield the new holds: id, wallet, tenant, project, key, windows, user, model, deployment, card, multiplier, owner,
    amount, and the facts as one JSON text.
    """
    for op, amount, windows in changes.reserved:
        yield (
            op.request, op.wallet, op.tenant, op.project, op.api_key, windows, op.user, op.model, op.deployment,
            op.card_version, op.multiplier_bp, op.owner, amount, _json(op.facts),
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
        yield op.deployment, op.card_version, op.model, op.multiplier_bp, _json(op.facts), op.request


def _usage_records(changes: Changes) -> Iterator[Row]:
    """Yield the new usage records: request, day, charge, exact, six classes, then how it ended and, as JSON, the
    route where the hold doesn't say it, and how it did by its promise.
    """
    for closing in changes.closed:
        op, facts = closing.operation, closing.operation.facts
        classes = op.classes if isinstance(op, Settle) else {}
        yield (
            op.request, day_of(op.request), closing.charge, closing.exact,
            *(classes.get(name, 0) for name in CLASSES),
            facts.waived, _storable(facts.finish), facts.ttft_ms, facts.duration_ms,
            *(None if one is None else _json(one) for one in (facts.route, facts.promise)),
        )  # fmt: skip


def _revisions(changes: Changes) -> Iterator[Row]:
    """Yield the next revisions: id, request, day, revision, charge, refunded; then six classes, finish and exact of a
    true-up, and card, multiplier and run of a re-rating: what is None or "" stays.
    """
    for correction in changes.corrections:
        op = correction.operation
        found = [op.classes.get(name, 0) for name in CLASSES] if isinstance(op, TrueUp) else [None] * len(CLASSES)
        how = (_storable(op.finish), True) if isinstance(op, TrueUp) else ("", None)
        priced = (op.card_version, op.multiplier_bp, op.run) if isinstance(op, Rerate) else (None, None, None)
        yield (
            uuid7(), op.request, day_of(op.request), correction.revision, correction.charge, correction.refunded,
            *found, *how, *priced,
        )  # fmt: skip


def _transfers(changes: Changes) -> Iterator[Row]:
    """Yield the transfers other than charges': wallet, debit's kind, credit's kind, amount, code, request, order, key,
    grant, when it takes effect, actor, reason.
    """
    expiries = (
        Transfer(Code.EXPIRY, ended.wallet, "wallet", "breakage", amount, ended.id, ended.expires_at or changes.now)
        for ended, amount in changes.expired.values()
        if amount
    )
    for one in itertools.chain(changes.transfers, expiries):
        yield (
            one.wallet, one.debit, one.credit, one.amount, int(one.code), one.request, one.order, one.key, one.grant,
            one.effective_at, one.actor, one.reason,
        )  # fmt: skip


def _given(changes: Changes) -> Iterator[Row]:
    """Yield the new grants: id, wallet, kind, amount, priority, when it takes effect and ends, source, money paid,
    currency, reference, the models that it is restricted to, what may roll over and until when.
    """
    for one in changes.given:
        row = one.row
        yield (
            row.id, row.wallet, row.kind, row.amount, row.priority, row.effective_at, row.expires_at, one.source,
            one.paid_amount, one.currency, one.paid_reference, row.models, row.rollover, row.rollover_until,
        )  # fmt: skip


def _voided(changes: Changes) -> Iterator[Row]:
    """Yield the grants that end at another moment: that moment, when it was voided if nothing is left of it, id."""
    for one in changes.voided.values():
        yield one.expires_at, changes.now if one.is_voided else None, one.id


def _wallets(changes: Changes) -> Iterator[Row]:
    """Yield what is added to wallets' sums, and the windows and pools that they keep where these changed; then the
    wallet.
    """
    for wallet, deltas in changes.wallets.items():
        yield *deltas, changes.windows.get(wallet), changes.pools.get(wallet), wallet


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
    return _encode(_storable(msgspec.to_builtins(value))).decode()


def _storable(value: Any) -> Any:
    """Return `value` with the characters replaced that not every database keeps: NUL and half a character.

    What a foreign server or a worker said of a failure stands in facts, and no such word may keep a hold open.
    """
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_storable(name): _storable(one) for name, one in value.items()}
    return [_storable(one) for one in value] if isinstance(value, list | tuple) else value


def _nothing(_: Changes) -> Row:
    return ()


def _now(changes: Changes) -> Row:
    return (changes.now,)


def _booked(changes: Changes) -> Row:
    return (changes.booked_at,)


def _formula_and_booked(changes: Changes) -> Row:
    return FORMULA, changes.booked_at


def _now_and_lease_end(changes: Changes) -> Row:
    return changes.now, changes.now + LEASE


def _lease_end(changes: Changes) -> Row:
    return (changes.now + LEASE,)


# The statements in their order: name, the part of Changes that they write, what their rows share, the rows.
_WRITES: tuple[tuple[str, str, Callable[[Changes], Row], Callable[[Changes], Iterable[Row]]], ...] = (
    ("insert_holds", "reserved", _now_and_lease_end, _holds),
    ("insert_grants", "given", _nothing, _given),
    ("delete_scheduled", "begun", _nothing, lambda c: ((one,) for one in c.begun)),
    ("extend_holds", "extended", _nothing, lambda c: ((amount, request) for request, amount in c.extended.items())),
    ("repin_holds", "repinned", _nothing, _repinned),
    ("renew_holds", "renewed", _lease_end, _renewed),
    ("move_wallets", "wallets", _nothing, _wallets),
    ("put_windows", "put_away", _nothing, lambda c: c.put_away),
    ("insert_usage", "closed", _formula_and_booked, _usage_records),
    ("insert_transfers", "has_transfers", _booked, _transfers),
    (
        "insert_charges",
        "burns",
        _booked,
        lambda c: ((b.wallet, b.request, b.order, b.amount, b.grant) for b in c.burns),
    ),
    ("insert_revisions", "corrections", _formula_and_booked, _revisions),
    ("take_grants", "grants", _nothing, lambda c: ((taken, grant) for grant, taken in c.grants.items())),
    ("end_grants", "expired", _now, lambda c: ((ended.id,) for ended, _ in c.expired.values() if not ended.remaining)),
    ("roll_grants", "rolled", _nothing, lambda c: ((left, one) for one, left in c.rolled.items())),
    ("void_grants", "voided", _nothing, _voided),
    ("note_grant_changes", "grant_changes", _nothing, lambda c: ((at, one) for one, at in c.grant_changes.items())),
    ("delete_holds", "closed", _nothing, lambda c: ((closing.operation.request,) for closing in c.closed)),
    ("insert_outbox", "has_usage_events", _nothing, lambda c: [(_outbox_payload(c),)]),
)
