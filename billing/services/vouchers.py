"""Vouchers: codes that operators make and tenants redeem for credit.

A code is 20 characters of Crockford's base32, 100 bits of chance, of which the digest and the last four characters are
stored: whoever reads those has 80 bits to guess.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils.crypto import salted_hmac

from base import clock
from base.errors import ServiceError
from billing.models import CreditGrant, Voucher, VoucherBatch, VoucherUse
from billing.services import credits, wallets

MOST_CODES = 1000
"""Codes of one batch: they are shown once, on one page."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_GROUPS, _LETTERS = 5, 4
_LIKE = str.maketrans("OIL", "011")  # what people read and type


class VoucherError(ServiceError):
    """A code gives this tenant nothing; `code` is the error's own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__("code", message)
        self.code = code


@transaction.atomic
def make(
    *,
    key: str,
    count: int,
    note: str,
    amount: int,
    made_by: str,
    paid_amount: int | None = None,
    currency: str = "",
    uses: int = 1,
    valid_until: datetime | None = None,
    credit_days: int | None = None,
) -> tuple[VoucherBatch, list[str]]:
    """Make `count` codes with the same terms; return their batch and the codes, which nobody can read again.

    `paid_amount` is the money paid for one use. For a `key` that made a batch before, return that one and no codes.
    Raises ServiceError that names the field.
    """
    if (before := VoucherBatch.objects.filter(key=key).first()) is not None:
        return before, []
    _check(count=count, note=note, amount=amount, uses=uses, valid_until=valid_until, credit_days=credit_days)
    _check_money(paid_amount, currency)
    batch = VoucherBatch(
        key=key,
        note=note.strip(),
        amount=amount,
        paid_amount=paid_amount,
        currency=currency,
        uses=uses,
        valid_until=valid_until,
        credit_days=credit_days,
        made_by=made_by,
    )
    batch.save(force_insert=True)
    codes = [_new_code() for _ in range(count)]
    Voucher.objects.bulk_create(
        Voucher(batch=batch, digest=_digests(code)[0], last_four=code[-_LETTERS:]) for code in codes
    )
    return batch, codes


@transaction.atomic
def redeem(*, tenant_id: UUID, code: str, actor: str) -> CreditGrant:
    """Give the tenant the code's credit as one grant. Raises VoucherError where it gives nothing, changing nothing."""
    voucher = find(code)
    if voucher is None:
        raise VoucherError("voucher_unknown", "This is no code of ours: compare it with what you were given.")
    wallet = wallets.lock(wallets.open_wallet(tenant_id=tenant_id).pk)  # before the voucher: the order of locks
    if VoucherUse.objects.filter(voucher=voucher, tenant=tenant_id).exists():
        raise VoucherError("voucher_redeemed", "Your tenant has redeemed this code already.")
    terms, now = voucher.batch, clock.now()
    if terms.valid_until is not None and terms.valid_until <= now:
        raise VoucherError("voucher_ended", "This code could be redeemed until a moment that has gone by.")
    _take_use(voucher)
    ends = None if terms.credit_days is None else now + timedelta(days=terms.credit_days)
    grant = credits.grant(
        wallet_id=wallet.pk,
        amount=terms.amount,
        kind=CreditGrant.Kind.PROMOTIONAL if terms.paid_amount is None else CreditGrant.Kind.PAID,
        key=f"voucher:{voucher.pk}:{tenant_id}",
        actor=actor,
        reason=f"Voucher …{voucher.last_four}",
        expires_at=ends,
        source=f"voucher …{voucher.last_four}",
        paid_amount=terms.paid_amount,
        currency=terms.currency,
    )
    VoucherUse.objects.create(voucher=voucher, tenant_id=tenant_id, grant=grant)
    return grant


@transaction.atomic
def withdraw(voucher: Voucher) -> bool:
    """Let the code be redeemed no more; what was redeemed stays. Return whether that is new."""
    row = Voucher.objects.select_for_update(no_key=True).get(pk=voucher.pk)
    if row.withdrawn_at is not None:
        return False
    row.withdrawn_at = clock.now()
    row.save(update_fields=["withdrawn_at"])
    return True


def find(text: str) -> Voucher | None:
    """Return the voucher of a code, for an operator who was told it."""
    return Voucher.objects.select_related("batch").filter(digest__in=_digests(text)).first()


def of_batch(text: str) -> list[Voucher]:
    """Return the vouchers of the batch with this id; none where there is no such batch."""
    try:
        return list(Voucher.objects.filter(batch=UUID(text)))
    except ValueError:
        return []


def _check(
    *, count: int, note: str, amount: int, uses: int, valid_until: datetime | None, credit_days: int | None
) -> None:
    if not note.strip():
        raise ServiceError("note", "Say what the vouchers are for.")
    if not 1 <= count <= MOST_CODES:
        raise ServiceError("count", f"Make between 1 and {MOST_CODES} codes at a time.")
    if amount <= 0:
        raise ServiceError("amount", "A voucher gives more than no credit.")
    if uses < 1:
        raise ServiceError("uses", "At least one tenant redeems a code.")
    if credit_days is not None and credit_days < 1:
        raise ServiceError("credit_days", "Credit lasts a day at least; leave it empty for no end.")
    if valid_until is not None and valid_until <= clock.now():
        raise ServiceError("valid_until", "Choose a moment that is still to come.")


def _check_money(paid_amount: int | None, currency: str) -> None:
    if (paid_amount is None) != (not currency):
        raise ServiceError("paid_amount", "Money has an amount and a currency, or neither.")
    if paid_amount is not None and paid_amount < 0:
        raise ServiceError("paid_amount", "Money paid is not below zero.")
    if currency and not (len(currency) == 3 and currency.isascii() and currency.isalpha() and currency.isupper()):
        raise ServiceError("currency", "Give the currency's three letters, as EUR.")


def _take_use(voucher: Voucher) -> None:
    """Count one more use and lock the voucher until the transaction ends; VoucherError where there is none left.

    The bound stands on the row that is changed: whoever waited for the lock is compared with the count of by then.
    """
    free = Voucher.objects.filter(pk=voucher.pk, withdrawn_at=None, used__lt=voucher.batch.uses)
    if free.update(used=F("used") + 1):
        return
    if Voucher.objects.filter(pk=voucher.pk, withdrawn_at=None).exists():
        raise VoucherError("voucher_used_up", "This code is used up.")
    raise VoucherError("voucher_withdrawn", "This code was withdrawn: ask whoever gave it to you.")


def _new_code() -> str:
    letters = [secrets.choice(_ALPHABET) for _ in range(_GROUPS * _LETTERS)]
    return "-".join("".join(letters[at : at + _LETTERS]) for at in range(0, len(letters), _LETTERS))


def _digests(code: str) -> list[str]:
    """Return what may be stored of a code as somebody typed it: under today's secret, then under replaced ones."""
    typed = "".join(one for one in code[:200].upper().translate(_LIKE) if one in _ALPHABET)
    under = [settings.SLUICE_KEY_HASH_SECRET, *settings.SLUICE_KEY_HASH_FALLBACKS]
    return [salted_hmac("billing.vouchers", typed, secret=one, algorithm="sha256").hexdigest() for one in under]
