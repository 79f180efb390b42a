"""API keys: list, create (only that answer has the secret), revoke."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from gateway.api.base import NewestFirst, TenantView
from gateway.errors.refusal import Refusal
from gateway.models import APIKey, Project
from gateway.services import keys
from gateway.services.scopes import SCOPES


class KeySerializer(serializers.ModelSerializer[APIKey]):
    """A key without its secret."""

    project = serializers.UUIDField(source="project_id")

    class Meta:
        model = APIKey
        fields = [
            "id",
            "name",
            "project",
            "prefix",
            "last_four",
            "scopes",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
        ]
        read_only_fields = fields


class NewKeySerializer(serializers.Serializer[Any]):
    """A new key. Without `project`: that of the calling key, or the tenant's oldest."""

    name = serializers.CharField(max_length=120)
    project = serializers.UUIDField(required=False)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=SCOPES), required=False, default=["inference"], min_length=1
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class MadeKeySerializer(KeySerializer):
    """A key with its secret, which no other answer has."""

    secret = serializers.CharField(read_only=True)

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "secret"]
        read_only_fields = fields


@extend_schema_view(get=extend_schema(operation_id="keys_list", summary="List API keys"))
class KeysView(ListModelMixin, TenantView):
    """The tenant's keys."""

    writes = "keys"
    serializer_class = KeySerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[APIKey]:
        """Return the tenant's keys, or those of the asking key's project."""
        return self.access.keys()

    def get(self, request: Request) -> Response:
        """List the keys, newest first, revoked ones included. A key sees those of its own project."""
        return self.list(request)

    @extend_schema(
        operation_id="keys_create",
        summary="Make an API key",
        request=NewKeySerializer,
        responses={201: MadeKeySerializer},
    )
    def post(self, request: Request) -> Response:
        """Make a key; its `secret` can't be had again. A key made by a key is bounded by it and ends with it."""
        wanted = NewKeySerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        data = wanted.validated_data
        by = self.access.key
        if not self.access.may_give_scopes(data["scopes"]):
            message = 'Only owners, admins and management keys make management keys: leave out the scope "management".'
            if by is not None:
                message = f"A key gives no scope that it lacks: this one has {', '.join(by.scopes)}."
            raise Refusal(403, "role_not_allowed", message, param="scopes")
        projects = Project.objects.of(self.tenant).filter(is_active=True).order_by("created_at", "id")
        if by is not None:
            projects = projects.filter(id=by.project_id)
        project = (projects.filter(id=data["project"]) if "project" in data else projects).first()
        if project is None:
            raise Refusal(400, "invalid_value", "No such project.", param="project")
        key, secret = keys.create_key(
            tenant=self.tenant,
            project=project,
            name=data["name"],
            scopes=data["scopes"],
            expires_at=data["expires_at"],
            created_by=self.access.user,
            parent=by,
        )
        answer = {**KeySerializer(key).data, "secret": secret}
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


@extend_schema_view(get=extend_schema(operation_id="keys_retrieve", summary="Show an API key"))
class KeyView(RetrieveModelMixin, TenantView):
    """One key."""

    serializer_class = KeySerializer

    def get_queryset(self) -> QuerySet[APIKey]:
        """Return the tenant's keys, or those of the asking key's project."""
        return self.access.keys()

    def get(self, request: Request, pk: str) -> Response:
        """Show the key."""
        return self.retrieve(request)


class KeyRevokeView(TenantView):
    """The end of one key."""

    writes = "keys"
    serializer_class = KeySerializer

    @extend_schema(
        operation_id="keys_revoke", summary="Revoke an API key", request=None, responses={200: KeySerializer}
    )
    def post(self, request: Request, pk: str) -> Response:
        """Revoke the key and those that it made: within a second no process takes them any more."""
        key = get_object_or_404(self.access.keys(), pk=pk)
        if not self.access.may_revoke(key):
            message = "Members revoke only the keys that they made, and a key none that it comes from."
            raise Refusal(403, "role_not_allowed", message)
        keys.revoke_key(tenant=self.tenant, key=key)
        return Response(KeySerializer(key).data)
