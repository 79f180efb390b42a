"""Two writers on one wallet: without the lock they overspend, so the test can see a race; with it they never do."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection

from billing.models import Wallet
from billing.writer import open_writer
from billing.writer.operations import Held, Refused
from billing.writer.postgresql import driver
from billing.writer.postgresql.statements import STATEMENTS
from tests.billing.writer.world import make_budget, make_wallet, of_budgets, patient, reserve

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
]


def reserve_twice_at_once(wallet, *bearing, meet_s=0.05):
    """Let two writers reserve 80 of 100; each decides after the other has read, if nothing forbids it.

    A writer waits `meet_s` for the other: where that is locked out, less than what it waits for the lock.
    """
    deciding = []

    async def both():
        together = asyncio.Event()

        class Meeting(driver.PostgreSQLDriver):
            async def _follow_up(self, *arguments):
                first = await super()._follow_up(*arguments)
                deciding.append(self)
                if len(deciding) == 2:
                    together.set()
                with_time = asyncio.wait_for(together.wait(), meet_s)
                await asyncio.gather(with_time, return_exceptions=True)
                return first

        writers = [open_writer(connection.settings_dict) for _ in range(2)]
        for writer in writers:
            writer._driver = Meeting(connection.settings_dict)
            patient(writer)
        try:
            made = [of_budgets(reserve(wallet, 80), *bearing) for _ in writers]
            return await asyncio.gather(*(writer.submit(one) for writer, one in zip(writers, made, strict=True)))
        finally:
            for writer in writers:
                await writer.close()

    return sorted(type(answer).__name__ for answer in asyncio.run(both()))


def test_two_writers_overspend_without_the_lock(monkeypatch):
    wallet = make_wallet(credit=100)
    for name in ("lock_wallets", "lock_wallets_skipping"):
        without = STATEMENTS[name].split(" FOR NO KEY UPDATE")[0]
        monkeypatch.setitem(STATEMENTS, name, without)
    assert reserve_twice_at_once(wallet, meet_s=60) == [Held.__name__, Held.__name__]
    assert Wallet.objects.get(pk=wallet.pk).held == 160


@pytest.mark.parametrize("is_locked", [False, True])
def test_two_writers_overspend_a_budget_only_without_the_lock(monkeypatch, is_locked):
    """The wallet has plenty; its lock is what makes the budget exact."""
    wallet = make_wallet(credit=1000)
    budget = make_budget(wallet, 100)
    if not is_locked:
        for name in ("lock_wallets", "lock_wallets_skipping"):
            monkeypatch.setitem(STATEMENTS, name, STATEMENTS[name].split(" FOR NO KEY UPDATE")[0])
    meet_s = 0.05 if is_locked else 60
    answers = reserve_twice_at_once(wallet, budget, meet_s=meet_s)
    assert answers == ([Held.__name__, Refused.__name__] if is_locked else [Held.__name__, Held.__name__])
    assert Wallet.objects.get(pk=wallet.pk).held == (80 if is_locked else 160)


def test_two_writers_never_overspend():
    wallet = make_wallet(credit=100)
    assert reserve_twice_at_once(wallet) == [Held.__name__, Refused.__name__]
    assert Wallet.objects.get(pk=wallet.pk).held == 80


def test_two_writers_share_a_wallet_exactly():
    wallet = make_wallet(credit=1000)

    async def both():
        writers = [open_writer(connection.settings_dict) for _ in range(2)]
        for writer in writers:
            patient(writer)
        try:
            return await asyncio.gather(*(writers[i % 2].submit(reserve(wallet, 7)) for i in range(200)))
        finally:
            for writer in writers:
                await writer.close()

    answers = asyncio.run(both())
    assert sum(isinstance(answer, Held) for answer in answers) == 142
    assert Wallet.objects.get(pk=wallet.pk).held == 142 * 7
