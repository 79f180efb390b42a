"""What both databases' encodings share: the columns of the rows that a flush inserts, in the statements' order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any
from uuid import UUID

from billing.ids import day_of, uuid7
from billing.rating import CLASSES
from billing.writer.operations import Operation, Release, Settle
from billing.writer.state import Changes, View


def hold_rows(changes: Changes) -> Iterator[tuple[Any, ...]]:
    """The new holds: id, wallet, tenant, project, key, user, model, deployment, card, multiplier, owner, amount, and
    the facts as one JSON text.
    """
    for op, amount in changes.reserved:
        yield (
            op.request, op.wallet, op.tenant, op.project, op.api_key, op.user, op.model, op.deployment,
            op.card_version, op.multiplier_bp, op.owner, amount, json.dumps(dict(op.facts)),
        )  # fmt: skip


def usage_rows(changes: Changes) -> Iterator[tuple[Any, ...]]:
    """The new usage records: request, day, charge, exact, six classes, then how it ended."""
    for closing in changes.closed:
        op, facts = closing.operation, closing.operation.facts
        classes = op.classes if isinstance(op, Settle) else {}
        yield (
            op.request, day_of(op.request), closing.charge, closing.exact,
            *(classes.get(name, 0) for name in CLASSES),
            bool(facts.get("waived")), facts.get("finish") or "", facts.get("ttft_ms"), facts.get("duration_ms"),
        )  # fmt: skip


def revision_rows(changes: Changes) -> Iterator[tuple[Any, ...]]:
    """The next revisions of usage records: id, request, day, revision, charge, six classes, finish ("" as before)."""
    for correction in changes.corrections:
        op = correction.operation
        yield (
            uuid7(), op.request, day_of(op.request), correction.revision, op.charge,
            *(op.classes.get(name, 0) for name in CLASSES), op.finish,
        )  # fmt: skip


def adjustment_rows(changes: Changes) -> Iterator[tuple[Any, ...]]:
    """The transfers of true-ups: wallet, debit's kind, credit's kind, request, order, amount, grant."""
    for one in changes.adjustments:
        yield one.wallet, *one.way.value, one.request, one.order, one.amount, one.grant


def outbox_payload(changes: Changes) -> str:
    """What a consumer of topic ``usage`` gets: requests with a first record, and [request, revision] of later ones."""
    told: dict[str, Any] = {"records": [str(closing.operation.request) for closing in changes.closed]}
    if changes.corrections:
        told["revisions"] = [[str(one.operation.request), one.revision] for one in changes.corrections]
    return json.dumps(told)


def closed_before(operations: Iterable[Operation], view: View) -> list[tuple[UUID, date]]:
    """Return (request, day) of what is to be closed and isn't open: its usage record says how it ended."""
    return [
        (op.request, day_of(op.request))
        for op in operations
        if isinstance(op, Settle | Release) and op.request not in view.holds
    ]
