"""Purchases of credit at a payment provider, and what becomes of them: paid, refunded, disputed.

What is known of a purchase only grows: whether it was paid, and the claims about its payment. Each event adds what it
knows, and `_settle` brings the credit to where all that is known by then says that it is. So events may come in any
order, and the end is the same.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Sum

from billing.models import CreditGrant, PaymentClaim, PaymentEvent, Purchase, Wallet
from billing.services import credits, wallets

logger = logging.getLogger("sluice.payments")

ACTOR = "stripe"
EVENT_DAYS = 90
"""Days for which applied events are known, and claims about payments that are none of ours."""
_State, _Kind = Purchase.State, PaymentClaim.Kind
_RANK = {_State.OPEN: 0, _State.PENDING: 1, _State.FAILED: 2, _State.REFUSED: 3, _State.PAID: 4}


def begin(*, tenant_id: UUID, amount: int, price: int, currency: str, made_by: str) -> Purchase:
    """Note that a tenant is about to pay `price` for `amount` µcr: what is paid is compared with it."""
    wallets.open_wallet(tenant_id=tenant_id)
    return Purchase.objects.create(tenant_id=tenant_id, amount=amount, price=price, currency=currency, made_by=made_by)


def note_session(purchase: Purchase, session: str) -> None:
    """Note under which session the provider knows the purchase, unless an event has told that already."""
    Purchase.objects.filter(pk=purchase.pk, session=None).update(session=session)


def is_new(event: str, kind: str) -> bool:
    """Note the event, in the transaction that applies it; False where it was applied before.

    The same event at the same moment waits here for the end of the other's transaction.
    """
    _, is_first = PaymentEvent.objects.get_or_create(id=event, defaults={"type": kind})
    return is_first


def told_of_session(
    *, purchase_id: UUID, session: str, state: Purchase.State, payment: str | None, price: int | None, currency: str
) -> bool:
    """Take in what the provider says of a checkout's session; return whether there is such a purchase.

    Paid is paid only where price, currency and session are those of the purchase.
    """
    if payment and Purchase.objects.filter(pk=purchase_id).exists():
        _lock_payment(payment)
    row = _locked(purchase_id)
    if row is None:
        return False
    is_ours = row.session in (None, session)
    if state == _State.PAID and not (is_ours and (price, currency.upper()) == (row.price, row.currency)):
        logger.error("a payment is not what was asked", extra={"purchase": str(row.pk), "session": session})
        state = _State.REFUSED
    elif not is_ours:
        return False
    if _RANK[state] > _RANK[_State(row.state)]:
        row.state = state
    if is_ours:
        row.session = session
        row.payment = row.payment or payment or None
    _settle(row)
    return True


def told_of_claim(*, claim: str, payment: str, kind: PaymentClaim.Kind, amount: int, state: PaymentClaim.State) -> None:
    """Take in what the provider says of a refund, a dispute or a refunded charge of a payment.

    Of a charge the largest sum counts that was ever told; of the others the latest state by the order of states.
    """
    _lock_payment(payment)
    made, is_first = PaymentClaim.objects.get_or_create(
        id=claim, defaults={"payment": payment, "kind": kind, "amount": amount, "state": state}
    )
    if not is_first:
        made.state, made.amount = max(made.state, state), max(made.amount, amount)
        made.save(update_fields=["state", "amount"])
    known = Purchase.objects.filter(payment=payment).values_list("pk", flat=True).first()
    if known is not None and (purchase := _locked(known)) is not None:
        _settle(purchase)


def _lock_payment(payment: str) -> None:
    """Let nothing else take in what it is told of the payment until this transaction ends.

    A refund that comes beside the end of the checkout would otherwise find no purchase, and the checkout no refund.
    """
    kind, state = _Kind.PAYMENT, PaymentClaim.State.OPEN
    PaymentClaim.objects.get_or_create(
        id=payment, defaults={"payment": payment, "kind": kind, "amount": 0, "state": state}
    )
    PaymentClaim.objects.select_for_update(no_key=True).get(pk=payment)


def _locked(purchase_id: UUID) -> Purchase | None:
    """Lock the tenant's wallet, then the purchase, and return it as it is then; None where there is none."""
    tenant = Purchase.objects.filter(pk=purchase_id).values_list("tenant_id", flat=True).first()
    if tenant is None:
        return None
    wallets.lock(wallets.open_wallet(tenant_id=tenant).pk)
    return Purchase.objects.select_for_update(no_key=True).get(pk=purchase_id)


