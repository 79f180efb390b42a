"""The tables of credit. Amounts are integer micro-credits (µcr); ids are uuid7 unless said otherwise."""

from billing.models.budgets import Budget, BudgetWindow, SpendBudget
from billing.models.cards import Rate, RateCard, RateCardVersion
from billing.models.ledger import CreditGrant, LedgerAccount, LedgerTransfer, ScheduledGrant, Wallet
from billing.models.plans import Plan, PlanMove, PlanVersion, Subscription
from billing.models.reconciliation import Reconciliation
from billing.models.usage import Hold, OutboxEvent, UsageDay, UsageRecord, UsageRollup

__all__ = [
    "Budget",
    "BudgetWindow",
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
    "ScheduledGrant",
    "SpendBudget",
    "Subscription",
    "UsageDay",
    "UsageRecord",
    "UsageRollup",
    "Wallet",
]
