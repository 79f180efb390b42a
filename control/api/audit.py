"""The tenant's audit trail."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from control.api.base import NewestFirst, TenantView
from tenancy.models import AuditEvent


class AuditQuerySerializer(serializers.Serializer[Any]):
    """Query of the audit trail: action, actor and day."""

    action = serializers.CharField(max_length=60, required=False, help_text="Such as key.revoked.")
    actor = serializers.CharField(max_length=254, required=False, help_text="Exactly as the trail shows it.")
    day = serializers.DateField(required=False, help_text="A UTC day.")


class AuditEventSerializer(serializers.ModelSerializer[AuditEvent]):
    """An audit event."""

    user = serializers.UUIDField(source="user_id", allow_null=True)
    api_key = serializers.UUIDField(source="api_key_id", allow_null=True)

    class Meta:
        model = AuditEvent
        fields = [
            "id",
            "at",
            "action",
            "actor",
            "user",
            "api_key",
            "target_type",
            "target_id",
            "target",
            "before",
            "after",
            "address",
            "request",
        ]
        read_only_fields = fields


class AuditView(ListModelMixin, TenantView):
    """The tenant's audit trail: changes and sign-ins."""

    reads = "audit"
    serializer_class = AuditEventSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[AuditEvent]:
        """Return the tenant's events that match the query."""
        query = AuditQuerySerializer(data=self.request.query_params)
        query.is_valid(raise_exception=True)
        wanted = query.validated_data
        events = AuditEvent.objects.of(self.tenant)
        if "day" in wanted:
            events = events.filter(**of_day(wanted["day"]))
        return events.filter(**{name: wanted[name] for name in ("action", "actor") if name in wanted})

    @extend_schema(operation_id="audit_list", summary="List audit events", parameters=[AuditQuerySerializer])
    def get(self, request: Request) -> Response:
        """List the events, newest first. Only owners, admins and management keys may."""
        return self.list(request)


def of_day(day: date) -> dict[str, datetime]:
    """Return the conditions of a UTC day."""
    start = datetime.combine(day, time(), tzinfo=UTC)
    return {"at__gte": start, "at__lt": start + timedelta(days=1)} if day < date.max else {"at__gte": start}
