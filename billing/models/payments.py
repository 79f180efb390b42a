"""Money coming in: vouchers, and purchases at a payment provider. Money is in its currency's minor units."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from base.ids import uuid7
from base.units import format_credits, format_money
from billing.models.ledger import CreditGrant


class VoucherBatch(models.Model):
    """Vouchers made together, with the same terms: each code gives `amount` µcr to each of at most `uses` tenants."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    key = models.CharField(max_length=120, unique=True, help_text="Of the form or command that made it, once.")
    note = models.CharField(max_length=200, help_text="What it is for.")
    amount = models.BigIntegerField(help_text="µcr, above zero.")
    paid_amount = models.BigIntegerField(null=True, blank=True, help_text="Money paid for one use; null: promotional.")
    currency = models.CharField(max_length=3, blank=True)
    uses = models.PositiveIntegerField(default=1, help_text="How many tenants may redeem one code.")
    valid_until = models.DateTimeField(null=True, blank=True, help_text="Until when a code is redeemed.")
    credit_days = models.PositiveIntegerField(null=True, blank=True, help_text="Life of the credit; null: no end.")
    made_by = models.CharField(max_length=254, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="voucher_batch_amount_positive"),
            models.CheckConstraint(
                condition=Q(paid_amount=None, currency="") | (Q(paid_amount__gte=0) & ~Q(currency="")),
                name="voucher_batch_money_with_currency",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.note}: {format_credits(self.amount, separator=',')} credits"


class Voucher(models.Model):
    """One code of a batch, known by a keyed digest and its last four characters alone."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    batch = models.ForeignKey(VoucherBatch, on_delete=models.PROTECT, related_name="vouchers")
    digest = models.CharField(max_length=64, unique=True)
    last_four = models.CharField(max_length=4)
    used = models.PositiveIntegerField(default=0)
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"…{self.last_four}"


class VoucherUse(models.Model):
    """A tenant's redemption of a voucher, with the grant that it made."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    voucher = models.ForeignKey(Voucher, on_delete=models.PROTECT, related_name="redemptions")
    tenant = models.ForeignKey("gateway.Tenant", on_delete=models.PROTECT, related_name="+")
    grant = models.OneToOneField(CreditGrant, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["voucher", "tenant"], name="voucher_use_once_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.voucher} by {self.tenant}"


class Purchase(models.Model):
    """Credit that a tenant buys at a payment provider: `amount` µcr for `price`.

    It is paid once the provider says so of this very price. `taken` µcr went out again since money went back, and
    `lost` µcr should have but were spent by then.
    """

    class State(models.TextChoices):
        OPEN = "open"
        PENDING = "pending", "payment pending"
        FAILED = "failed"
        REFUSED = "refused", "paid otherwise than asked"
        PAID = "paid"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey("gateway.Tenant", on_delete=models.PROTECT, related_name="+")
    amount = models.BigIntegerField(help_text="µcr, above zero.")
    price = models.BigIntegerField(help_text="In the currency's minor units.")
    currency = models.CharField(max_length=3)
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    session = models.CharField(max_length=200, unique=True, null=True, blank=True)
    payment = models.CharField(max_length=200, unique=True, null=True, blank=True)
    taken = models.BigIntegerField(default=0)
    lost = models.BigIntegerField(default=0)
    moves = models.PositiveIntegerField(default=0, help_text="Changes of credit after it was paid, for their keys.")
    froze = models.BooleanField(default=False, help_text="A dispute about it froze the wallet, nobody else.")
    made_by = models.CharField(max_length=254, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0, price__gt=0), name="purchase_above_zero"),
            models.CheckConstraint(condition=Q(taken__gte=0, lost__gte=0), name="purchase_taken_not_negative"),
            models.CheckConstraint(condition=Q(amount__gte=F("taken") + F("lost")), name="purchase_taken_in_amount"),
        ]
        indexes = [models.Index(fields=["tenant", "created_at"], name="purchase_of_tenant")]

    def __str__(self) -> str:
        return f"{format_credits(self.amount, separator=',')} credits for {format_money(self.price, self.currency)}"


class PaymentClaim(models.Model):
    """Money of a payment that goes back or may: a refund, a dispute, or a charge with the sum refunded of it.

    Known by the payment, since events about it may come before the purchase knows its payment. The row of kind payment
    has the payment's own id and is locked by whatever is told of it.
    """

    class Kind(models.TextChoices):
        PAYMENT = "payment"
        CHARGE = "charge"
        REFUND = "refund"
        DISPUTE = "dispute"

    class State(models.IntegerChoices):
        """In their order: a later one is never replaced by an earlier one, in whatever order events come."""

        OPEN = 0
        BACK = 1, "went back"
        STAYS = 2, "stays"

    id = models.CharField(max_length=200, primary_key=True)
    payment = models.CharField(max_length=200, db_index=True)
    kind = models.CharField(max_length=10, choices=Kind)
    amount = models.BigIntegerField()
    state = models.SmallIntegerField(choices=State)
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.kind} {self.id}: {self.get_state_display()}"


class PaymentEvent(models.Model):
    """An event of the payment provider that was applied, in the transaction of its effect: none is applied twice."""

    id = models.CharField(max_length=200, primary_key=True)
    type = models.CharField(max_length=80)
    created_at = models.DateTimeField(db_default=Now(), db_index=True)

    def __str__(self) -> str:
        return f"{self.type} {self.id}"
