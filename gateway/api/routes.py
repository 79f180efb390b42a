"""The dry run: where a request would go now, and why, without running it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Subscription
from gateway.api.base import TenantView
from gateway.errors.refusal import Refusal
from gateway.runtime.live import live_of
from routing.routes import route
from routing.types import RouteQuery


class QuerySerializer(serializers.Serializer[Any]):
    """A request as routing sees it."""

    model = serializers.CharField(max_length=120, default="auto")
    kind = serializers.ChoiceField(choices=["chat", "embedding", "score"], default="chat")
    task = serializers.CharField(max_length=40, allow_null=True, default=None)
    prompt_characters = serializers.IntegerField(min_value=0, max_value=100_000_000, default=0)


class CandidateSerializer(serializers.Serializer[Any]):
    """What was looked at; `rejected` says why it was passed over, empty for the chosen one."""

    model = serializers.CharField()
    deployment = serializers.CharField()
    node = serializers.CharField()
    load = serializers.IntegerField(allow_null=True)
    matched = serializers.IntegerField(allow_null=True)
    rejected = serializers.CharField()


class DecisionSerializer(serializers.Serializer[Any]):
    """The decision with its reason."""

    model = serializers.CharField()
    deployment = serializers.CharField()
    node = serializers.CharField()
    task = serializers.CharField()
    task_source = serializers.ChoiceField(choices=["field", "endpoint", "alias", "plan"])
    rule = serializers.CharField()
    reason = serializers.CharField()
    candidates = CandidateSerializer(many=True)


class RouteExplainView(TenantView):
    """Routing without running."""

    writes = "read"
    serializer_class = QuerySerializer

    @extend_schema(
        operation_id="routes_explain",
        summary="Explain a routing decision",
        request=QuerySerializer,
        responses={200: DecisionSerializer},
    )
    def post(self, request: Request) -> Response:
        """Return where such a request would go now, why, and what would be passed over."""
        wanted = QuerySerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        active = Subscription.objects.filter(tenant=self.tenant, state=Subscription.State.ACTIVE)
        subscription = active.select_related("version__plan").first()
        if subscription is None:
            raise Refusal(403, "no_subscription", "This tenant has no active subscription.")
        version = subscription.version
        query = RouteQuery(
            plan=version.plan.slug,
            plan_default_task=version.default_task,
            allowed_models=frozenset(version.allowed_models),
            **wanted.validated_data,
        )
        live = live_of(request._request)  # noqa: SLF001 - DRF's documented way to Django's request
        decision = route(query, live.catalogue(), live)
        return Response(DecisionSerializer(decision.explain()).data)
