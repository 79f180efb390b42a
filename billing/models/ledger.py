"""Wallets and the double-entry ledger under them."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from base.ids import uuid7
from base.units import format_credits
from billing.codes import Code


class Wallet(models.Model):
    """A tenant's credit. `posted` is the sum of its transfers, `held` the sum of its open holds.

    Available credit is posted − held + overdraft_limit, less what is free of the pools that a request's model isn't in;
    a hold never takes more. `version` counts changes. Nothing is booked before `closed_until` any more, and up to
    `sealed_until` all is sealed.
    """

    class State(models.TextChoices):
        OPEN = "open"
        FROZEN = "frozen"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey("gateway.Tenant", on_delete=models.PROTECT, related_name="wallets")
    name = models.CharField(max_length=40, default="main")
    posted = models.BigIntegerField(default=0)
    held = models.BigIntegerField(default=0)
    overdraft_limit = models.BigIntegerField(default=0)
    version = models.BigIntegerField(default=0)
    next_grant_change_at = models.DateTimeField(null=True, blank=True)
    windows = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Windows of budgets used of late: name to [spent, held, limit, hard] as JSON.",
    )
    pools = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="What is left of restricted grants: models to [rest, held] as JSON.",
    )
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    closed_until = models.DateTimeField(null=True, blank=True)
    sealed_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="wallet_once_per_tenant_and_name"),
            models.CheckConstraint(condition=Q(held__gte=0), name="wallet_held_not_negative"),
            models.CheckConstraint(condition=Q(overdraft_limit__gte=0), name="wallet_overdraft_limit_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} · {self.name}"


class LedgerAccount(models.Model):
    """An account of the double-entry ledger: a wallet's own, or one of the operator's (one of each kind)."""

    class Kind(models.TextChoices):
        WALLET = "wallet"
        ISSUANCE_PAID = "issuance_paid"
        ISSUANCE_PROMO = "issuance_promo"
        ISSUANCE_PLAN = "issuance_plan"
        ISSUANCE_GOODWILL = "issuance_goodwill"
        ROLLOVER = "rollover"
        USAGE = "usage"
        BREAKAGE = "breakage"
        ADJUSTMENT = "adjustment"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=20, choices=Kind)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, null=True, blank=True, related_name="accounts")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "wallet"], name="ledger_account_once_per_wallet"),
            models.UniqueConstraint(fields=["kind"], condition=Q(wallet=None), name="ledger_account_once_per_kind"),
            models.CheckConstraint(
                condition=(Q(kind="wallet") & ~Q(wallet=None)) | (~Q(kind="wallet") & Q(wallet=None)),
                name="ledger_account_wallet_iff_kind",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.wallet}" if self.wallet_id else self.kind


class CreditGrant(models.Model):
    """Credit given to a wallet, all at once. Grants are burnt down in the order of priority, expiry, kind (what
    rolled over first, paid last), age; those that are restricted to a request's model before the others.

    Of what is left at its end, up to `rollover` becomes a grant of kind rollover that ends at `rollover_until`; the
    writer lowers `rollover` by what it has rolled over.
    """

    class Kind(models.TextChoices):
        PROMOTIONAL = "promotional"
        GOODWILL = "goodwill"
        PLAN = "plan"
        PAID = "paid"
        ROLLOVER = "rollover"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="grants")
    kind = models.CharField(max_length=12, choices=Kind)
    amount = models.BigIntegerField(help_text="µcr, above zero.")
    remaining = models.BigIntegerField()
    priority = models.SmallIntegerField(default=50, help_text="0 is burnt first, 100 last.")
    effective_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True, help_text="When its rest went to breakage.")
    voided_at = models.DateTimeField(null=True, blank=True)
    source = models.CharField(max_length=200, blank=True)
    restriction = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="Names of the models that it pays for, a line each; empty: all.",
    )
    rollover = models.BigIntegerField(null=True, blank=True, help_text="µcr that its end may still roll over.")
    rollover_until = models.DateTimeField(null=True, blank=True)
    paid_amount = models.BigIntegerField(null=True, blank=True, help_text="In the currency's minor units.")
    currency = models.CharField(max_length=3, blank=True)
    paid_reference = models.CharField(max_length=200, blank=True, db_default="")
    refunded_amount = models.BigIntegerField(
        null=True, blank=True, help_text="Money paid back for what was left of it, in minor units."
    )
    refund_reference = models.CharField(max_length=200, blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="credit_grant_amount_positive"),
            models.CheckConstraint(
                condition=Q(refunded_amount=None)
                | (Q(refunded_amount__gte=0) & Q(paid_amount__gte=F("refunded_amount"))),
                name="credit_grant_refund_in_paid",
            ),
            models.CheckConstraint(
                condition=Q(remaining__gte=0) & Q(remaining__lte=F("amount")), name="credit_grant_remaining_in_amount"
            ),
        ]
        indexes = [
            models.Index(
                fields=["wallet", "priority", "expires_at"],
                condition=Q(remaining__gt=0),
                name="credit_grant_burn_order",
            ),
            models.Index(fields=["created_at"], name="credit_grant_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} grant {self.id}"


class ScheduledGrant(models.Model):
    """Credit that a wallet gets at `begins_at`: until then it is nobody's and stands in no account.

    The writer makes the grant of the same id of it, with its transfer, before anything that it decides from then on, so
    that no request finds a moment between two grants.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="scheduled_grants")
    kind = models.CharField(max_length=12, choices=CreditGrant.Kind)
    amount = models.BigIntegerField(help_text="µcr, above zero.")
    priority = models.SmallIntegerField(default=50, help_text="0 is burnt first, 100 last.")
    begins_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    source = models.CharField(max_length=120, help_text="Also the key of its transfer.")
    restriction = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="Names of the models that it pays for, a line each; empty: all.",
    )
    reason = models.CharField(max_length=200, blank=True)
    actor = models.CharField(max_length=120, blank=True, db_default="sluice", help_text="Who scheduled it.")
    rollover = models.BigIntegerField(null=True, blank=True)
    rollover_until = models.DateTimeField(null=True, blank=True)
    paid_amount = models.BigIntegerField(null=True, blank=True, help_text="In the currency's minor units.")
    currency = models.CharField(max_length=3, blank=True, db_default="")
    paid_reference = models.CharField(max_length=200, blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="scheduled_grant_amount_positive"),
            models.CheckConstraint(
                condition=Q(expires_at=None) | Q(expires_at__gt=F("begins_at")), name="scheduled_grant_ends_later"
            ),
            models.UniqueConstraint(fields=["wallet", "source"], name="scheduled_grant_once"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} grant from {self.begins_at:%Y-%m-%d %H:%M}"


