"""Run in the stack's home: what the database says and what the engines' records say, as one JSON object.

Arguments, where there is more than this machine's worker: the paths of the workers' records as JSON, and a file with
what a foreign server says that it ran.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from django.conf import settings  # noqa: E402
from django.db.models import Sum  # noqa: E402
from django.utils import timezone  # noqa: E402

from billing.models import Hold, LedgerTransfer, UsageRecord, Wallet  # noqa: E402
from billing.rating import charge  # noqa: E402
from billing.selectors.prices import prices_at  # noqa: E402
from gateway.generation.attempts import MOST_ATTEMPTS, attempt_id  # noqa: E402
from inference.worker.record import ends_in  # noqa: E402


def engine_record(paths: list[str]) -> dict[str, dict[str, int]]:
    """Return the workers' own words: request → usage of its finish, empty for one that was only begun."""
    found: dict[str, dict[str, int]] = {}
    for path in paths:
        for request, end in ends_in(Path(path)).items():
            if end is not None or request not in found:
                found[request] = {} if end is None else end.usage.classes()
    return found


def whole_requests(engine: dict[str, dict[str, int]], requests: Iterable[UUID]) -> set[str]:
    """Put what was recorded of a request's later attempts (on other engines, under ids of their own) under its own id;
    return the requests that had some. The usage of the last attempt is the whole request's.
    """
    moved = set()
    for request in requests:
        for number in range(1, MOST_ATTEMPTS):
            ran = engine.pop(attempt_id(request, number), None)
            if ran is not None:
                engine[request.hex] = ran
                moved.add(request.hex)
    return moved


def foreign_record(path: str) -> dict[str, dict[str, int]]:
    """Return the foreign server's words in our classes of tokens."""
    served = json.loads(Path(path).read_text())
    return {UUID(request).hex: {"input": ran["prompt"], "output": ran["completion"]} for request, ran in served.items()}


def main() -> None:
    holds = Hold.objects.count()  # first: what is closed from now on has its record below
    paths = json.loads(sys.argv[1]) if len(sys.argv) > 1 else [f"{settings.SLUICE_HOME}/worker-local.record"]
    foreign = foreign_record(sys.argv[2]) if len(sys.argv) > 2 else {}
    engine = engine_record(paths)
    cards = {card.id: card for card in prices_at(timezone.now()).values()}
    records, recomputed = {}, 0
    latest = {row.request: row for row in UsageRecord.objects.order_by("revision")}
    moved = whole_requests(engine, latest) | whole_requests(foreign, latest)
    for request, row in latest.items():
        classes = {
            name: getattr(row, f"{name}_tokens")
            for name in ("input", "cache_read", "output", "reasoning")
            if getattr(row, f"{name}_tokens")
        }
        ran = engine.get(request.hex) or foreign.get(request.hex) or {}
        records[request.hex] = {
            "model": row.model,
            "classes": classes,
            "charge": row.charge,
            "engine_charge": charge(ran, cards[row.card_version], row.multiplier_bp),
            "exact": row.exact,
            "finish": row.finish,
            "waived": row.waived,
            "moved": request.hex in moved,
        }
        recomputed += charge(classes, cards[row.card_version], row.multiplier_bp)
    charges = LedgerTransfer.objects.filter(code__in=[2, 3])
    given_back = charges.filter(debit__kind="usage").aggregate(total=Sum("amount"))["total"] or 0
    answer = {
        "holds": holds,
        "wallets": {str(w.tenant_id): {"posted": w.posted, "held": w.held} for w in Wallet.objects.all()},
        "usage": records,
        "usage_sum": sum(record["charge"] for record in records.values()),
        "recomputed_sum": recomputed,
        "ledger_sum": sum(charges.values_list("amount", flat=True)) - 2 * given_back,
        "engine": engine,
        "foreign": foreign,
    }
    print(json.dumps(answer))


main()
