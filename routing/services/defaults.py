"""The routing rules that a fresh installation starts with."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from routing.hook import CLASSIFY
from routing.models import PublicModel, RouteRule, RouteTarget
from routing.services import task_examples

_GENERAL = "general chat"
DEFAULT_RULES = (  # name, priority, task, kind of its target
    ("embeddings", 100, "embedding", "embedding"),
    ("ranking", 110, "rerank", "score"),
    ("classification", 120, "classify", "classification"),
    (_GENERAL, 1000, "", "chat"),
)
TASK_RULES = (  # name, priority, task, examples
    ("labels", 200, "classify", task_examples.CLASSIFY),
    ("fields", 210, "extract", task_examples.EXTRACT),
    ("summaries", 220, "summarize", task_examples.SUMMARIZE),
    ("programs", 230, "code", task_examples.CODE),
    ("talk", 240, "chat", task_examples.TALK),
)


def specialists() -> dict[str, dict[str, Any]]:
    """Return the rows of the shipped specialists' `specialists.toml` by model name, the best of each task first; none
    where there is no such file.
    """
    described = Path(settings.SLUICE_SPECIALISTS) / "specialists.toml"
    return tomllib.loads(described.read_text()) if described.is_file() else {}


@transaction.atomic
def ensure_default_routes() -> None:
    """Make sure that ``auto`` has rules for embeddings, ranking and classification and a fallback for chat.

    An existing rule stays as operators changed it, but gets a target when it has no active one.
    """
    models = _general()
    for name, priority, task, kind in DEFAULT_RULES:
        if target := _target(models, task, kind):
            rule, _ = RouteRule.objects.get_or_create(name=name, defaults={"priority": priority, "task": task})
            _aim(rule, target)


@transaction.atomic
def ensure_task_routes(new: Collection[str] = ()) -> None:
    """Make sure that ``auto`` has a rule with examples for each common task of chats, each to who does it best.

    Nothing is made where no model can compare examples. An existing rule stays as operators changed it; one that sends
    its task where general chat goes, for want of a better model, gets a specialist that is `new` instead.
    """
    models = _general()
    general = _names(RouteRule.objects.filter(name=_GENERAL).first())
    if _target(models, "", "embedding") is None:
        return
    for name, priority, task, examples in TASK_RULES:
        if target := _target(models, task, "chat"):
            fields = {"priority": priority, "task": task, "examples": list(examples)}
            rule, _ = RouteRule.objects.get_or_create(name=name, defaults=fields)
            if target.name in new and rule.task == task and _names(rule) == general:
                rule.targets.all().delete()
            _aim(rule, target)


def aim_anew(rule: RouteRule, kinds: Sequence[str]) -> PublicModel | None:
    """Give a rule without an active model the best one of these `kinds` for its task; None where there is none."""
    found = (_target(_general(), rule.task, kind) for kind in kinds)
    target = next((model for model in found if model is not None), None)
    if target is not None:
        _aim(rule, target)
    return target


def _general() -> list[PublicModel]:
    """Return the active models but tenants' own, by name."""
    return list(PublicModel.objects.filter(is_active=True, tenant=None))


def _target(models: Sequence[PublicModel], task: str, kind: str) -> PublicModel | None:
    """Return the model for the task: a specialist for it, else the first that is no specialist, else the first."""
    fitting = [model for model in models if kind in model.kinds]
    # Whoever classifies answers chats with labels, too: routing gives it those alone.
    able = [model for model in models if task == CLASSIFY and "classification" in model.kinds] if kind == "chat" else []
    named = {model.name: model for model in (*able, *fitting)}
    special = specialists()
    ranked = [named[name] for name, row in special.items() if task in row["tasks"] and name in named]
    return next(iter((*ranked, *(model for model in fitting if model.name not in special), *fitting)), None)


def _names(rule: RouteRule | None) -> set[str]:
    return set() if rule is None else set(rule.targets.values_list("model__name", flat=True))


def _aim(rule: RouteRule, target: PublicModel) -> None:
    if not rule.targets.filter(model__is_active=True).exists():
        RouteTarget.objects.get_or_create(rule=rule, model=target)