class RecurringGrant(models.Model):
    """Credit that a wallet gets at the beginning of each `window`, counted from `anchor` in `time_zone`, until `until`.

    `next_at` is the beginning of the window that was scheduled last. Each grant lasts for `windows` windows; up to
    `rollover` of what is left of it then lasts for one more.
    """

    class Window(models.TextChoices):
        DAY = "day"
        WEEK = "week"
        MONTH = "month"

    class State(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        ENDED = "ended"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="recurring_grants")
    key = models.CharField(max_length=120, help_text="Of the form or call that made it, once.")
    kind = models.CharField(max_length=12, choices=CreditGrant.Kind)
    amount = models.BigIntegerField(help_text="µcr, above zero.")
    priority = models.SmallIntegerField(default=50, help_text="0 is burnt first, 100 last.")
    window = models.CharField(max_length=5, choices=Window)
    anchor = models.DateTimeField()
    time_zone = models.CharField(max_length=60, default="UTC")
    until = models.DateTimeField(null=True, blank=True, help_text="No window that begins then or later has a grant.")
    windows = models.PositiveSmallIntegerField(default=1, help_text="How many windows each grant lasts for.")
    rollover = models.BigIntegerField(null=True, blank=True, help_text="µcr, above zero.")
    state = models.CharField(max_length=6, choices=State, default=State.ACTIVE)
    next_at = models.DateTimeField(db_index=True)
    reason = models.CharField(max_length=200)
    made_by = models.CharField(max_length=120, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0) & Q(windows__gt=0), name="recurring_grant_above_zero"),
            models.UniqueConstraint(fields=["wallet", "key"], name="recurring_grant_once_per_key"),
        ]

    def __str__(self) -> str:
        return f"{format_credits(self.amount, separator=',')} credits a {self.window}"


class Invoice(models.Model):
    """What a wallet was overdrawn by at the end of a month of a plan whose overage is invoiced, under a number without
    gaps over all wallets. `grant` is that of its payment.
    """

    class State(models.TextChoices):
        OPEN = "open"
        PAID = "paid"
        VOID = "void"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="invoices")
    number = models.PositiveIntegerField(unique=True)
    ends_at = models.DateTimeField(help_text="The end of the month.")
    amount = models.BigIntegerField(help_text="µcr, above zero.")
    state = models.CharField(max_length=4, choices=State, default=State.OPEN)
    grant = models.OneToOneField(CreditGrant, on_delete=models.PROTECT, null=True, blank=True, related_name="invoice")
    closed_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=200, blank=True, help_text="Why it was voided.")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="invoice_amount_positive"),
            models.UniqueConstraint(fields=["wallet", "ends_at"], name="invoice_once_per_month"),
        ]

    def __str__(self) -> str:
        return f"Invoice {self.number}"


class LedgerTransfer(models.Model):
    """One movement of credit from one account to another: both sides in one row; a trigger refuses changes.

    A wallet's transfer names the grant it draws from or fills; a debit of a wallet without a grant is overdraft.
    """

    Code = Code

    id = models.BigAutoField(primary_key=True)
    debit = models.ForeignKey(
        LedgerAccount, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    credit = models.ForeignKey(
        LedgerAccount, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    amount = models.BigIntegerField(help_text="µcr, above zero.")
    code = models.SmallIntegerField(choices=Code)
    request = models.UUIDField(null=True, blank=True)
    order = models.SmallIntegerField(default=0)
    key = models.CharField(max_length=120, null=True, blank=True)
    grant = models.ForeignKey(
        CreditGrant,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    booked_at = models.DateTimeField(db_default=Now())
    effective_at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=120, blank=True)
    reason = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="ledger_transfer_amount_positive"),
            models.CheckConstraint(condition=~Q(debit=F("credit")), name="ledger_transfer_two_accounts"),
            models.UniqueConstraint(fields=["request", "code", "order"], name="ledger_transfer_once_per_request"),
            # Partial, not `unique=True`: charges have no key, and an index entry for each would cost time.
            models.UniqueConstraint(
                fields=["key"], condition=Q(key__isnull=False), name="ledger_transfer_once_per_key"
            ),
        ]
        indexes = [
            models.Index(fields=["debit", "booked_at"], name="ledger_transfer_debit_booked"),
            models.Index(fields=["credit", "booked_at"], name="ledger_transfer_credit_booked"),
            # Charges are nearly all: whoever looks for anything else would read them all.
            models.Index(fields=["code", "id"], condition=~Q(code=2), name="ledger_transfer_no_charges"),
        ]

    def __str__(self) -> str:
        return f"{self.get_code_display()}: {format_credits(self.amount, separator=',')} credits"
