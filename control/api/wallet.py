"""The wallet: what is posted, held and available, and the ledger's pages with a running balance."""

from __future__ import annotations

from typing import Any

from django.core import signing
from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from base.units import format_credits
from billing.models import LedgerTransfer
from billing.selectors.balances import balance_of
from billing.selectors.ledger import LedgerCursor, LedgerLine, LedgerPage, ledger_of
from control.api.base import TenantView
from control.screens.ledger import cursor_of, signed
from gateway.errors.refusal import Refusal


class AmountSerializer(serializers.Serializer[int]):
    """An amount: decimal credits for people, integer micro-credits for sums."""

    credits = serializers.CharField(read_only=True)
    credits_micro = serializers.IntegerField(read_only=True)

    def to_representation(self, instance: int) -> dict[str, Any]:
        """Return both."""
        return {"credits": format_credits(instance), "credits_micro": instance}


class RestrictedSerializer(serializers.Serializer[Any]):
    """Credit for some models alone: a new request of one may hold `available`, which includes what is for all."""

    models = serializers.ListField(child=serializers.CharField())
    rest = AmountSerializer()
    available = AmountSerializer()


class WalletSerializer(serializers.Serializer[Any]):
    """A wallet's sums: `available` is what a new request of every model may hold; `expiring` ends at `expires_at`."""

    id = serializers.UUIDField(source="wallet")
    posted = AmountSerializer()
    held = AmountSerializer()
    overdraft_limit = AmountSerializer()
    available = AmountSerializer()
    expiring = AmountSerializer()
    expires_at = serializers.DateTimeField(allow_null=True)
    restricted = RestrictedSerializer(many=True)


class TransferSerializer(serializers.Serializer[Any]):
    """A movement of credit: `amount` is negative for a debit; `balance` is what was posted after it."""

    id = serializers.IntegerField(source="transfer.id")
    booked_at = serializers.DateTimeField(source="transfer.booked_at")
    code = serializers.SerializerMethodField()
    amount = AmountSerializer()
    balance = AmountSerializer()
    request = serializers.UUIDField(source="transfer.request", allow_null=True)
    grant = serializers.UUIDField(source="transfer.grant_id", allow_null=True)
    reason = serializers.CharField(source="transfer.reason")

    def get_code(self, line: LedgerLine) -> str:
        """Return why the credit moved."""
        return LedgerTransfer.Code(line.transfer.code).name.lower()


class TransferPageSerializer(serializers.Serializer[Any]):
    """Transfers, newest first; `next` is the cursor of the following page, null on the last one."""

    data = TransferSerializer(source="lines", many=True)  # type: ignore[assignment] # a field named like a property
    next = serializers.SerializerMethodField()

    def get_next(self, page: LedgerPage) -> str | None:
        """Return the cursor, signed since it carries the balance."""
        return None if page.next is None else signed(page.next)


class TransferQuerySerializer(serializers.Serializer[Any]):
    """Query of the wallet's transfers: size and start of the page."""

    limit = serializers.IntegerField(min_value=1, max_value=200, default=50)
    cursor = serializers.CharField(required=False, help_text="`next` of the page before.")

    def validate_cursor(self, value: str) -> LedgerCursor:
        """Return the ledger cursor in the signed text; raises ValidationError for another text."""
        try:
            return cursor_of(value)
        except signing.BadSignature:
            raise serializers.ValidationError("This cursor is not one of ours.") from None


class WalletView(TenantView):
    """The tenant's main wallet."""

    reads = "wallet"
    serializer_class = WalletSerializer

    @extend_schema(operation_id="wallet_retrieve", summary="Show the wallet")
    def get(self, request: Request) -> Response:
        """Show the wallet."""
        balance = balance_of(self.tenant.id)
        if balance is None:
            raise Http404
        return Response(WalletSerializer(balance).data)


class TransfersView(TenantView):
    """The ledger of the tenant's main wallet."""

    reads = "wallet"
    serializer_class = TransferPageSerializer

    @extend_schema(
        operation_id="wallet_transfers_list",
        summary="List ledger transfers",
        parameters=[TransferQuerySerializer],
    )
    def get(self, request: Request) -> Response:
        """List the transfers, newest first."""
        query = TransferQuerySerializer(data=request.query_params)
        query.is_valid(raise_exception=True)
        balance = balance_of(self.tenant.id)
        if balance is None:
            raise Refusal(404, "not_found", "This tenant has no wallet.")
        wanted = query.validated_data
        page = ledger_of(balance.wallet, limit=wanted["limit"], before=wanted.get("cursor"))
        return Response(TransferPageSerializer(page).data)
