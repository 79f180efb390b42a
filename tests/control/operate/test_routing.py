"""The operator's rules: in order, with what is wrong, changed and tried."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django_scopes import scopes_disabled

from routing.models import RouteRule
from tenancy.models import AuditEvent
from tests.control.operate.test_models import fake, operator, rule_to, signed_in, text_of

__all__ = ["operator"]
pytestmark = pytest.mark.django_db


def order():
    return list(RouteRule.objects.order_by("priority", "name").values_list("name", flat=True))


@pytest.fixture
def rules(operator):
    model = fake()
    return [rule_to(model, name=name, priority=number) for number, name in enumerate("abcd")]


def form_of(page):
    """Return what a browser would send of the rule's form."""
    sent = {}
    for one in (page.context["form"], *page.context["targets"]):
        for field in one:
            value = field.value()
            if value is True:
                sent[field.html_name] = "on"
            elif value not in (None, "", False):
                sent[field.html_name] = field.field.prepare_value(value)
    for field in page.context["targets"].management_form:
        sent[field.html_name] = field.value()
    return sent


def test_rules_stand_in_their_order_with_targets_weights_and_findings(operator):
    small, big = fake(), fake("big")
    rule_to(small, big, name="code", priority=5, task="code")
    RouteRule.objects.get(name="code").targets.filter(model=big).update(weight=3)
    rule_to(small, name="everything", priority=10)
    rule_to(big, name="too late", priority=20, task="code")
    rule_to(big, name="of nobody", priority=1, plan="gone")
    page = text_of(operator.get(reverse("operate-routing")))
    assert page.index(">of nobody<") < page.index(">code<") < page.index(">everything<") < page.index(">too late<")
    row = page[page.index(">code<") : page.index(">everything<")]
    assert "Task code" in row
    assert "75.0 %" in row
    assert "25.0 %" in row
    assert "no such plan" in page[page.index(">of nobody<") : page.index(">code<")]
    last = page[page.index(">too late<") :]
    assert "never reached" in last
    assert "“code” comes first" in last
    assert "never reached" not in page[: page.index(">too late<")]


def test_a_rule_is_moved_by_buttons_and_by_a_drop(operator, rules):
    a, b, c, d = rules

    def place(rule, **how):
        return operator.post(reverse("operate-rule-place", args=[rule.pk]), how)

    assert place(c, move="up").url.endswith(f"#rule-{c.pk}")
    assert order() == ["a", "c", "b", "d"]
    place(c, move="down")
    place(d, move="down")
    place(a, move="up")
    assert order() == ["a", "b", "c", "d"]
    place(a, before="")
    assert order() == ["b", "c", "d", "a"]
    place(a, before=str(b.pk))
    assert order() == ["a", "b", "c", "d"]
    place(d, before=str(b.pk))
    place(d, before="nothing")
    assert order() == ["a", "d", "b", "c"]
    with scopes_disabled():
        assert AuditEvent.objects.filter(action="route_rule.changed").exists()
    assert signed_in("v@example.com", "viewer").post(reverse("operate-rule-place", args=[a.pk])).status_code == 403


def test_a_move_changes_no_more_rules_than_it_has_to(operator, rules):
    a, _, _, d = rules
    RouteRule.objects.filter(name="b").update(priority=100)
    RouteRule.objects.filter(name="c").update(priority=200)
    RouteRule.objects.filter(name="d").update(priority=300)
    with scopes_disabled():
        before = AuditEvent.objects.filter(action="route_rule.changed").count()
        operator.post(reverse("operate-rule-place", args=[d.pk]), {"before": str(RouteRule.objects.get(name="c").pk)})
        assert order() == ["a", "b", "d", "c"]
        assert AuditEvent.objects.filter(action="route_rule.changed").count() == before + 1
    assert a.priority == RouteRule.objects.get(name="a").priority


def test_a_rule_is_switched_off_and_on(operator, rules):
    switch = reverse("operate-rule-switch", args=[rules[0].pk])
    operator.post(switch, {"off": "1"})
    assert not RouteRule.objects.get(name="a").is_active
    assert "off" in text_of(operator.get(reverse("operate-routing")))
    RouteRule.objects.filter(name="a").update(examples=["Same."], task="code")
    RouteRule.objects.filter(name="b").update(examples=["Same."], task="chat")
    told = text_of(operator.post(switch, {"on": "1"}, follow=True))
    assert "a stays off: “Same.” is an example of another task too" in told
    RouteRule.objects.filter(name="b").update(examples=[])
    operator.post(switch, {"on": "1"})
    assert RouteRule.objects.get(name="a").is_active


