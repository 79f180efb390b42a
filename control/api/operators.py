"""What operators do by the management API, signed in: refunds of requests, and re-ratings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from typing import Any, TypeVar
from uuid import UUID

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django_scopes import scopes_disabled
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import RateCardVersion, Rerating
from billing.seals.archived import is_archived
from billing.selectors.requests import record_at
from billing.selectors.reratings import differences
from billing.services import reratings
from billing.services.credits import refund_request
from billing.services.errors import CreditError, KeyReusedError
from control.api.authentication import OperatorSessionAuthentication
from control.api.parsers import KnownFields
from control.api.permissions import IsOperator
from control.api.throttles import AddressThrottle
from control.api.wallet import AmountSerializer
from gateway.durable.replays import key_reused
from gateway.errors.refusal import Refusal
from gateway.http.durable import check_key
from routing.services.catalogue import cards_of_models
from tenancy.audit.trail import record
from tenancy.models import Tenant

Made = TypeVar("Made")

MOST = 100
MAY_SEE = ["billing.view_ratecard", "billing.view_usagerecord"]
MAY_ASK, MAY_DO = "billing.add_rerating", "billing.add_ledgertransfer"


class OperatorView(GenericAPIView[Any]):
    """A view for operators; `needs` names, by method, the permissions that their role must have."""

    authentication_classes = [OperatorSessionAuthentication]
    permission_classes = [IsOperator]
    throttle_classes = [AddressThrottle]
    needs: dict[str, list[str]] = {}

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer, over all tenants."""
        with ExitStack() as scopes:
            scopes.enter_context(scopes_disabled())
            response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
            return response


ONCE = OpenApiParameter(
    "Idempotency-Key", str, OpenApiParameter.HEADER, required=True, description="Takes effect once."
)


def key_of(request: Request) -> str:
    """Return the key of a call that moves credit once; raise a 400 Refusal without one."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        message = "What moves credit needs the header Idempotency-Key."
        raise Refusal(400, "missing_required_parameter", message, param="Idempotency-Key")
    check_key(key)
    return f"api:{sha256(key.encode()).hexdigest()}"


def done(act: Callable[[], Made], **renamed: str) -> Made:
    """Return what `act` returns, and raise the Refusal of what it refuses; `renamed` has a body's name of a field."""
    try:
        return act()
    except KeyReusedError:
        raise key_reused() from None
    except (CreditError, ValueError) as error:
        field, _, text = str(error).partition(": ")
        param = renamed.get(field, field) if text else None
        raise Refusal(400, "invalid_value", text or field, param=param) from None


class RefundSerializer(KnownFields):
    """A refund of a request."""

    amount_micro = serializers.IntegerField(min_value=1, max_value=2**62, allow_null=True, default=None)
    reason = serializers.CharField(max_length=200)


class RefundedSerializer(serializers.Serializer[Any]):
    """What was given back, and what the request is charged now."""

    request = serializers.UUIDField()
    given_back = AmountSerializer()
    charge = AmountSerializer()
    revision = serializers.IntegerField()


class RefundView(OperatorView):
    """The refund of a request."""

    needs = {"POST": ["billing.view_usagerecord", MAY_DO]}
    serializer_class = RefundSerializer

    @extend_schema(
        operation_id="operator_requests_refund",
        summary="Refund a request",
        parameters=[ONCE],
        responses={200: RefundedSerializer},
    )
    def post(self, request: Request, pk: UUID) -> Response:
        """Give back what a request was charged, in whole or part, to the grants that paid it."""
        asked = RefundSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        key = key_of(request)
        wanted = asked.validated_data
        if record_at(pk, None) is None and not is_archived(pk):
            raise Refusal(404, "not_found", "There is no such request that has ended.")
        terms = {"amount": wanted["amount_micro"], "actor": str(request.user)[:120], "reason": wanted["reason"]}
        given = done(lambda: refund_request(request=pk, key=key, **terms), amount="amount_micro")
        found = record_at(pk, None)
        assert found is not None, "records stay"
        answer = {"request": pk, "given_back": given, "charge": found.charge, "revision": found.revision}
        return Response(RefundedSerializer(answer).data)


class DifferenceSerializer(serializers.Serializer[Any]):
    """A model's, class's or tenant's part of a run."""

    name = serializers.CharField()
    requests = serializers.IntegerField()
    tokens = serializers.IntegerField()
    before = AmountSerializer()
    after = AmountSerializer()
    difference = AmountSerializer()


class ReratingSerializer(serializers.ModelSerializer[Rerating]):
    """A run: what is rated anew and how, how far it is, and what it comes to."""

    models = serializers.ListField(child=serializers.CharField(), source="model_names")
    before = AmountSerializer()
    after = AmountSerializer()
    difference = AmountSerializer()

    class Meta:
        model = Rerating
        fields = [
            *("id", "since", "until", "tenants", "models", "card", "version", "cards", "multiplier_was"),
            *("multiplier_bp", "commit", "follows", "what_if", "asked_by", "reason", "total", "looked", "counted"),
            *("changed", "left", "before", "after", "difference", "created_at", "ended_at", "is_stopped"),
        ]
        read_only_fields = fields


