"""Vouchers: redeeming a code for credit."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from billing.models import CreditGrant
from billing.services import vouchers
from control.api.authentication import AdminKeyAuthentication, TenantSessionAuthentication
from control.api.base import TenantView
from control.api.parsers import KnownFields
from control.api.wallet import AmountSerializer
from control.throttles import VoucherThrottle
from gateway.errors.refusal import Refusal
from tenancy.audit import origin


class CodeSerializer(KnownFields):
    """A voucher's code; hyphens and case don't matter."""

    code = serializers.CharField(max_length=200)


class GrantSerializer(serializers.ModelSerializer[CreditGrant]):
    """The credit that came in."""

    amount = AmountSerializer()

    class Meta:
        model = CreditGrant
        fields = ["id", "kind", "amount", "expires_at"]
        read_only_fields = fields


class RedeemView(TenantView):
    """Redemption of vouchers, for owners, billing members and admin keys."""

    authentication_classes = [AdminKeyAuthentication, TenantSessionAuthentication]
    writes = "pay"
    serializer_class: type[serializers.BaseSerializer[Any]] = CodeSerializer

    def get_throttles(self) -> list[BaseThrottle]:
        """Count codes that are tried by tenant too."""
        return [*super().get_throttles(), VoucherThrottle()]

    @extend_schema(
        operation_id="vouchers_redeem",
        summary="Redeem a voucher",
        request=CodeSerializer,
        responses={201: GrantSerializer},
        examples=[OpenApiExample("A code", {"code": "7K3M-XQ2T-9HVD-0B4N-ZR8C"}, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        """Redeem a code: its credit is there at once. Each tenant redeems a code once."""
        wanted = CodeSerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        try:
            grant = vouchers.redeem(
                tenant_id=self.tenant.pk, code=wanted.validated_data["code"], actor=origin.current().actor
            )
        except vouchers.VoucherError as refused:
            raise Refusal(400, refused.code, refused.message, param="code") from refused
        except ValueError as refused:  # the wallet can't take it
            raise Refusal(400, "invalid_value", str(refused)) from refused
        return Response(GrantSerializer(grant).data, status=status.HTTP_201_CREATED)
