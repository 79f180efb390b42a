"""A small world for the writer: wallets with credit, operations with sensible defaults, and its invariants."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator

import msgspec
from django.db import connection

from base.ids import uuid7
from billing.models import CreditGrant, SpendBudget, Wallet
from billing.services import budgets, credits, wallets
from billing.writer import Writer, open_writer
from billing.writer.operations import Bearing, EndFacts, Extend, Release, Renew, Repin, RequestFacts, Reserve, Settle
from tenancy.models import Tenant

OWNER, DEPLOYMENT, CARD = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()


def make_wallet(credit: int = 0, overdraft: int = 0) -> Wallet:
    tenant = Tenant.objects.create(name="t", slug=uuid.uuid4().hex)
    wallet = wallets.open_wallet(tenant_id=tenant.pk)
    if overdraft:
        Wallet.objects.filter(pk=wallet.pk).update(overdraft_limit=overdraft)
    if credit:
        grant(wallet, credit)
    return Wallet.objects.get(pk=wallet.pk)


def make_budget(wallet: Wallet, amount: int, window: str = "total", **terms) -> SpendBudget:
    return budgets.make_budget(wallet=wallet.pk, amount=amount, window=window, **{"scope": "tenant", **terms})


def of_budgets(made: Reserve, *bearing: SpendBudget) -> Reserve:
    """The same hold, on which these budgets bear."""
    return msgspec.structs.replace(made, budgets=Bearing(tuple(map(budgets.terms_of, bearing))))


def counts(budget: SpendBudget) -> tuple[int, int]:
    """What is held and was spent in its window of now."""
    [standing] = budgets.standings([SpendBudget.objects.get(pk=budget.pk)])
    return standing.held, standing.spent


def grant(wallet: Wallet, amount: int, kind=CreditGrant.Kind.PAID, **options) -> CreditGrant:
    return credits.grant(wallet_id=wallet.pk, amount=amount, kind=kind, key=uuid.uuid4().hex, **options)


MODEL = 'a "m\\odel", {really}'


def reserve(
    wallet: Wallet, amount: int, least: int | None = None, request=None, owner=OWNER, *, model=MODEL, **facts
) -> Reserve:
    return Reserve(
        request=request or uuid7(), wallet=wallet.pk, amount=amount, least=amount if least is None else least,
        owner=owner, deployment=DEPLOYMENT, card_version=CARD, tenant=wallet.tenant_id, project=DEPLOYMENT,
        api_key=None, model=model, facts=RequestFacts(**facts),
    )  # fmt: skip


def extend(made: Reserve, amount: int, least: int = 0) -> Extend:
    return Extend(made.request, made.wallet, amount, least)


def repin(made: Reserve, amount: int, least: int = 0, **fields) -> Repin:
    """The hold moves to a deployment and card version that are made from `amount`, unless `fields` name them."""
    pinned = {
        "deployment": uuid.UUID(int=abs(amount)),
        "card_version": uuid.UUID(int=abs(amount) + 1),
        "model": 'else "\\where',
    }
    return Repin(made.request, made.wallet, amount, least, **(pinned | fields))


def settle(made: Reserve, charge: int, classes=None, **facts) -> Settle:
    return Settle(made.request, made.wallet, charge, classes or {"input": charge}, EndFacts(**facts))


def release(made: Reserve) -> Release:
    return Release(made.request, made.wallet, EndFacts("nothing_ran"))


def renew(*made: Reserve, owner=OWNER, **classes: int) -> Renew:
    return Renew(owner, {one.request: classes for one in made})


class Desk:
    """A writer with a loop of its own, asked from synchronous tests."""

    def __init__(self, runner: asyncio.Runner, writer: Writer) -> None:
        self.runner = runner
        self.writer = writer

    def ask(self, *operations):
        """Submit all of them in one turn of the loop and return the answers; exceptions are answers too."""

        async def together():
            return await asyncio.gather(*map(self.writer.submit, operations), return_exceptions=True)

        return self.runner.run(together())

    def ask_one(self, operation):
        answer = self.ask(operation)[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def until(condition) -> None:
    """Let the loop go on until the condition holds; the test's own time-out ends it otherwise."""
    while not condition():  # noqa: ASYNC110 - what is waited for is another task's state
        await asyncio.sleep(0.001)


def put_forward(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Let a loop's clock go on by so much at once: what was to happen meanwhile is due."""
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


def patient(writer: Writer) -> Writer:
    """A writer whose driver's limits no machine is too slow for."""
    real = writer._driver
    kind = type("Patient", (type(real),), {"max_age": 30.0, "reserve_timeout": 30.0})
    real.__class__ = kind
    return writer


@contextlib.contextmanager
def open_desk() -> Iterator[Desk]:
    with asyncio.Runner() as runner:
        desk = Desk(runner, patient(open_writer(connection.settings_dict)))
        try:
            yield desk
        finally:
            runner.run(desk.writer.close())
