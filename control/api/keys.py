"""API keys: list, create and rotate (only these answers have a secret), change, revoke.

People and admin keys do all of it; a management key lists those of its project.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from control.api.authentication import AdminKeyAuthentication, KeyAuthentication, TenantSessionAuthentication
from control.api.base import NewestFirst, TenantView
from control.api.parsers import KnownFields
from gateway.errors.refusal import Refusal
from tenancy.models import APIKey, Project
from tenancy.services import keys
from tenancy.services.networks import MOST_NETWORKS
from tenancy.services.restrictions import LIMITS, Restrictions, spending_of, with_spending
from tenancy.services.scopes import SCOPES

_WRITERS: Any = [{"adminKey": []}, {"session": []}]  # a key makes no keys


class KeySerializer(serializers.ModelSerializer[APIKey]):
    """A key without its secret. Limits and what was spent are in µcr; days and months are those of UTC.

    After a rotation the secret before it works until `previous_until`.
    """

    project = serializers.UUIDField(source="project_id")
    day_limit = serializers.IntegerField(source="spending.limits.day_limit", default=None, allow_null=True)
    month_limit = serializers.IntegerField(source="spending.limits.month_limit", default=None, allow_null=True)
    total_limit = serializers.IntegerField(source="spending.limits.total_limit", default=None, allow_null=True)
    day_spent = serializers.SerializerMethodField()
    month_spent = serializers.SerializerMethodField()
    total_spent = serializers.SerializerMethodField()

    class Meta:
        model = APIKey
        fields = [
            "id",
            "name",
            "project",
            "prefix",
            "last_four",
            "scopes",
            "allowed_models",
            "networks",
            *LIMITS,
            "day_spent",
            "month_spent",
            "total_spent",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
            "rotated_at",
            "previous_last_four",
            "previous_until",
        ]
        read_only_fields = fields

    def to_representation(self, instance: APIKey) -> dict[str, Any]:
        """Return the key, its spending read."""
        spending_of(instance)
        return super().to_representation(instance)

    def get_day_spent(self, key: APIKey) -> int | None:
        """Return what the key spent today; None where its spend was never limited, and so not counted."""
        return spending_of(key).day

    def get_month_spent(self, key: APIKey) -> int | None:
        """Return what it spent this month."""
        return spending_of(key).month

    def get_total_spent(self, key: APIKey) -> int | None:
        """Return what it spent since it was first limited."""
        return spending_of(key).total


class KeyTermsSerializer(KnownFields):
    """A key's name, scopes, expiry and limits. Empty lists and null restrict nothing."""

    name = serializers.CharField(max_length=120)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=SCOPES), required=False, default=["inference"], min_length=1
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=120),
        required=False,
        default=[],
        help_text="Public names of models; `auto` chooses among them.",
    )
    networks = serializers.ListField(
        child=serializers.CharField(max_length=60),
        required=False,
        default=[],
        max_length=MOST_NETWORKS,
        help_text="IP networks (CIDR, v4 or v6) that it may be used from.",
    )

    def get_fields(self) -> dict[str, Any]:
        """Return the fields, those of the limits among them: credits are in µcr, days and months those of UTC."""
        limits = {
            name: serializers.IntegerField(
                required=False,
                allow_null=True,
                default=None,
                min_value=limit.least,
                max_value=limit.most,
                help_text=f"{'µcr' if limit.in_credits else limit.unit.capitalize()} {limit.period}.",
            )
            for name, limit in LIMITS.items()
        }
        return {**super().get_fields(), **limits}


class NewKeySerializer(KeyTermsSerializer):
    """A new key. Without `project` it is of the tenant's oldest."""

    project = serializers.UUIDField(required=False)


class RotationSerializer(KnownFields):
    """The time for which the replaced secret still works."""

    overlap_hours = serializers.IntegerField(
        required=False, default=24, min_value=0, max_value=keys.LONGEST_OVERLAP // timedelta(hours=1)
    )


class MadeKeySerializer(KeySerializer):
    """A key with its secret, which no other answer has."""

    secret = serializers.CharField(read_only=True)

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "secret"]
        read_only_fields = fields


class OfKeys(TenantView):
    """A view of keys, for admin keys too."""

    authentication_classes = [AdminKeyAuthentication, KeyAuthentication, TenantSessionAuthentication]
    writes = "keys"
    serializer_class: type[serializers.BaseSerializer[Any]] = KeySerializer

    def get_queryset(self) -> QuerySet[APIKey]:
        """Return the tenant's keys, or those of the asking key's project."""
        return self.access.keys()

    def paginate_queryset(self, queryset: Any) -> list[Any] | None:
        """Return a page of keys, the spending of all read at once."""
        page = super().paginate_queryset(queryset)
        return None if page is None else with_spending(page)

    def own_key(self, pk: str) -> APIKey:
        """Return the key; raise a 403 Refusal where it isn't the caller's to change."""
        key: APIKey = get_object_or_404(self.get_queryset(), pk=pk)
        if not self.access.may_revoke(key):
            raise Refusal(403, "role_not_allowed", "Members change and revoke only the keys that they made.")
        return key

    def refuse_scopes(self, scopes: list[str]) -> None:
        """Raise a 403 Refusal where the caller may give no key these scopes."""
        if not self.access.may_give_scopes(scopes):
            message = 'Only owners, admins and admin keys make management keys: leave out the scope "management".'
            raise Refusal(403, "role_not_allowed", message, param="scopes")


