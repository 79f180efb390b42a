"""The operator's form of a routing rule: its examples and ceilings, and the page that tries a text."""

import pytest
from django.contrib.admin.utils import flatten_fieldsets
from django.test import Client
from django.urls import reverse
from django_scopes import scopes_disabled

from billing.services.plans import ensure_default_plans
from control.admin.rules import RouteRuleAdmin, RouteRuleForm
from routing.catalogue import Ceiling, load
from routing.models import Deployment, PublicModel, RouteRule, RouteTarget
from routing.services.rules import MOST_CHARACTERS, MOST_EXAMPLES, MOST_OF_ALL
from tenancy.models import AuditEvent, User

pytestmark = pytest.mark.django_db
URL = "admin:routing_routerule_add"
RULE_FORM = {
    "name": "r",
    "priority": "1",
    "is_active": "on",
    "least_similarity": "40",
    "ttft_percentile": "50",
    "beyond_ceiling": "refuse",
    "targets-TOTAL_FORMS": "0",
    "targets-INITIAL_FORMS": "0",
}
FORM = {**RULE_FORM, "task": "classify", "examples": " Which label?\r\n\r\nSort this.\r\nWhich label?"}


@pytest.fixture
def operator(db):
    client = Client()
    user = User.objects.create_superuser("root@example.com")
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def errors(page):
    return dict(page.context["adminform"].form.errors)


def test_the_form_shows_all_its_fields():
    assert sorted(flatten_fieldsets(RouteRuleAdmin.fieldsets)) == sorted(RouteRuleForm.Meta.fields)


def test_examples_are_lines_and_each_is_kept_once(operator):
    ensure_default_plans()
    assert operator.post(reverse(URL), FORM).status_code == 302
    rule = RouteRule.objects.get()
    assert (rule.examples, rule.least_similarity) == (["Which label?", "Sort this."], 40)
    with scopes_disabled():
        event = AuditEvent.objects.get(action="route_rule.created")
    assert event.after["examples"] == ["Which label?", "Sort this."]
    page = operator.get(reverse("admin:routing_routerule_change", args=[rule.pk]))
    assert "Which label?\nSort this.</textarea>" in page.content.decode().replace("\r", "")
    [entry] = load().rules
    assert (entry.examples, entry.least_similarity) == (("Which label?", "Sort this."), 0.4)


def test_ceilings_are_typed_in_credits(operator):
    ceiling = {"max_price": "2.5", "max_request_price": "0.01", "max_ttft_ms": "800", "ttft_percentile": "90"}
    assert operator.post(reverse(URL), {**RULE_FORM, **ceiling, "beyond_ceiling": "nearest"}).status_code == 302
    [entry] = load().rules
    assert entry.ceiling == Ceiling(2_500_000, 10_000, 800, 90, is_strict=False)
    listed = operator.get(reverse("admin:routing_routerule_changelist")).content.decode()
    assert "at most 2.5 credits per million output tokens, 0.01 credits for the request, 800 ms" in listed


@pytest.mark.parametrize(
    ("fields", "at", "says"),
    [
        ({"task": ""}, "task", "for a task"),
        ({"examples": "\n".join(f"text {n}" for n in range(MOST_EXAMPLES + 1))}, "examples", "at most 64"),
        ({"examples": "x" * (MOST_CHARACTERS + 1)}, "examples", "501 characters"),
        ({"examples": "Write code."}, "examples", "another task"),
        ({"least_similarity": "0"}, "least_similarity", "greater than or equal to 1"),
        ({"least_similarity": "101"}, "least_similarity", "less than or equal to 100"),
        ({"max_price": "-1"}, "max_price", "below zero"),
        ({"max_price": "cheap"}, "max_price", "not an amount"),
        ({"structure": "poem"}, "structure", "not one of the available"),
        ({"beyond_ceiling": "guess"}, "beyond_ceiling", "not one of the available"),
    ],
)
def test_a_mistake_is_told_at_its_field(operator, fields, at, says):
    RouteRule.objects.create(name="programs", task="code", examples=["Write code."])
    found = errors(operator.post(reverse(URL), {**FORM, **fields}))
    assert set(found) == {at}
    assert says in str(found[at])
    assert RouteRule.objects.count() == 1


