"""Run in the stack's home: `tenants` makes wallets whose grants end under load, `keep` changes the books beside that
until its input ends, `findings` reconciles. JSON out.
"""

from __future__ import annotations

import json
import logging
import os
import random
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def tenants(seconds: str) -> dict[str, dict[str, str]]:
    """Make two tenants whose credit is a row of grants, the last of which ends after `seconds`; return their keys.

    Their priorities go against their ends, so that what ends first isn't what is burnt first; each third one is for one
    model alone. Their plan promises what nobody can keep, so that most requests get a quarter of their price back.
    """
    from django.utils import timezone

    from billing.models import CreditGrant, Plan
    from billing.services import credits, plans, wallets
    from tenancy.models import Project, Tenant
    from tenancy.services.keys import create_key

    plan, is_new = Plan.objects.get_or_create(slug="penniless", defaults={"name": "Penniless"})
    if is_new:
        terms = {name: getattr(plans.latest_version("max"), name) for name in plans.TERMS}
        promise = {"promised_ttft_ms": 1, "promise_credit_bp": 2_500}
        plans.publish_version(plan, **{**terms, "monthly_credits": 0, **promise})
    made = {}
    for slug in ("ending-0", "ending-1"):
        tenant = Tenant.objects.create(slug=slug, name=slug)
        project = Project(tenant=tenant, name="Default")
        project.save(force_insert=True)
        wallet = wallets.open_wallet(tenant_id=tenant.id)
        plans.subscribe(tenant_id=tenant.id, plan_slug=plan.slug, at=timezone.now())
        count = 20
        for number in range(count):
            credits.grant(
                wallet_id=wallet.id,
                amount=60_000,
                kind=CreditGrant.Kind.PROMOTIONAL,
                key=f"{slug}:{number}",
                priority=10 + (7 * number) % 40,
                models=["fake-chat"] if number % 3 == 0 else [],
                expires_at=timezone.now() + timedelta(seconds=3 + float(seconds) * (number + 1) / count),
            )
        _, secret = create_key(tenant=tenant, project=project, name="faults")
        made[slug] = {"id": str(tenant.id), "key": secret}
    return made


BINDING = 60_000  # µcr of the budget that is raised again and again
MORE = 20_000
ROOM = 10**12


def keep(seed: str) -> dict[str, Any]:
    """Change the books beside the load, some acts a second, and return how many of each kind: requests are refunded, in
    whole and in part; all so far are rated anew, up and down again; budgets are raised, removed and made again. An act
    that a fault broke off is done again with the same key. A last re-rating is carried out once the input has ended.
    """
    from billing.models import Wallet

    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # the database goes away, again and again
    dice, done, wallets = random.Random(int(seed)), Counter(), []
    ours = Wallet.objects.filter(tenant__slug__startswith="stack-").order_by("tenant__slug")
    _insist("", lambda: bool(wallets.extend(ours)), Counter())
    acts = _acts(dice, wallets)
    while not select.select([sys.stdin], [], [], dice.uniform(0.2, 1.2))[0]:
        _insist(*next(acts), done)
    while select.select([sys.stdin], [], [], 0)[0] and sys.stdin.read(1):
        pass
    _insist("re-rated", _rerate(dice.choice((8_000, 12_000))), done)
    return dict(done)


def _insist(name: str, act: Callable[[], bool], done: Counter[str]) -> None:
    """Do an act until no fault breaks it off."""
    from django.db import Error, connection

    while True:
        try:
            done[name] += act()
        except Error:
            done["broken off and done again"] += 1
            connection.close()
            time.sleep(0.3)
        else:
            return