def _settle(row: Purchase) -> None:
    """Bring the purchase's credit, and the wallet's state, to where what is known of the locked purchase wants them."""
    if row.state == _State.PAID:
        if not row.moves:
            _give(row, row.amount, row.price, "Bought")
        due = _due(row)
        if row.taken < due:
            row.taken += _take(row, due - row.taken)
        elif back := row.taken - due:
            row.taken = due
            _give(row, back, row.price * back // row.amount, "Payment stays")
        row.lost = due - row.taken  # spent, or held: each event tries again for what holds have set free since
        _freeze(row)
    row.save()


def _due(row: Purchase) -> int:
    """Return how many µcr of the purchase have no money behind them any more."""
    claims = PaymentClaim.objects.filter(payment=row.payment)

    def money(kind: PaymentClaim.Kind, *states: PaymentClaim.State) -> int:
        return claims.filter(kind=kind, state__in=states).aggregate(sum=Sum("amount"))["sum"] or 0

    state = PaymentClaim.State
    of_charges = money(_Kind.CHARGE, *state) - money(_Kind.REFUND, state.STAYS)
    refunded = max(of_charges, money(_Kind.REFUND, state.BACK))
    is_taken = (state.BACK, state.OPEN) if settings.SLUICE_DISPUTE_FREEZES == "grant" else (state.BACK,)
    back = min(row.price, refunded + money(_Kind.DISPUTE, *is_taken))
    return row.amount * back // row.price


def _give(row: Purchase, amount: int, price: int, reason: str) -> None:
    row.moves += 1
    credits.grant(
        wallet_id=Wallet.objects.get(tenant=row.tenant_id, name="main").pk,
        amount=amount,
        kind=CreditGrant.Kind.PAID,
        key=f"purchase:{row.pk}:{row.moves}",
        actor=ACTOR,
        reason=reason,
        source=f"purchase:{row.pk}",
        paid_amount=price,
        currency=row.currency,
        paid_reference=row.payment or row.session or "",
    )


def _take(row: Purchase, wanted: int) -> int:
    """Take at most `wanted` µcr of what is left of the purchase, and return how many that were.

    A grant of which all is wanted ends with it, whatever holds may need of it; another one goes on.
    """
    taken = 0
    mine = CreditGrant.objects.filter(wallet__tenant=row.tenant_id, source=f"purchase:{row.pk}")
    for grant in mine.filter(remaining__gt=0, voided_at=None, expired_at=None).order_by("-id"):
        if taken == wanted:
            break
        row.moves += 1
        said: dict[str, Any] = {"key": f"purchase:{row.pk}:{row.moves}", "actor": ACTOR, "reason": "Money went back"}
        try:
            taken += credits.refund(grant_id=grant.pk, reference=row.payment or "-", most=wanted - taken, **said)
        except ValueError:  # all that is left is held
            if wanted - taken >= grant.remaining:
                taken += credits.void(grant_id=grant.pk, **said)
    return taken


def _freeze(row: Purchase) -> None:
    """Freeze the tenant's wallet for a dispute that is open or lost; open what it froze once the dispute is won."""
    if settings.SLUICE_DISPUTE_FREEZES != "wallet" and not row.froze:
        return
    wallet = Wallet.objects.get(tenant=row.tenant_id, name="main")
    against = PaymentClaim.objects.filter(kind=_Kind.DISPUTE, state__lt=PaymentClaim.State.STAYS)
    is_disputed = against.filter(payment=row.payment).exists()
    if is_disputed and wallet.state == Wallet.State.OPEN and not row.froze:
        wallets.set_state(wallet.pk, Wallet.State.FROZEN)
        row.froze = True
    elif row.froze and not is_disputed:
        row.froze = False
        others = Purchase.objects.filter(tenant=row.tenant_id, payment__in=against.values("payment"))
        if (other := others.exclude(pk=row.pk).first()) is not None:
            Purchase.objects.filter(pk=other.pk).update(froze=True)
        elif wallet.state == Wallet.State.FROZEN:
            wallets.set_state(wallet.pk, Wallet.State.OPEN)
