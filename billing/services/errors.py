"""The errors of services of credit."""

from __future__ import annotations

from uuid import UUID

from base.units import format_credits


class CreditError(Exception):
    """A service of credit refused; nothing was changed."""


class WalletNotFoundError(CreditError):
    """There is no such wallet."""

    def __init__(self, wallet: object) -> None:
        super().__init__(f"no wallet {wallet}")
        self.wallet = wallet


class KeyReusedError(CreditError):
    """An idempotency key was used before for something else."""

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} was used before for another change")
        self.key = key


class InsufficientCreditError(CreditError):
    """The wallet has less free credit than should be taken."""

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(f"{format_credits(wanted)} credits wanted, {format_credits(available)} free")
        self.wanted = wanted
        self.available = available


class RefundError(CreditError):
    """A request was charged less than should be given back."""

    def __init__(self, wanted: int, left: int) -> None:
        super().__init__(f"amount: {format_credits(left)} credits are left of what the request was charged")
        self.wanted = wanted
        self.left = left


class RerateError(CreditError):
    """A re-rating can't be asked for like this; the message names the field."""


class CardError(CreditError):
    """A rate card's version would be wrong; the message names the field."""


class PlanError(CreditError):
    """A plan or subscription can't be changed like this; the message says why."""


class NotSubscribedError(PlanError):
    """The tenant has no active subscription."""

    def __init__(self, tenant: UUID) -> None:
        super().__init__(f"tenant {tenant} has no active subscription")
        self.tenant = tenant