def _acts(dice: random.Random, wallets: list[Any]) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield the next act, for ever."""
    for number, wallet in enumerate(wallets):
        yield "budgets made", _budget(wallet.pk, "total", BINDING if number == 0 else ROOM)
        for window in ("day", "week", "month"):
            yield "budgets made", _budget(wallet.pk, window, ROOM)
    factor = 10_000
    for number in range(10**9):
        wallet = dice.choice(wallets)
        if number % 60 == 59:
            factor = 11_000 if factor == 10_000 else 10_000
            yield "re-rated", _rerate(factor)
        elif number % 9 == 4:
            yield "budgets raised", _raise(wallets[0].pk)
        elif number % 9 == 8:
            window = dice.choice(("day", "week", "month"))
            yield "budgets removed", _remove(wallet.pk, window)
            yield "budgets made", _budget(wallet.pk, window, ROOM)
        else:
            yield "refunded", _refund(number, dice.random(), dice.choice((None, 1, 2)))


def _budget(wallet: Any, window: str, amount: int) -> Callable[[], bool]:
    from billing.services import budgets

    def make() -> bool:
        try:
            budgets.make_budget(wallet=wallet, scope="tenant", window=window, amount=amount, thresholds=[80])
        except budgets.BudgetError:
            return False  # it was made before the connection broke
        return True

    return make


def _remove(wallet: Any, window: str) -> Callable[[], bool]:
    from billing.models import SpendBudget
    from billing.services import budgets

    def remove() -> bool:
        budgets.remove_budget(SpendBudget.objects.get(wallet=wallet, window=window))
        return True

    return remove


def _raise(wallet: Any) -> Callable[[], bool]:
    from billing.models import SpendBudget
    from billing.services import budgets

    def more() -> bool:
        mine = SpendBudget.objects.get(wallet=wallet, window="total")
        budgets.change_budget(mine, amount=(mine.amount or 0) + MORE)
        return True

    return more


def _refund(number: int, place: float, share: int | None) -> Callable[[], bool]:
    """Return the refund of a request that was charged, in whole or the half of its charge."""
    from billing.models import UsageRecord
    from billing.services import credits
    from billing.services.errors import KeyReusedError, RefundError

    found: list[UsageRecord] = []

    def refund() -> bool:
        if not found:
            charged = UsageRecord.objects.latest_revisions().filter(charge__gt=1).order_by("request")
            if not (count := charged.count()):
                return False
            found.append(charged[int(place * count)])
        one = found[0]
        amount = None if share is None else max(1, one.charge // (2 * share))
        try:
            credits.refund_request(request=one.request, key=f"torture {number}", actor="torture", reason="torture",
                                   amount=amount)  # fmt: skip
        except (RefundError, KeyReusedError):
            return False  # a re-rating left less of it
        return True

    return refund


def _rerate(factor: int) -> Callable[[], bool]:
    """Return the re-rating of all requests so far by a version of the chat model's list with so many basis points of
    its first rates, and back by the next. What is left of requests that hold credit is for the next time.
    """
    from django.utils import timezone

    from billing.models import RateCardVersion, Rerating
    from billing.services import cards, reratings
    from tenancy.models import Tenant
    from tests.stack.inside import RATES

    began: list[Rerating] = []
    # The clock of a re-rating leaves ten minutes for requests to settle: here none is older.
    reratings.clock = SimpleNamespace(now=lambda: timezone.now() + reratings.SETTLED)  # type: ignore[assignment]

    def rerate() -> bool:
        name = f"torture-{factor}"
        if not RateCardVersion.objects.filter(card__name=name, published_at__isnull=False).exists():
            cards.publish(name, {0: {sort: rate * factor // 10_000 for sort, rate in RATES["chat"].items()}})
        version = RateCardVersion.objects.get(card__name=name)
        if not began:
            with_room = Tenant.objects.filter(slug__startswith="stack-")
            some = list(with_room.values_list("pk", flat=True))
            since = timezone.now() - timedelta(days=1)
            terms = reratings.Terms(since=since, tenants=some, models=("fake-chat",), version=version)
            mine = Rerating.objects.filter(ended_at=None, commit=True).first()
            began.append(mine or reratings.ask(terms, commit=True, asked_by="torture", reason="torture"))
        while began[0].ended_at is None and reratings.step(began[0], 200):
            pass
        reratings.stop(began[0])
        return True

    return rerate


def _passed() -> list[str]:
    """Return the budgets beyond their limits by more than charges that their holds didn't cover."""
    from billing.models import SpendBudget, UsageRecord
    from billing.services import budgets

    told = []
    for one in budgets.standings(SpendBudget.objects.filter(removed_at=None)):
        mine = UsageRecord.objects.latest_revisions().filter(wallet=one.budget.wallet_id)
        beyond = sum(max(0, charge - held) for charge, held in mine.values_list("charge", "held"))
        if one.spent + one.held > (one.budget.amount or 0) + beyond:
            told.append(f"{one.budget}: {one.spent} spent, {one.held} held of {one.budget.amount}")
    return told


def findings() -> dict[str, object]:
    """Return what reconciliation finds, and how many grants ended with something left."""
    from django.db import connection

    from billing import reconcile
    from billing.models import CreditGrant, MissedPromise

    found = reconcile.check(connection)
    ended = CreditGrant.objects.filter(expired_at__isnull=False).count()
    told = [f"{one.check} {one.subject}: {one.detail}" for one in found]
    missed = MissedPromise.objects.filter(credited__gt=0).count()
    return {"findings": told, "ended": ended, "passed": _passed(), "missed": missed}


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()
print(json.dumps({"tenants": tenants, "keep": keep, "findings": findings}[sys.argv[1]](*sys.argv[2:])))
