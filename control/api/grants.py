"""What operators do by the management API with a tenant's credit: grants now or later, recurring ones, invoices."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Q
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import CreditGrant, Invoice, RecurringGrant, ScheduledGrant, Wallet
from billing.services import credits, invoices, recurring
from billing.services.wallets import open_wallet
from billing.writer.view import models_in
from control.api.operators import MOST, ONCE, OperatorView, done, key_of
from control.api.parsers import KnownFields
from control.api.wallet import AmountSerializer
from control.screens.grants import cancel, give_later
from routing.models import PublicModel
from tenancy.models import Tenant

MAY_SEE, MAY_GIVE = ["gateway.view_tenant", "billing.view_creditgrant"], "billing.add_creditgrant"
_GIFTS = [(kind.value, kind.label) for kind in (CreditGrant.Kind.PROMOTIONAL, CreditGrant.Kind.GOODWILL)]
_GIVEN = [*_GIFTS, (CreditGrant.Kind.PLAN.value, "Plan"), (CreditGrant.Kind.PAID.value, "Paid")]
_MICRO: dict[str, Any] = {"min_value": 1, "max_value": 2**62}


def tenant_of(slug: str) -> Tenant:
    """Return the tenant of an address; 404 where there is none, or it was erased."""
    return get_object_or_404(Tenant, slug=slug, erased_at=None)


class NewGrantSerializer(KnownFields):
    """A grant, which begins at once unless `begins_at` says when."""

    amount_micro = serializers.IntegerField(**_MICRO)
    kind = serializers.ChoiceField(choices=_GIVEN)
    reason = serializers.CharField(max_length=200)
    begins_at = serializers.DateTimeField(allow_null=True, default=None)
    expires_at = serializers.DateTimeField(allow_null=True, default=None)
    priority = serializers.IntegerField(min_value=0, max_value=100, default=50)
    paid_amount = serializers.IntegerField(min_value=0, max_value=2**62, allow_null=True, default=None)
    currency = serializers.CharField(max_length=3, allow_blank=True, default="")
    paid_reference = serializers.CharField(max_length=200, allow_blank=True, default="")
    models = serializers.ListField(
        child=serializers.CharField(max_length=120), max_length=credits.MOST_MODELS, default=list
    )

    def validate_models(self, names: list[str]) -> list[str]:
        """Refuse names of no model."""
        theirs = Q(tenant=None) | Q(tenant=self.context["tenant"])
        known = set(PublicModel.objects.filter(theirs, is_active=True, name__in=names).values_list("name", flat=True))
        if unknown := sorted(set(names) - known):
            raise serializers.ValidationError(f"There is no model {unknown[0]!r}.")
        return names


class OpenGrantSerializer(serializers.Serializer[Any]):
    """A grant that has credit left, or that is to come."""

    id = serializers.UUIDField()
    kind = serializers.ChoiceField(choices=CreditGrant.Kind.choices)
    amount = AmountSerializer()
    remaining = AmountSerializer()
    begins_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    is_to_come = serializers.BooleanField()
    models = serializers.ListField(child=serializers.CharField())


def _told(one: CreditGrant | ScheduledGrant) -> dict[str, Any]:
    coming = isinstance(one, ScheduledGrant)
    return OpenGrantSerializer(
        {
            **{name: getattr(one, name) for name in ("id", "kind", "amount", "expires_at")},
            "begins_at": one.begins_at if isinstance(one, ScheduledGrant) else one.effective_at,
            "remaining": one.amount if isinstance(one, ScheduledGrant) else one.remaining,
            "is_to_come": coming,
            "models": sorted(models_in(one.restriction)),
        }
    ).data


class OperatorGrantsView(OperatorView):
    """A tenant's grants."""

    needs = {"GET": MAY_SEE, "POST": [*MAY_SEE, MAY_GIVE]}
    serializer_class = NewGrantSerializer

    @extend_schema(
        operation_id="operator_grants_list", summary="List a tenant's grants", responses=OpenGrantSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List at most a hundred grants that are to come, and as many of those that have credit left."""
        mine = Q(wallet__in=Wallet.objects.filter(tenant=tenant_of(slug)))
        coming = ScheduledGrant.objects.filter(mine).order_by("begins_at", "id")[:MOST]
        live = CreditGrant.objects.filter(mine, remaining__gt=0).order_by("effective_at", "id")[:MOST]
        return Response([*map(_told, coming), *map(_told, live)])

    @extend_schema(
        operation_id="operator_grants_create",
        summary="Grant credit",
        parameters=[ONCE],
        responses={201: OpenGrantSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Give a tenant credit, at once or from `begins_at` on."""
        tenant, key = tenant_of(slug), key_of(request)
        asked = NewGrantSerializer(data=request.data, context={"tenant": tenant})
        asked.is_valid(raise_exception=True)
        wanted = dict(asked.validated_data)
        terms = wanted | {
            "wallet_id": open_wallet(tenant_id=tenant.pk).pk,
            "kind": CreditGrant.Kind(wanted["kind"]),
            "amount": wanted["amount_micro"],
            "key": key,
            "actor": str(request.user)[:120],
        }
        del terms["amount_micro"]

        def give() -> CreditGrant | ScheduledGrant:
            if (begins_at := terms.pop("begins_at")) is None:
                return credits.grant(source="operator", **terms)
            made = give_later(tenant, begins_at=begins_at, **terms)
            return ScheduledGrant.objects.filter(pk=made).first() or CreditGrant.objects.get(pk=made)

        return Response(_told(done(give, amount="amount_micro")), status=201)


class OperatorGrantView(OperatorView):
    """A grant to come."""

    needs = {"DELETE": [*MAY_SEE, MAY_GIVE]}
    serializer_class = OpenGrantSerializer

    @extend_schema(
        operation_id="operator_grants_cancel", summary="Cancel a grant to come", request=None, responses={204: None}
    )
    def delete(self, request: Request, slug: str, pk: UUID) -> Response:
        """Let a grant that hasn't begun never begin."""
        tenant = tenant_of(slug)
        one = get_object_or_404(ScheduledGrant, pk=pk, wallet__tenant=tenant)
        done(lambda: cancel(tenant, one))
        return Response(status=204)


class RecurringSerializer(serializers.ModelSerializer[RecurringGrant]):
    """A recurring grant."""

    amount = AmountSerializer()
    rollover = AmountSerializer(allow_null=True)

    class Meta:
        model = RecurringGrant
        fields = [
            *("id", "kind", "amount", "window", "anchor", "time_zone", "until", "windows", "rollover", "priority"),
            *("state", "next_at", "reason", "created_at"),
        ]
        read_only_fields = fields


class NewRecurringSerializer(KnownFields):
    """A recurring grant: credit at the beginning of each window."""

    amount_micro = serializers.IntegerField(**_MICRO)
    kind = serializers.ChoiceField(choices=_GIFTS)
    window = serializers.ChoiceField(choices=RecurringGrant.Window.choices)
    reason = serializers.CharField(max_length=200)
    begins_at = serializers.DateTimeField(allow_null=True, default=None)
    time_zone = serializers.CharField(max_length=60, default="UTC")
    until = serializers.DateTimeField(allow_null=True, default=None)
    count = serializers.IntegerField(min_value=1, max_value=recurring.MOST_COUNT, allow_null=True, default=None)
    windows = serializers.IntegerField(min_value=1, max_value=recurring.MOST_WINDOWS, default=1)
    rollover_micro = serializers.IntegerField(**_MICRO, allow_null=True, default=None)
    priority = serializers.IntegerField(min_value=0, max_value=100, default=50)


class RecurringGrantsView(OperatorView):
    """A tenant's recurring grants."""

    needs = {"GET": MAY_SEE, "POST": [*MAY_SEE, MAY_GIVE]}
    serializer_class = NewRecurringSerializer

    @extend_schema(
        operation_id="operator_recurring_list",
        summary="List recurring grants",
        responses=RecurringSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the newest hundred of a tenant's recurring grants."""
        found = RecurringGrant.objects.filter(wallet__tenant=tenant_of(slug)).order_by("-created_at")[:MOST]
        return Response(RecurringSerializer(found, many=True).data)

    @extend_schema(
        operation_id="operator_recurring_create",
        summary="Grant credit again and again",
        parameters=[ONCE],
        responses={201: RecurringSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Give a tenant credit at the beginning of each day, week or month."""
        tenant, key = tenant_of(slug), key_of(request)
        asked = NewRecurringSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        terms = dict(asked.validated_data)
        amount, rollover = terms.pop("amount_micro"), terms.pop("rollover_micro")
        wallet = open_wallet(tenant_id=tenant.pk).pk
        terms |= {"wallet_id": wallet, "amount": amount, "rollover": rollover, "key": key}
        made = done(
            lambda: recurring.make(actor=str(request.user)[:120], **terms),
            amount="amount_micro",
            rollover="rollover_micro",
        )
        return Response(RecurringSerializer(made).data, status=201)


class StateSerializer(KnownFields):
    """The state that a recurring grant gets."""

    state = serializers.ChoiceField(choices=RecurringGrant.State.choices)


class RecurringGrantView(OperatorView):
    """One recurring grant."""

    needs = {"PATCH": [*MAY_SEE, MAY_GIVE]}
    serializer_class = StateSerializer

    @extend_schema(
        operation_id="operator_recurring_change",
        summary="Pause, resume or end a recurring grant",
        responses=RecurringSerializer,
    )
    def patch(self, request: Request, slug: str, pk: UUID) -> Response:
        """Pause a recurring grant, let it go on, or end it; what it gave stays."""
        one = get_object_or_404(RecurringGrant, pk=pk, wallet__tenant=tenant_of(slug))
        asked = StateSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        state = RecurringGrant.State(asked.validated_data["state"])
        return Response(RecurringSerializer(done(lambda: recurring.set_state(one.pk, state))).data)


class InvoiceSerializer(serializers.ModelSerializer[Invoice]):
    """An invoice."""

    amount = AmountSerializer()

    class Meta:
        model = Invoice
        fields = ["id", "number", "ends_at", "amount", "state", "grant", "closed_at", "reason", "created_at"]
        read_only_fields = fields


class InvoicesView(OperatorView):
    """A tenant's invoices."""

    needs = {"GET": MAY_SEE}
    serializer_class = InvoiceSerializer

    @extend_schema(
        operation_id="operator_invoices_list", summary="List invoices", responses=InvoiceSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the newest hundred of a tenant's invoices."""
        found = Invoice.objects.filter(wallet__tenant=tenant_of(slug)).order_by("-number")[:MOST]
        return Response(InvoiceSerializer(found, many=True).data)


class PaymentSerializer(KnownFields):
    """The payment of an invoice."""

    paid_amount = serializers.IntegerField(min_value=0, max_value=2**62)
    currency = serializers.CharField(max_length=3)
    reference = serializers.CharField(max_length=200)


class InvoicePayView(OperatorView):
    """The payment of an invoice."""

    needs = {"POST": [*MAY_SEE, MAY_GIVE]}
    serializer_class = PaymentSerializer

    @extend_schema(operation_id="operator_invoices_pay", summary="Note a payment", responses=InvoiceSerializer)
    def post(self, request: Request, slug: str, pk: UUID) -> Response:
        """Note that an invoice was paid: its credit is granted. Again with the same reference it changes nothing."""
        one = get_object_or_404(Invoice, pk=pk, wallet__tenant=tenant_of(slug))
        asked = PaymentSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        actor = str(request.user)[:120]
        return Response(InvoiceSerializer(done(lambda: invoices.pay(one.pk, actor=actor, **asked.validated_data))).data)


class VoidSerializer(KnownFields):
    """Why an invoice is asked for no more."""

    reason = serializers.CharField(max_length=200)


class InvoiceVoidView(OperatorView):
    """The end of an invoice that nobody pays."""

    needs = {"POST": [*MAY_SEE, MAY_GIVE]}
    serializer_class = VoidSerializer

    @extend_schema(operation_id="operator_invoices_void", summary="Void an invoice", responses=InvoiceSerializer)
    def post(self, request: Request, slug: str, pk: UUID) -> Response:
        """Ask for an invoice no more; what is still overdrawn is part of the next month's."""
        one = get_object_or_404(Invoice, pk=pk, wallet__tenant=tenant_of(slug))
        asked = VoidSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        return Response(InvoiceSerializer(done(lambda: invoices.void(one.pk, **asked.validated_data))).data)