@extend_schema_view(get=extend_schema(operation_id="keys_list", summary="List API keys"))
class KeysView(ListModelMixin, OfKeys):
    """The tenant's keys."""

    pagination_class = NewestFirst

    def get(self, request: Request) -> Response:
        """List the keys, newest first, revoked ones included. A key sees those of its own project."""
        return self.list(request)

    @extend_schema(
        operation_id="keys_create",
        summary="Make an API key",
        request=NewKeySerializer,
        responses={201: MadeKeySerializer},
        auth=_WRITERS,
    )
    def post(self, request: Request) -> Response:
        """Make a key; its `secret` can't be had again.

        A person's keys are revoked when they are removed from the tenant. One that an admin key makes stays; with the
        scope `management` it is of the owner whose admin key it is.
        """
        wanted = NewKeySerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        data = wanted.validated_data
        self.refuse_scopes(data["scopes"])
        projects = Project.objects.of(self.tenant).filter(is_active=True).order_by("created_at", "id")
        project = (projects.filter(id=data["project"]) if "project" in data else projects).first()
        if project is None:
            raise Refusal(400, "invalid_value", "No such project.", param="project")
        key, secret = keys.create_key(
            tenant=self.tenant,
            project=project,
            name=data["name"],
            scopes=data["scopes"],
            expires_at=data["expires_at"],
            restrictions=Restrictions.named(data),
            created_by=self.access.maker_of(data["scopes"]),
        )
        return _with_secret(key, secret, status.HTTP_201_CREATED)


@extend_schema_view(get=extend_schema(operation_id="keys_retrieve", summary="Show an API key"))
class KeyView(RetrieveModelMixin, OfKeys):
    """One key."""

    def get(self, request: Request, pk: str) -> Response:
        """Show the key."""
        return self.retrieve(request)

    @extend_schema(
        operation_id="keys_change",
        summary="Change an API key",
        request=KeyTermsSerializer(partial=True),
        responses={200: KeySerializer},
        auth=_WRITERS,
    )
    def patch(self, request: Request, pk: str) -> Response:
        """Change the fields that are given; every process goes by them within a second.

        Members only narrow the keys that they made: scopes, models, networks, limits and end. Owners, admins and admin
        keys also widen them.
        """
        key = self.own_key(pk)
        wanted = KeyTermsSerializer(data=request.data, partial=True)
        wanted.is_valid(raise_exception=True)
        self.refuse_scopes(wanted.validated_data.get("scopes", key.scopes))
        changed = keys.change_key(
            tenant=self.tenant,
            key=key,
            change=wanted.validated_data,
            by=self.access.person,
            only_narrows=self.access.only_narrows,
        )
        return Response(KeySerializer(changed).data)


class KeyRotateView(OfKeys):
    """A new secret of one key."""

    serializer_class = RotationSerializer

    @extend_schema(
        operation_id="keys_rotate",
        summary="Rotate an API key",
        request=RotationSerializer,
        responses={200: MadeKeySerializer},
        auth=_WRITERS,
    )
    def post(self, request: Request, pk: str) -> Response:
        """Make a new `secret`, which can't be had again; the one before works on for `overlap_hours`."""
        key = self.own_key(pk)
        wanted = RotationSerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        self.refuse_scopes(key.scopes)
        overlap = timedelta(hours=wanted.validated_data["overlap_hours"])
        rotated, secret = keys.rotate_key(tenant=self.tenant, key=key, overlap=overlap)
        return _with_secret(rotated, secret, status.HTTP_200_OK)


class KeyEndPreviousView(OfKeys):
    """The early end of the secret that a rotation replaced."""

    @extend_schema(
        operation_id="keys_end_previous",
        summary="End a key's previous secret",
        request=None,
        responses={200: KeySerializer},
        auth=_WRITERS,
    )
    def post(self, request: Request, pk: str) -> Response:
        """End the secret from before the last rotation now."""
        return Response(KeySerializer(keys.end_previous(tenant=self.tenant, key=self.own_key(pk))).data)


class KeyRevokeView(OfKeys):
    """The end of one key."""

    @extend_schema(
        operation_id="keys_revoke",
        summary="Revoke an API key",
        request=None,
        responses={200: KeySerializer},
        auth=_WRITERS,
    )
    def post(self, request: Request, pk: str) -> Response:
        """Revoke the key: within a second no process takes it any more."""
        key = self.own_key(pk)
        keys.revoke_key(tenant=self.tenant, key=key)
        return Response(KeySerializer(key).data)


def _with_secret(key: APIKey, secret: str, code: int) -> Response:
    answer = {**KeySerializer(key).data, "secret": secret}
    return Response(answer, status=code, headers={"Cache-Control": "no-store"})
