"""The kinds of the ledger's transfers, apart from the models: the writer is imported where Django is not set up."""

from __future__ import annotations

from django.db.models import IntegerChoices


class Code(IntegerChoices):
    """Why credit moved from one ledger account to another."""

    GRANT = 1
    CHARGE = 2
    TRUE_UP = 3
    EXPIRY = 4
    VOID = 5
    ADJUSTMENT = 6
    OVERDRAFT_REPAID = 7
    REFUND = 8
    REQUEST_REFUND = 9
    RERATING = 10
    ROLLOVER = 11
    PROMISE = 12
