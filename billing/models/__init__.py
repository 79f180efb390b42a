"""The tables of credit. Amounts are integer micro-credits (µcr); ids are uuid7 unless said otherwise."""

from billing.models.archive import ArchivedFile, ArchivedMonth
from billing.models.budgets import Budget, BudgetWindow, SpendBudget
from billing.models.cards import CostSample, Rate, RateCard, RateCardVersion, prices_of
from billing.models.ledger import (
    CreditGrant,
    Invoice,
    LedgerAccount,
    LedgerTransfer,
    RecurringGrant,
    ScheduledGrant,
    Wallet,
)
from billing.models.payments import PaymentClaim, PaymentEvent, Purchase, Voucher, VoucherBatch, VoucherUse
from billing.models.plans import Plan, PlanMove, PlanVersion, Subscription
from billing.models.promises import MissedPromise, PromiseDay
from billing.models.reconciliation import CheckedSum, Reconciliation
from billing.models.reratings import Rerating, ReratingSum
from billing.models.seals import ErasedWords, LedgerSeal, SigningKey, Statement
from billing.models.usage import Hold, KeyTotal, OutboxEvent, UsageDay, UsageRecord, UsageRollup

__all__ = [
    "ArchivedFile",
    "ArchivedMonth",
    "Budget",
    "BudgetWindow",
    "CheckedSum",
    "CostSample",
    "CreditGrant",
    "ErasedWords",
    "Hold",
    "Invoice",
    "KeyTotal",
    "LedgerAccount",
    "LedgerSeal",
    "LedgerTransfer",
    "MissedPromise",
    "OutboxEvent",
    "PaymentClaim",
    "PaymentEvent",
    "Plan",
    "PlanMove",
    "PlanVersion",
    "PromiseDay",
    "Purchase",
    "Rate",
    "RateCard",
    "RateCardVersion",
    "Reconciliation",
    "RecurringGrant",
    "Rerating",
    "ReratingSum",
    "ScheduledGrant",
    "SigningKey",
    "SpendBudget",
    "Statement",
    "Subscription",
    "UsageDay",
    "UsageRecord",
    "UsageRollup",
    "Voucher",
    "VoucherBatch",
    "VoucherUse",
    "Wallet",
    "prices_of",
]
