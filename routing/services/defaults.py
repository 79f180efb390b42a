"""The routing rules that a fresh installation starts with."""

from __future__ import annotations

from django.db import transaction

from routing.models import PublicModel, RouteRule, RouteTarget

DEFAULT_RULES = (  # name, priority, task, kind of its target
    ("embeddings", 100, "embedding", "embedding"),
    ("ranking", 110, "rerank", "score"),
    ("general chat", 1000, "", "chat"),
)


@transaction.atomic
def ensure_default_routes() -> None:
    """Make sure that ``auto`` has rules for embeddings and ranking and a fallback for chat.

    An existing rule stays as operators changed it, but gets a target when it has no active one.
    """
    models = list(PublicModel.objects.filter(is_active=True))
    for name, priority, task, kind in DEFAULT_RULES:
        fitting = [model for model in models if kind in model.kinds]
        if not fitting:
            continue
        rule, _ = RouteRule.objects.get_or_create(name=name, defaults={"priority": priority, "task": task})
        if not rule.targets.filter(model__is_active=True).exists():
            RouteTarget.objects.get_or_create(rule=rule, model=fitting[0])