class WholeReratingSerializer(ReratingSerializer):
    """A run with its parts, those that differ most first, at most a hundred of each kind."""

    by_model = serializers.SerializerMethodField()
    by_class = serializers.SerializerMethodField()
    by_tenant = serializers.SerializerMethodField()

    class Meta(ReratingSerializer.Meta):
        fields = [*ReratingSerializer.Meta.fields, "by_model", "by_class", "by_tenant"]
        read_only_fields = fields

    @extend_schema_field(DifferenceSerializer(many=True))
    def get_by_model(self, run: Rerating) -> Any:
        """Return the sums by model."""
        return DifferenceSerializer(differences(run, "model", MOST), many=True).data

    @extend_schema_field(DifferenceSerializer(many=True))
    def get_by_class(self, run: Rerating) -> Any:
        """Return the sums by class."""
        return DifferenceSerializer(differences(run, "usage_class", MOST), many=True).data

    @extend_schema_field(DifferenceSerializer(many=True))
    def get_by_tenant(self, run: Rerating) -> Any:
        """Return the sums by tenant."""
        return DifferenceSerializer(differences(run, "tenant", MOST), many=True).data


class NewReratingSerializer(KnownFields):
    """A what-if, or a shadow."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True, default=None)
    tenants = serializers.ListField(child=serializers.SlugField(), max_length=1000, default=list)
    models = serializers.ListField(child=serializers.CharField(max_length=120), max_length=1000, default=list)
    version = serializers.UUIDField(allow_null=True, default=None)
    by_model = serializers.BooleanField(default=False)
    multiplier_was = serializers.IntegerField(min_value=0, max_value=1_000_000, allow_null=True, default=None)
    multiplier_bp = serializers.IntegerField(min_value=0, max_value=1_000_000, allow_null=True, default=None)
    follows = serializers.BooleanField(default=False)

    def terms(self) -> reratings.Terms:
        """Return what was asked for."""
        asked = self.validated_data
        found = dict(Tenant.objects.filter(slug__in=asked["tenants"]).values_list("slug", "pk"))
        if unknown := [slug for slug in asked["tenants"] if slug not in found]:
            raise Refusal(400, "invalid_value", f"There is no tenant '{unknown[0]}'.", param="tenants")
        if asked["since"].year < 2000:
            raise Refusal(400, "invalid_value", "Nothing ran so early.", param="since")
        version = None
        if asked["version"] is not None:
            version = RateCardVersion.objects.select_related("card").filter(pk=asked["version"]).first()
            if version is None:
                raise Refusal(400, "invalid_value", "There is no such version.", param="version")
        was, then = asked["multiplier_was"], asked["multiplier_bp"]
        if (was is None) != (then is None):
            raise Refusal(400, "invalid_value", "Give both what it was and what it is.", param="multiplier_bp")
        return reratings.Terms(
            since=asked["since"], until=asked["until"], tenants=list(found.values()), models=asked["models"],
            card=version.card.name if version else "", version=version,
            cards=cards_of_models() if asked["by_model"] else {}, multiplier=None if was is None else (was, then),
            follows=asked["follows"],
        )  # fmt: skip


class ReratingsView(OperatorView):
    """The runs."""

    needs = {"GET": MAY_SEE, "POST": [*MAY_SEE, MAY_ASK]}
    serializer_class = NewReratingSerializer

    @extend_schema(
        operation_id="operator_reratings_list",
        summary="List re-ratings",
        responses={200: ReratingSerializer(many=True)},
    )
    def get(self, request: Request) -> Response:
        """List the newest hundred what-ifs, shadows and re-ratings, the newest first."""
        rows = Rerating.objects.order_by("-created_at")[:MOST]
        return Response(ReratingSerializer(rows, many=True).data)

    @extend_schema(
        operation_id="operator_reratings_create", summary="Begin a what-if", responses={201: ReratingSerializer}
    )
    def post(self, request: Request) -> Response:
        """Begin a what-if, or with `follows` a shadow: what requests would have cost by other prices."""
        asked = NewReratingSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        terms = asked.terms()
        run = done(lambda: reratings.ask(terms, asked_by=str(request.user)))
        return Response(ReratingSerializer(run).data, status=201)


class ReratingView(OperatorView):
    """One run."""

    needs = {"GET": MAY_SEE}
    serializer_class = WholeReratingSerializer

    @extend_schema(operation_id="operator_reratings_retrieve", summary="Show a re-rating")
    def get(self, request: Request, pk: UUID) -> Response:
        """Show one with its differences by model, class and tenant."""
        return Response(WholeReratingSerializer(get_object_or_404(Rerating, pk=pk)).data)


class CommitSerializer(KnownFields):
    """Why requests are charged by other prices."""

    reason = serializers.CharField(max_length=200)


class CommitView(OperatorView):
    """A what-if done for real."""

    needs = {"POST": [*MAY_SEE, MAY_DO]}
    serializer_class = CommitSerializer

    @extend_schema(
        operation_id="operator_reratings_commit", summary="Carry out a what-if", responses={201: ReratingSerializer}
    )
    def post(self, request: Request, pk: UUID) -> Response:
        """Charge requests by the prices of a what-if that has ended. It goes on by itself, as a run of its own."""
        asked = CommitSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        what_if = get_object_or_404(Rerating.objects.select_related("version__card"), pk=pk)
        said = {"asked_by": str(request.user), "reason": asked.validated_data["reason"]}
        run = done(lambda: reratings.carry_out(what_if, **said))
        return Response(ReratingSerializer(run).data, status=201)


class StopView(OperatorView):
    """The end of a run, by who might begin it."""

    needs = {"POST": MAY_SEE}
    serializer_class = ReratingSerializer

    @extend_schema(operation_id="operator_reratings_stop", summary="Stop a re-rating", request=None)
    def post(self, request: Request, pk: UUID) -> Response:
        """End a run where it is; what it did stays."""
        run = get_object_or_404(Rerating, pk=pk)
        if not request.user.has_perm(MAY_DO if run.commit else MAY_ASK):
            raise PermissionDenied(IsOperator.message, code="role_not_allowed")
        if reratings.stop(run):
            record("rerating.stopped", run)
            run.refresh_from_db()
        return Response(ReratingSerializer(run).data)