def test_all_rules_together_have_a_bound_to_what_is_compared(operator):
    for number in range(MOST_OF_ALL // MOST_EXAMPLES):
        texts = [f"{number} {n}" for n in range(MOST_EXAMPLES)]
        RouteRule.objects.create(name=f"r{number}", task="classify", examples=texts)
    assert "514 examples" in str(errors(operator.post(reverse(URL), FORM))["examples"])
    RouteRule.objects.filter(name="r0").update(is_active=False)
    assert operator.post(reverse(URL), FORM).status_code == 302


def test_a_rule_can_be_changed_at_the_bound(operator):
    rule = RouteRule.objects.create(name="r", task="classify", examples=[f"text {n}" for n in range(MOST_EXAMPLES)])
    data = {**FORM, "examples": "\n".join(rule.examples), "priority": "7"}
    assert operator.post(reverse("admin:routing_routerule_change", args=[rule.pk]), data).status_code == 302
    assert RouteRule.objects.get().priority == 7


def test_a_text_can_be_tried(operator):
    ensure_default_plans()
    model = PublicModel.objects.create(name="general", kinds=["chat"], context_length=100, rate_card="x")
    Deployment.objects.create(name="general-1", model=model, backend="fake")
    rule = RouteRule.objects.create(name="tools first", structure="tools")
    RouteTarget.objects.create(rule=rule, model=model)
    url = reverse("admin:routing_routerule_try_text")
    assert operator.get(url).status_code == 200
    page = operator.post(url, {"plan": "business", "text": "Do it", "tools": "on"})
    assert page.context["decision"].rule == "tools first"
    assert "Rule “tools first” matched" in page.content.decode()
    assert "Request’s task field" in page.content.decode()
    assert "its answer is held" not in page.content.decode()
    other = PublicModel.objects.create(name="other", kinds=["chat"], context_length=100, rate_card="x")
    Deployment.objects.create(name="other-1", model=other, backend="fake")
    RouteTarget.objects.create(rule=rule, model=other)
    data = {"plan": "business", "text": "Do it", "tools": "on"}
    assert operator.post(url, {**data, "models": "none, other"}).context["decision"].model == "other"
    assert operator.post(url, {**data, "conversation": "other"}).context["decision"].model == "other"
    assert "The plan has none" in operator.post(url, {**data, "plan": "free", "models": "none"}).content.decode()
    page = operator.post(url, {"plan": "business", "text": "Do it"})
    assert "No routing rule gives a model" in page.content.decode()
    assert operator.post(url, {"plan": "nothing", "text": ""}).status_code == 400


def test_a_text_that_goes_to_a_specialist_says_that_its_answer_is_held(operator):
    ensure_default_plans()
    model = PublicModel.objects.create(name="sorter", kinds=["classification"], context_length=100, rate_card="x")
    Deployment.objects.create(name="sorter-1", model=model, backend="fake")
    rule = RouteRule.objects.create(name="labels", task="classify", examples=["Which label?"])
    RouteTarget.objects.create(rule=rule, model=model)
    data = {"plan": "business", "text": "Classify it as one of: red, blue.\n\nmy blue car"}
    page = operator.post(reverse("admin:routing_routerule_try_text"), data)
    assert page.context["decision"].task_source == "instruction"
    assert "its answer is held" in page.content.decode()


def test_a_rule_takes_only_plans_and_tasks_that_exist(operator):
    ensure_default_plans()
    url, data = reverse("admin:routing_routerule_add"), RULE_FORM
    page = operator.post(url, {**data, "plan": "bussiness", "task": "sumarize"})
    assert set(page.context["adminform"].form.errors) == {"plan", "task"}
    assert operator.post(url, {**data, "plan": "business", "task": "summarize"}).status_code == 302
    assert operator.post(url, {**data, "name": "any", "plan": "", "task": ""}).status_code == 302
    assert set(RouteRule.objects.values_list("plan", "task")) == {("business", "summarize"), ("", "")}
