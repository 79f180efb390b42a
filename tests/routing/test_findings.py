"""What is wrong with rules by themselves."""

from __future__ import annotations

import pytest

from routing.findings import findings_of, rules_in_order
from routing.models import Adapter, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model, remove_model

pytestmark = pytest.mark.django_db
PLANS = {"free": ["small"], "max": []}
TASKS = ["chat", "code", "classify"]


def model(name="small", *, context=1000, kinds=("chat",), images=""):
    options = {"images": images} if images else {}
    row = add_model(
        name=name, kinds=kinds, context_length=context, rate_card="c", source="", backend="fake", options=options
    )
    return row.model


def rule(name, *models, fallbacks=(), **more):
    made = RouteRule.objects.create(name=name, **more)
    for one in (*models, *fallbacks):
        RouteTarget.objects.create(rule=made, model=one, is_fallback=one in fallbacks)
    return made


def found(name="late", plans=PLANS):
    judged = findings_of(list(rules_in_order()), plans, TASKS)
    return {one.word for rule, findings in judged.items() for one in findings if rule.name == name}


def test_a_rule_behind_one_for_everything_is_never_reached():
    small = model()
    rule("first", small, priority=1)
    rule("late", small, priority=2, task="code", plan="free")
    assert found() == {"never reached"}
    assert found("first") == set()


@pytest.mark.parametrize(
    "first",
    [
        {"is_active": False},
        {"plan": "free"},
        {"task": "chat"},
        {"structure": "tools"},
        {"min_prompt_tokens": 10},
        {"max_prompt_tokens": 100},
        {"priority": 9},
    ],
    ids=str,
)
def test_one_that_holds_less_often_leaves_it_something(first):
    small = model()
    rule("first", small, **{"priority": 1, **first})
    rule("late", small, priority=2)
    assert found() == set()


@pytest.mark.parametrize(
    "late",
    [
        {"plan": "free"},
        {"task": "chat"},
        {"structure": "tools"},
        {"min_prompt_tokens": 10},
        {"max_prompt_tokens": 100},
        {"min_prompt_tokens": 11, "max_prompt_tokens": 99},
    ],
    ids=str,
)
def test_the_same_or_narrower_conditions_leave_it_nothing(late):
    small = model()
    rule(
        "first", small, **({"priority": 1} | late | ({"min_prompt_tokens": 10} if "min_prompt_tokens" in late else {}))
    )
    rule("late", small, priority=2, **late)
    assert found() == {"never reached"}


def test_a_model_that_takes_more_is_reached_where_the_first_one_cannot_serve():
    rule("first", model(), priority=1)
    late = rule("late", priority=2)
    for other in (
        model("long", context=2000),
        model("vectors", kinds=["embedding"]),
        model("sees", images="data"),
    ):
        late.targets.all().delete()
        RouteTarget.objects.create(rule=late, model=other)
        assert found(plans={"max": []}) == set(), other.name
    late.targets.all().delete()
    RouteTarget.objects.create(rule=late, model=model("short", context=500))
    assert found(plans={"max": []}) == {"never reached"}


def test_a_plan_without_the_first_ones_model_goes_on_to_the_next():
    rule("first", model("big"), priority=1)
    rule("late", model(), priority=2)
    assert found() == set()  # the plan free has only small
    assert found(plans={"max": []}) == {"never reached"}


def test_what_a_plan_doesnt_include_leaves_the_later_one_nothing_there():
    rule("first", model(), priority=1)
    rule("late", model("long", context=2000), priority=2)
    assert found(plans={"free": ["small"]}) == {"never reached"}
    assert found(plans={"free": ["small"], "max": []}) == set()


def test_classifiers_and_adapters_decide_only_some_requests():
    small = model()
    labels = model("labels", kinds=["classification"])
    tuned = PublicModel.objects.create(name="tuned", kinds=["chat"], context_length=1000)
    Adapter.objects.create(model=tuned, base=small, config={}, rank=1, bytes=1)
    rule("first", labels, tuned, priority=1)
    rule("late", small, priority=2)
    assert found() == set()


def test_fallbacks_decide_too():
    small = model()
    rule("first", fallbacks=[small], priority=1)
    rule("late", small, priority=2)
    assert found() == {"never reached"}


def test_names_that_nothing_has_are_told():
    small = model()
    rule("late", small, plan="gone", task="dance")
    assert found() == {"no such plan", "no such task"}


def test_models_that_are_gone_missing_or_not_in_the_plan_are_told():
    gone, big = model("gone"), model("big")
    rule("late", gone, big, plan="free")
    remove_model("gone")
    assert found() == {"no such model", "not in the plan"}
    remove_model("big")
    assert found() == {"no such model", "no model"}
    rule("empty")
    assert found("empty") == {"no model"}


def test_prompts_that_cannot_be_are_told():
    small = model()
    rule("late", small, min_prompt_tokens=50, max_prompt_tokens=20)
    assert found() == {"never reached"}
    rule("too long", small, min_prompt_tokens=5_000, priority=0)
    assert found("too long") == {"never reached"}
