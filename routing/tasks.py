"""What a request is for. The most explicit statement decides: field, endpoint, alias, then the plan."""

from __future__ import annotations

from routing.types import RouteQuery

AUTO = "auto"
_OF_ENDPOINTS = {"embedding": "embedding", "score": "rerank"}


def is_automatic(model: str) -> bool:
    """Whether `model` asks Sluice to choose: ``auto`` or ``auto:<task>``."""
    return model == AUTO or model.startswith(f"{AUTO}:")


def detect_task(query: RouteQuery) -> tuple[str, str]:
    """Return the task and its source, which is "field", "endpoint", "alias" or "plan"."""
    if query.task:
        return query.task, "field"
    if task := _OF_ENDPOINTS.get(query.kind):
        return task, "endpoint"
    if query.model.startswith(f"{AUTO}:") and (alias := query.model.partition(":")[2]):
        return alias, "alias"
    return query.plan_default_task, "plan"