def test_a_rule_is_made_and_changed_with_its_targets(operator):
    fake()
    fake("big")
    page = operator.get(reverse("operate-rule-new"), {"model": "big"})
    sent = form_of(page)
    assert sent["targets-0-model"] == "big"
    sent |= {"name": "code", "task": "code", "examples": "Sort it.\r\n\r\nMend it.\r\nSort it.", "max_price": "2.5"}
    wrong = operator.post(page.request["PATH_INFO"], {**sent, "targets-1-model": "nothing", "task": ""})
    assert wrong.status_code == 400
    assert set(wrong.context["form"].errors) == {"task"}
    assert "There is no model “nothing”" in text_of(wrong)
    twice = operator.post(page.request["PATH_INFO"], {**sent, "targets-1-model": "big"})
    assert "big stands here twice" in text_of(twice)
    sent |= {"targets-1-model": "small", "targets-1-weight": "4", "targets-1-is_fallback": "on"}
    made = operator.post(page.request["PATH_INFO"], sent)
    rule = RouteRule.objects.get()
    assert made.url == f"{reverse('operate-routing')}#rule-{rule.pk}"
    assert (rule.priority, rule.examples, rule.max_price) == (10, ["Sort it.", "Mend it."], 2_500_000)
    targets = {one.model.name: (one.weight, one.is_fallback) for one in rule.targets.all()}
    assert targets == {"big": (1, False), "small": (4, True)}
    change = reverse("operate-rule", args=[rule.pk])
    sent = form_of(operator.get(change))
    assert sent["max_price"] == "2.5"
    del sent["targets-1-is_fallback"]
    operator.post(change, {**sent, "targets-0-model": "", "max_price": "", "min_prompt_tokens": "100"})
    rule.refresh_from_db()
    assert (rule.max_price, rule.min_prompt_tokens) == (None, 100)
    assert [(one.model.name, one.is_fallback) for one in rule.targets.all()] == [("small", False)]
    with scopes_disabled():
        actions = set(AuditEvent.objects.values_list("action", flat=True))
    assert {"route_rule.created", "route_target.created", "route_target.deleted", "route_target.changed"} <= actions


def test_a_rule_of_a_plan_that_is_gone_keeps_it_until_it_is_changed(operator):
    rule = rule_to(fake(), name="old", plan="gone", task="gone")
    change = reverse("operate-rule", args=[rule.pk])
    page = operator.get(change)
    assert "gone (there is none)" in text_of(page)
    assert operator.post(change, form_of(page)).status_code == 302
    assert operator.post(change, {**form_of(page), "name": ""}).status_code == 400


def test_a_rule_is_deleted_with_its_name(operator, rules):
    page = reverse("operate-rule-delete", args=[rules[0].pk])
    assert operator.post(page, {"name": "b"}).status_code == 400
    assert operator.post(page, {"name": "a"}).status_code == 302
    assert order() == ["b", "c", "d"]


def test_a_request_is_tried_beside_the_rules_with_its_price(operator):
    rule_to(fake(), name="general")
    page = reverse("operate-routing")
    answer = operator.post(
        page, {"plan": "business", "text": "x" * 400, "kind": "chat", "images": "none", "model": "auto"}
    )
    told = text_of(answer)
    assert "Rule “general” matched" in told
    tried = answer.context["tried"]
    assert (tried.tokens, [(word, line.tokens, line.amount) for word, line in tried.lines]) == (
        100, [("Input", 100, 1_000), ("Output", 256, 10_240)]
    )  # fmt: skip
    assert tried.total == 11_240
    refused = operator.post(page, {"plan": "free", "kind": "embedding", "images": "none", "model": "auto"})
    assert "No routing rule gives a model" in text_of(refused)
    wrong = operator.post(
        page, {"plan": "business", "kind": "chat", "images": "none", "model": "auto", "tenant": "nobody"}
    )
    assert "There is no tenant “nobody”" in text_of(wrong)
    assert '<details class="twin" open>' in text_of(wrong)
    long = {"plan": "business", "kind": "chat", "images": "none", "model": "auto", "prompt_tokens": "5000"}
    assert operator.post(page, long).context["tried"].tokens == 5_000
