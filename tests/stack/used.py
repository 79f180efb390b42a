"""An installation that has been used, made in a stack's home by `tests.stack.inside`, and everything that it holds."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import json
import os
import random
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.db import connection

from base.ids import uuid7
from base.sealing import unseal
from billing.models import CreditGrant, OutboxEvent, RateCardVersion, Wallet
from billing.rating import FORMULAS
from billing.services import cards, credits, plans
from billing.writer import open_writer
from billing.writer.operations import EndFacts, RequestFacts, Reserve, Settle
from operation.backup import service
from routing.models import Deployment
from routing.services.catalogue import add_model
from tenancy.models import OutgoingMail, User
from tenancy.services import keys, mail, tenants
from tests.parties import PASSWORD
from tests.stack.inside import manage

AT_ONCE = 256
OPEN = 5
RATES = {0: {"input": 1_000_000, "output": 4_000_000}}


def use(names: list[str], requests: int) -> dict[str, str]:
    """Make tenants of these names, and so many requests of all of them, of which the last `OPEN` still run; return a
    key of each tenant.
    """
    plans.ensure_default_plans()
    cards.publish("used", RATES)
    add_model(
        name="used-chat", kinds=["chat"], context_length=8192, rate_card="used", backend="openai",
        source="https://203.0.113.1/v1", options={"model": "m"},
    )  # fmt: skip
    secrets, wallets = {}, []
    for name in names:
        made = tenants.create_tenant(name=name, slug=name, owner_email=f"{name}@x.example", plan="max")
        key, secrets[name] = keys.create_key(tenant=made.tenant, project=made.project, name="é \\ \t \"'")
        credits.grant(
            wallet_id=made.wallet.id, amount=10**12, kind=CreditGrant.Kind.PAID, key=name, reason="r", actor="a"
        )
        wallets.append((made.wallet, key))
    User.objects.create_superuser("operator@x.example", PASSWORD, name="Ö")
    mail.queue_mail(to="somebody@x.example", subject="s", text="sealed text")
    version = RateCardVersion.objects.get(card__name="used").id
    asyncio.run(_ask(wallets, requests, Deployment.objects.get(name="used-chat").id, version))
    gone = OutboxEvent.objects.create(topic="usage", payload={"records": []})  # its number isn't given again
    gone.delete()
    return secrets


async def _ask(wallets: list[tuple[Wallet, Any]], requests: int, deployment: UUID, version: UUID) -> None:
    writer, prices = open_writer(connection.settings_dict), cards.resolved(RATES, 0)
    numbers, chance = itertools.count(), random.Random(7)

    async def ask() -> None:
        while (number := next(numbers)) < requests:
            wallet, key = wallets[number % len(wallets)]
            request, classes = uuid7(), {"input": chance.randint(1, 2000), "output": chance.randint(1, 500)}
            charge = FORMULAS[1](classes, prices, 10_000)
            made = Reserve(
                request=request, wallet=wallet.id, amount=charge, least=charge, owner=deployment, deployment=deployment,
                card_version=version, tenant=wallet.tenant_id, project=key.project_id, api_key=key.id,
                model="used-chat", facts=RequestFacts("chat.completions", "chat", {"reason": "ü \\N \"'"}),
            )  # fmt: skip
            await writer.submit(made)
            if number < requests - OPEN:
                await writer.submit(Settle(request, wallet.id, charge, classes, EndFacts("stop")))

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    await writer.close()


def contents() -> dict[str, list[Any]]:
    """Return how many rows each table has, and a digest of them whichever their order and database."""
    found = {}
    for model in apps.get_models(include_auto_created=True):
        fields = [field.attname for field in model._meta.concrete_fields]
        count = total = 0
        for row in model._base_manager.values_list(*fields).iterator(chunk_size=2000):
            plain = [bytes(one).hex() if isinstance(one, (bytes, memoryview)) else one for one in row]
            text = json.dumps(plain, sort_keys=True, default=str)
            total += int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])
            count += 1
        found[model._meta.db_table] = [count, total % 2**128]
    return found


def sums() -> dict[str, int]:
    """Return what the books come to."""
    with connection.cursor() as cursor:
        found = {}
        for name, statement in (
            ("usage", "SELECT sum(charge) FROM billing_usagerecord"),
            ("ledger", "SELECT sum(amount) FROM billing_ledgertransfer"),
            ("posted", "SELECT sum(posted) FROM billing_wallet"),
            ("held", "SELECT sum(held) FROM billing_wallet"),
            ("remaining", "SELECT sum(remaining) FROM billing_creditgrant"),
        ):
            cursor.execute(statement)
            found[name] = int(cursor.fetchone()[0])
    return found


def opened(secrets: dict[str, str]) -> list[Any]:
    """Return the tenants of these keys, whether the operator's password is right, and the mail's text."""
    names = [keys.find_key(secret).select_related("tenant").get().tenant.slug for secret in secrets.values()]
    operator = User.objects.get(email="operator@x.example")
    sealed = OutgoingMail.objects.get(to="somebody@x.example").sealed_text
    return [names, operator.check_password(PASSWORD), unseal(sealed)]


def numbered() -> list[int]:
    """Return the number that a new event gets, and the largest one of an older row."""
    last = max(OutboxEvent.objects.values_list("id", flat=True), default=0)
    return [OutboxEvent.objects.create(topic="usage", payload={"records": []}).id, last]


def run(killed_at: str, schema: str, *arguments: str) -> tuple[int, str, str]:
    """Run a command that is killed as it comes to a function, as `service` names it, and to the end for none. The
    tables of PostgreSQL are made by the script `schema`, if there is one, which is quicker than migrating.
    """
    *owners, name = killed_at.split(".")
    with pytest.MonkeyPatch.context() as patch:
        if name:
            place = functools.reduce(getattr, owners, service)
            patch.setattr(place, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        if schema:
            patch.setattr(service.from_sqlite, "call_command", lambda *_, **__: _make_tables(Path(schema).read_text()))
        return manage(*arguments)


def _make_tables(script: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(script)
