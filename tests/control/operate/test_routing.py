"""The operator's rules: in order, with what is wrong, changed and tried."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django_scopes import scopes_disabled

from routing.catalogue import Ceiling, load
from routing.models import RouteRule
from routing.services.rules import MOST_CHARACTERS, MOST_EXAMPLES, MOST_OF_ALL
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


NEW = {
    "name": "r",
    "is_active": "on",
    "least_similarity": "40",
    "ttft_percentile": "50",
    "beyond_ceiling": "refuse",
    "targets-TOTAL_FORMS": "0",
    "targets-INITIAL_FORMS": "0",
}
LABELS = {**NEW, "task": "classify", "examples": "Which label?"}


@pytest.mark.parametrize(
    ("fields", "at", "says"),
    [
        ({"task": ""}, "task", "for a task"),
        ({"task": "sumarize", "examples": ""}, "task", "not one of the available"),
        ({"plan": "bussiness"}, "plan", "not one of the available"),
        ({"examples": "\n".join(f"text {n}" for n in range(MOST_EXAMPLES + 1))}, "examples", "at most 64"),
        ({"examples": "x" * (MOST_CHARACTERS + 1)}, "examples", "501 characters"),
        ({"examples": "Write code."}, "examples", "another task"),
        ({"least_similarity": "0"}, "least_similarity", "greater than or equal to 1"),
        ({"least_similarity": "101"}, "least_similarity", "less than or equal to 100"),
        ({"max_price": "-1"}, "max_price", "above zero"),
        ({"max_price": "cheap"}, "max_price", "Write credits like 12.5"),
        ({"structure": "poem"}, "structure", "not one of the available"),
        ({"beyond_ceiling": "guess"}, "beyond_ceiling", "not one of the available"),
    ],
)
def test_a_mistake_in_a_rule_is_told_at_its_field(operator, fields, at, says):
    RouteRule.objects.create(name="programs", task="code", examples=["Write code."])
    answer = operator.post(reverse("operate-rule-new"), {**LABELS, **fields})
    found = dict(answer.context["form"].errors)
    assert (answer.status_code, set(found)) == (400, {at})
    assert says in str(found[at])
    assert RouteRule.objects.count() == 1


def test_all_rules_together_have_a_bound_to_what_is_compared(operator):
    for number in range(MOST_OF_ALL // MOST_EXAMPLES):
        texts = [f"{number} {n}" for n in range(MOST_EXAMPLES)]
        RouteRule.objects.create(name=f"r{number}", task="classify", examples=texts)
    new, full = reverse("operate-rule-new"), RouteRule.objects.get(name="r1")
    assert "513 examples" in str(operator.post(new, LABELS).context["form"].errors["examples"])
    at_bound = {**LABELS, "name": "r1", "examples": "\n".join(full.examples), "max_price": "2.5"}
    assert operator.post(reverse("operate-rule", args=[full.pk]), at_bound).status_code == 302
    assert RouteRule.objects.get(name="r1").max_price == 2_500_000
    RouteRule.objects.filter(name="r0").update(is_active=False)
    assert operator.post(new, LABELS).status_code == 302


def test_what_a_rule_says_is_what_requests_are_routed_by(operator):
    ceiling = {"max_price": "2.5", "max_request_price": "0.01", "max_ttft_ms": "800", "ttft_percentile": "90"}
    operator.post(reverse("operate-rule-new"), {**LABELS, **ceiling, "beyond_ceiling": "nearest"})
    [entry] = load().rules
    assert entry.ceiling == Ceiling(2_500_000, 10_000, 800, 90, is_strict=False)
    assert (entry.examples, entry.least_similarity) == (("Which label?",), 0.4)


def test_a_try_takes_tools_the_conversation_and_the_keys_models_into_account(operator):
    rule_to(fake(), fake("other"), name="tools first", structure="tools")
    page = reverse("operate-routing")
    asked = {"plan": "business", "text": "Do it", "kind": "chat", "images": "none", "model": "auto", "tools": "on"}

    def tried(**more):
        return operator.post(page, {**asked, **more}).context["tried"]

    assert tried().route.rule == "tools first"
    assert tried(models="none, other").route.model == "other"
    assert tried(conversation="other").route.model == "other"
    assert "The plan has none" in tried(plan="free", models="none").refused
    assert "No routing rule gives a model" in tried(tools="").refused


def test_a_text_that_goes_to_a_specialist_is_told_by_its_instruction(operator):
    sorter = fake("sorter", kinds=["classification"])
    RouteRule.objects.filter(pk=rule_to(sorter, name="labels", task="classify").pk).update(examples=["Which label?"])
    text = "Classify it as one of: red, blue.\n\nmy blue car"
    asked = {"plan": "business", "text": text, "kind": "chat", "images": "none", "model": "auto"}
    answer = operator.post(reverse("operate-routing"), asked)
    assert answer.context["tried"].route.task_source == "instruction"
    assert "its answer is held" in text_of(answer)
