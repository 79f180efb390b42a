"""The dry run: where a request would go now, and why, without running it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Subscription
from control.api.authentication import AnyKeyAuthentication, TenantSessionAuthentication, manages
from control.api.base import TenantView
from control.api.parsers import KnownFields
from gateway.errors.refusal import Refusal
from gateway.generation.dry_run import Wanted, dry_run
from gateway.runtime.data_plane import live_of
from routing.types import OUTCOMES, SOURCES, STEPS
from tenancy.models import APIKey
from tenancy.services.scopes import SENDS, expanded

_KEY = "What its API key is for, at most what the caller's own is; none: that, or all models of the plan."
_CONVERSATION = "The model that its conversation has; empty: it begins one."
_TEXT = "What is asked: compared with the rules' examples, and stored nowhere."


class QuerySerializer(KnownFields):
    """A request as routing sees it."""

    model = serializers.CharField(max_length=120, default="auto")
    kind = serializers.ChoiceField(choices=["chat", "embedding", "score", "classification"], default="chat")
    task = serializers.CharField(max_length=40, allow_null=True, default=None)
    text = serializers.CharField(max_length=20_000, allow_blank=True, default="", help_text=_TEXT)
    prompt_characters = serializers.IntegerField(
        min_value=0, max_value=100_000_000, allow_null=True, default=None, help_text="Without it the text's length."
    )
    max_tokens = serializers.IntegerField(min_value=1, max_value=2**31 - 1, allow_null=True, default=None)
    tools = serializers.BooleanField(default=False, help_text="Whether it has tools, or answers of tools.")
    schema = serializers.BooleanField(default=False, help_text="Whether its answer has a schema or grammar.")
    images = serializers.ChoiceField(choices=["none", "data", "urls"], default="none")
    models = serializers.ListField(
        child=serializers.CharField(max_length=120), max_length=200, default=list, help_text=_KEY
    )
    conversation = serializers.CharField(max_length=120, allow_blank=True, default="", help_text=_CONVERSATION)


class CandidateSerializer(serializers.Serializer[Any]):
    """A model, deployment or replica considered; `rejected` is the reason against it, empty for the chosen one."""

    model = serializers.CharField()
    deployment = serializers.CharField()
    node = serializers.CharField()
    load = serializers.IntegerField(allow_null=True)
    matched = serializers.IntegerField(allow_null=True)
    rejected = serializers.CharField()


class SimilaritySerializer(serializers.Serializer[Any]):
    """How near the text comes to the nearest example of a rule, from -1 to 1."""

    rule = serializers.CharField()
    similarity = serializers.FloatField()


class SignalSerializer(serializers.Serializer[Any]):
    """A step of the decision: what it found, and whether it decided."""

    step = serializers.ChoiceField(choices=STEPS)
    outcome = serializers.ChoiceField(choices=OUTCOMES)
    value = serializers.CharField()
    similarities = SimilaritySerializer(many=True, required=False)


class DecisionSerializer(serializers.Serializer[Any]):
    """The decision with its reason."""

    model = serializers.CharField()
    deployment = serializers.CharField()
    node = serializers.CharField()
    task = serializers.CharField()
    task_source = serializers.ChoiceField(choices=SOURCES)
    rule = serializers.CharField()
    reason = serializers.CharField()
    signals = SignalSerializer(many=True)
    candidates = CandidateSerializer(many=True)


class RouteExplainView(TenantView):
    """Routing without running: tells a key no more than the usage of a request tells that it may send."""

    authentication_classes = [AnyKeyAuthentication, TenantSessionAuthentication]
    writes = "read"
    serializer_class = QuerySerializer

    @extend_schema(
        operation_id="routes_explain",
        summary="Explain a routing decision",
        request=QuerySerializer,
        responses={200: DecisionSerializer},
        examples=[OpenApiExample("A chat", {"model": "auto", "text": "Where is my order?"}, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        """Return where such a request would go now, why, and what would be passed over. An inference key needs
        the scope `usage.read` and one of those that send such a request.
        """
        wanted = QuerySerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        asked = Wanted(**wanted.validated_data)
        if (key := self.access.key) is not None and not manages(key):
            asked = _as_sent_by(key, asked)
        active = Subscription.objects.filter(tenant=self.tenant, state=Subscription.State.ACTIVE)
        subscription = active.select_related("version__plan").first()
        if subscription is None:
            raise Refusal(403, "no_subscription", "This tenant has no active subscription.")
        live = live_of(request._request)  # noqa: SLF001 - DRF's documented way to Django's request
        project = None if key is None else key.project_id
        decision = dry_run(live, subscription.version, asked, self.tenant.id, project)
        return Response(DecisionSerializer(decision.explain()).data)


def _as_sent_by(key: APIKey, wanted: Wanted) -> Wanted:
    """Return the request as an inference key sends it; raise the Refusal of one that it can't."""
    if not SENDS[wanted.kind] & expanded(key.scopes):
        raise Refusal(403, "insufficient_scope", f"This key sends no requests of the kind '{wanted.kind}'.")
    if key.allowed_models and not set(wanted.models) <= set(key.allowed_models):
        raise Refusal(400, "invalid_value", "This key isn't for all of these models.", param="models")
    return replace(wanted, models=wanted.models or key.allowed_models)
