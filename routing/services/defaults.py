"""The routes that a fresh installation starts with."""

from __future__ import annotations

from django.db import transaction

from routing.models import PublicModel, RouteRule, RouteTarget

DEFAULT_RULES = (
    ("embeddings", 100, "embedding", "embedding"),
    ("general chat", 1000, "", "chat"),
)


@transaction.atomic
def ensure_default_routes() -> None:
    """Make sure that ``auto`` has a rule for embeddings and a last one for chat.

    A rule that exists keeps what operators made of it, unless it has no target at all.
    """
    models = list(PublicModel.objects.filter(is_active=True))
    for name, priority, task, kind in DEFAULT_RULES:
        fitting = [model for model in models if kind in model.kinds]
        if not fitting:
            continue
        rule, _ = RouteRule.objects.get_or_create(name=name, defaults={"priority": priority, "task": task})
        if not rule.targets.filter(model__is_active=True).exists():
            RouteTarget.objects.get_or_create(rule=rule, model=fitting[0])
