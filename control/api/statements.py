"""Statements: the months of the tenant, and each in the forms that can be read, booked and verified."""

from __future__ import annotations

from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Statement
from billing.seals.keys import pem_of, public_keys, told
from billing.statements import months
from control.api.base import TenantView
from control.api.throttles import AddressThrottle
from control.api.wallet import AmountSerializer
from control.screens.statements import FORMATS, MOST_LISTED, download, month_named


class StatementSerializer(serializers.Serializer[Statement]):
    """The statement of a month that is over: final, and under a number without gaps."""

    month = serializers.DateField(format="%Y-%m")
    number = serializers.IntegerField()
    time_zone = serializers.CharField()
    begins_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    opening = AmountSerializer()
    closing = AmountSerializer()


class StatementsSerializer(serializers.Serializer[Any]):
    """The statements, the latest first, and the months that have none yet, of which drafts can be read."""

    data = StatementSerializer(many=True)  # type: ignore[assignment] # a field named like a property
    drafts = serializers.ListField(child=serializers.CharField())


class StatementsView(TenantView):
    """The tenant's statements."""

    reads = "wallet"
    serializer_class = StatementsSerializer

    @extend_schema(operation_id="statements_list", summary="List statements")
    def get(self, request: Request) -> Response:
        """List the latest statements."""
        tenant = self.tenant.id
        found = months.statements_of(tenant, MOST_LISTED)
        shown = {"data": found, "drafts": months.drafts_of(tenant, found)}
        return Response(StatementsSerializer(shown).data)


class AnyRenderer(JSONRenderer):
    """For who accepts nothing but the file, which no renderer makes; errors are JSON all the same."""

    media_type = "*/*"
    format = "any"


class StatementView(TenantView):
    """One month in one form."""

    reads = "wallet"
    renderer_classes = [JSONRenderer, AnyRenderer]

    @extend_schema(
        operation_id="statement_read",
        summary="Download a statement",
        parameters=[
            OpenApiParameter("month", str, OpenApiParameter.PATH, description="The month, as 2026-11."),
            OpenApiParameter(
                "form", str, OpenApiParameter.PATH, enum=list(FORMATS), description="The form of the file."
            ),
        ],
        responses={(200, "application/jsonl"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, month: str, form: str) -> StreamingHttpResponse:
        """Send the statement while it is made, a draft of a month that isn't over: as JSON lines to verify it, its
        requests or its ledger as CSV, its usage as FOCUS 1.2, or as a page.
        """
        access = self.access
        asker = access.key or access.admin_key or access.user or self.tenant
        return download(asker.pk, self.tenant, month_named(self.tenant, month), form)


class SealKeySerializer(serializers.Serializer[Any]):
    """A public key that signs, or has signed, the seals of days."""

    number = serializers.IntegerField()
    public_key = serializers.CharField()
    pem = serializers.CharField()
    since = serializers.CharField()
    signature = serializers.CharField()
    own_signature = serializers.CharField()


class SealKeysSerializer(serializers.Serializer[Any]):
    """All of them; the last signs now."""

    data = SealKeySerializer(many=True)  # type: ignore[assignment] # a field named like a property


class SealKeysView(GenericAPIView[Any]):
    """The installation's public keys, for everybody."""

    authentication_classes = []
    permission_classes = []
    throttle_classes = [AddressThrottle]
    serializer_class = SealKeysSerializer

    @extend_schema(operation_id="seal_keys_list", summary="List the keys that sign seals", auth=[])
    def get(self, request: Request) -> Response:
        """List the public keys by which seals are verified, also those that were replaced. It needs no key."""
        return Response({"data": [{**told(key), "pem": pem_of(key)} for key in public_keys()]})
