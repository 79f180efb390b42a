"""The tables of credit. Amounts are integer micro-credits (µcr); ids are uuid7 unless said otherwise."""

from billing.models.budgets import Budget
from billing.models.cards import Rate, RateCard, RateCardVersion, prices_of
from billing.models.ledger import CreditGrant, LedgerAccount, LedgerTransfer, ScheduledGrant, Wallet
from billing.models.plans import Plan, PlanMove, PlanVersion, Subscription
from billing.models.reconciliation import Reconciliation
from billing.models.reratings import Rerating, ReratingSum
from billing.models.usage import Hold, OutboxEvent, UsageDay, UsageRecord, UsageRollup

__all__ = [
    "Budget",
    "CreditGrant",
    "Hold",
    "LedgerAccount",
    "LedgerTransfer",
    "OutboxEvent",
    "Plan",
    "PlanMove",
    "PlanVersion",
    "Rate",
    "RateCard",
    "RateCardVersion",
    "Reconciliation",
    "Rerating",
    "ReratingSum",
    "ScheduledGrant",
    "Subscription",
    "UsageDay",
    "UsageRecord",
    "UsageRollup",
    "Wallet",
    "prices_of",
]
