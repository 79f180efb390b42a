"""Usage by UTC day, split by model, API key or project."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.selectors.usage import usage_by_day
from control.api.base import TenantView
from control.api.wallet import AmountSerializer

LONGEST = timedelta(days=366)
EARLIEST = date(2000, 1, 1)
SPLITS = ("model", "api_key", "project")


class UsageQuerySerializer(serializers.Serializer[Any]):
    """Query of usage: period, split and filters."""

    first = serializers.DateField(required=False, help_text="First UTC day; 29 days before `last` by default.")
    last = serializers.DateField(required=False, help_text="Last UTC day, today by default.")
    by = serializers.MultipleChoiceField(choices=SPLITS, default=set, help_text="Repeat it to split by several.")
    project = serializers.UUIDField(required=False)
    api_key = serializers.UUIDField(required=False)
    model = serializers.CharField(max_length=120, default="")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Fill in the period, and bound it."""
        today = datetime.now(tz=UTC).date()
        # No usage lies in the future, and dates near the calendar's end would overflow.
        attrs["last"] = min(attrs.get("last") or today, today + LONGEST)
        if attrs["last"] < EARLIEST:
            raise serializers.ValidationError({"last": f"There is nothing before {EARLIEST.isoformat()}."})
        attrs["first"] = attrs.get("first") or attrs["last"] - timedelta(days=29)
        if attrs["first"] > attrs["last"]:
            raise serializers.ValidationError({"first": "The first day is after the last."})
        if attrs["last"] - attrs["first"] > LONGEST:
            raise serializers.ValidationError({"first": f"A period has at most {LONGEST.days} days."})
        return attrs


class UsageRowSerializer(serializers.Serializer[Any]):
    """Sums of one day; what wasn't split by is null."""

    day = serializers.DateField()
    model = serializers.CharField(allow_null=True)
    api_key = serializers.UUIDField(allow_null=True)
    project = serializers.UUIDField(allow_null=True)
    requests = serializers.IntegerField()
    input_tokens = serializers.IntegerField(help_text="Without those read from the prefix cache.")
    cache_read_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField(help_text="Those of reasoning included.")
    charge = AmountSerializer()


class UsageSerializer(serializers.Serializer[Any]):
    """The rows of a period, by day."""

    first = serializers.DateField()
    last = serializers.DateField()
    data = UsageRowSerializer(many=True)  # type: ignore[assignment] # a field named like a property


class UsageView(TenantView):
    """The tenant's usage by day."""

    serializer_class = UsageSerializer

    @extend_schema(operation_id="usage_list", summary="Show usage by day", parameters=[UsageQuerySerializer])
    def get(self, request: Request) -> Response:
        """Sum usage per day, from hourly rollups: the last minutes may be missing."""
        query = UsageQuerySerializer(data=request.query_params)
        query.is_valid(raise_exception=True)
        wanted = query.validated_data
        rows = usage_by_day(
            self.tenant.id,
            wanted["first"],
            wanted["last"],
            by=wanted["by"],
            project=wanted.get("project"),
            api_key=wanted.get("api_key"),
            model=wanted["model"],
        )
        return Response(UsageSerializer({"first": wanted["first"], "last": wanted["last"], "data": rows}).data)
