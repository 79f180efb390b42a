"""Usage and costs in buckets of time, from the hourly rollups: the last minutes may be missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from base.units import MICRO
from billing.selectors.usage import TimeSum, usage_by
from control.api.organization.base import Body, OrganizationView, identifier
from gateway.errors.refusal import Refusal
from routing.models import PublicModel

_LATEST = 253_402_300_799 - 366 * 24 * 3600
_EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class Width:
    """A bucket's length, and how many there are on a page."""

    length: timedelta
    usual: int
    most: int


DAY = Width(timedelta(days=1), 7, 31)
_USAGE_WIDTHS = {"1h": Width(timedelta(hours=1), 24, 168), "1d": DAY}
_COST_WIDTHS = {"1d": Width(timedelta(days=1), 7, 180)}


class _BucketsView(OrganizationView):
    """Sums in buckets, grouped as asked."""

    reads = "wallet"
    widths: Mapping[str, Width]
    groups: Mapping[str, str]  # OpenAI's name → the rollups' column

    def buckets(self, shown: Callable[[Body, TimeSum], Body], *, models: list[str] | None = None) -> Response:
        """Return a page of buckets; `models` are those that count, all without."""
        width = self.widths.get(self.request.query_params.get("bucket_width", "1d"))
        if width is None:
            message = f"'bucket_width' is one of {', '.join(self.widths)}."
            raise Refusal(400, "invalid_value", message, param="bucket_width")
        limit = self.number("limit", width.usual, least=1, most=width.most)
        start = self._moment("start_time", None, width)
        page = self.number("page", 0, least=0, most=_LATEST)
        begin = max(start, _floor(datetime.fromtimestamp(page, UTC), width))
        end = begin + limit * width.length
        last = self._moment("end_time", int(datetime.now(UTC).timestamp()) + 1, width, up=True)
        by = self._groups()
        rows = usage_by("hour", self.tenant.id, begin, min(end, last), by=by, models=models, **self._filters())
        found: dict[datetime, dict[tuple[Any, ...], TimeSum]] = defaultdict(dict)
        for row in rows:
            sums = found[_floor(row.at, width)]
            sums[row.group] = sums[row.group].plus(row) if row.group in sums else row
        data = []
        moment = begin
        while moment < min(end, last):
            results = [shown(self._named(by, group), row) for group, row in found[moment].items()]
            period = {"start_time": int(moment.timestamp()), "end_time": int((moment + width.length).timestamp())}
            data.append({"object": "bucket", **period, "results": results})
            moment += width.length
        more = {"has_more": end < last, "next_page": str(int(end.timestamp())) if end < last else None}
        return Response({"object": "page", "data": data, **more})

    def _moment(self, name: str, default: int | None, width: Width, *, up: bool = False) -> datetime:
        moment = datetime.fromtimestamp(self.number(name, default, least=0, most=_LATEST), UTC)
        floor = _floor(moment, width)
        return floor + width.length if up and floor < moment else floor

    def _groups(self) -> list[str]:
        asked = self.several("group_by")
        for name in asked:
            if name not in self.groups:
                message = f"'group_by' is any of {', '.join(self.groups)}."
                raise Refusal(400, "unsupported_parameter", message, param="group_by")
        return [self.groups[name] for name in asked]

    def _filters(self) -> dict[str, list[UUID]]:
        for name in ("user_ids", "batch", "line_items"):
            if self.several(name):
                raise Refusal(400, "unsupported_parameter", f"'{name}' is not supported here.", param=name)
        return {
            "projects": [UUID(identifier(one, "project_ids")) for one in self.several("project_ids")],
            "api_keys": [UUID(identifier(one, "api_key_ids")) for one in self.several("api_key_ids")],
        }

    def _named(self, by: list[str], group: tuple[Any, ...]) -> Body:
        """Return what a result was grouped by, under OpenAI's names, and null for what it wasn't."""
        values = dict(zip(by, group, strict=True))
        return {name: values.get(column) for name, column in self.groups.items()}


class CompletionsUsageView(_BucketsView):
    """Usage of all models but those for embeddings alone, through any API."""

    widths = _USAGE_WIDTHS
    groups = {"project_id": "project", "api_key_id": "api_key", "model": "model"}
    of_embeddings = False

    def get(self, request: Request) -> Response:
        """Sum usage by bucket of time."""
        rows = PublicModel.objects.values_list("name", "kinds")
        embedding = {name for name, kinds in rows if kinds == [_EMBEDDING]}
        asked = self.several("models")
        if self.of_embeddings:
            return self.buckets(self._shown, models=sorted(embedding & set(asked) if asked else embedding))
        known = {name for name, _ in rows} - embedding
        return self.buckets(self._shown, models=sorted(known & set(asked) if asked else known))

    def _shown(self, named: Body, row: TimeSum) -> Body:
        kind = "embeddings" if self.of_embeddings else "completions"
        told = {
            "object": f"organization.usage.{kind}.result",
            "input_tokens": row.input_tokens + row.cache_read_tokens,
            "num_model_requests": row.requests,
            "user_id": None,
            **named,
        }
        if self.of_embeddings:
            return told
        return {**told, "output_tokens": row.output_tokens, "input_cached_tokens": row.cache_read_tokens, "batch": None}


class EmbeddingsUsageView(CompletionsUsageView):
    """Usage of models for embeddings alone."""

    of_embeddings = True


class CostsView(_BucketsView):
    """Charges: the currency is the credit."""

    widths = _COST_WIDTHS
    groups = {"project_id": "project", "api_key_id": "api_key", "line_item": "model"}

    def get(self, request: Request) -> Response:
        """Sum charges by bucket of time; a line item is a model."""
        return self.buckets(self._shown)

    def _shown(self, named: Body, row: TimeSum) -> Body:
        amount = {"value": row.charge / MICRO, "value_micro": row.charge, "currency": "credits"}
        return {"object": "organization.costs.result", "amount": amount, **named}


def _floor(moment: datetime, width: Width) -> datetime:
    """Return when the bucket of a moment begins, in UTC."""
    return moment.replace(
        hour=0 if width.length >= timedelta(days=1) else moment.hour, minute=0, second=0, microsecond=0, tzinfo=UTC
    )
