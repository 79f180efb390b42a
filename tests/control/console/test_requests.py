"""The page of a request tells each step of its routing, to its tenant and to operators, and nothing of it is markup."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from billing.models import CostSample, UsageRecord
from routing.types import STEP_TITLES
from tenancy.models import User

pytestmark = pytest.mark.django_db
HOSTILE = '<img src=x onerror="alert(1)">'
ROUTE = {
    "reason": f"Rule “{HOSTILE}” matched.",
    "task": "extract",
    "task_source": "examples",
    "rule": HOSTILE,
    "signals": [
        {"step": "field", "outcome": "passed", "value": "the request doesn't say its task"},
        {
            "step": "examples",
            "outcome": "decided",
            "value": "91 % similar",
            "similarities": [{"rule": HOSTILE, "similarity": 0.912}, {"rule": "talk", "similarity": -0.01}],
        },
        {"step": "plan", "outcome": "skipped", "value": "the task was known before"},
        {"step": "conversation", "outcome": "decided", "value": "it keeps desk"},
        {"step": "ceiling", "outcome": "abstained", "value": "nothing holds it"},
    ],
    "candidates": [
        {"model": "big", "deployment": "", "rejected": HOSTILE},
        {"model": "desk", "deployment": "desk", "rejected": ""},
    ],
}


def text_of(response):
    page = response.content.decode()
    assert HOSTILE not in page
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_the_tenant_sees_every_step(acme, used):
    request = used(acme, route=ROUTE)
    text = text_of(acme.client().get(reverse("console-request", args=[request])))
    name = "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;"
    steps = (
        "Request’s task field : the request doesn&#x27;t say its task · passed",
        f"Nearest example : 91 % similar · decided By rule: {name} 91.2 % · talk -1.0 %",
        "Plan’s default : the task was known before · skipped",
        "Conversation : it keeps desk · decided",
        "Ceiling : nothing holds it · abstained",
    )
    assert " ".join(steps) in text
    assert f"big · passed over: {name}" in text
    assert f"Task extract (nearest example) · rule “{name}”" in text


@pytest.mark.parametrize(
    ("held_to", "told"),
    [
        (2, "held to one of 2 labels"),
        ("json_object", "held to JSON"),
        ("json_schema", "held to JSON with the fields that it names"),
    ],
)
def test_what_the_answer_was_held_to_is_told(acme, used, held_to, told):
    request = used(acme, route={**ROUTE, "held_to": held_to})
    response = acme.client().get(reverse("console-request", args=[request]))
    assert f"{told}</p>" in response.content.decode()


def test_an_operator_sees_every_step(acme, used):
    record = UsageRecord.objects.get(request=used(acme, route=ROUTE))
    client = Client()
    operator = User.objects.create_superuser("operator@x.example")
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    text = text_of(client.get(reverse("admin:billing_usagerecord_change", args=[record.pk])))
    assert "talk -1.0 %" in text
    assert "91 % similar" in text
    assert "conversation decided it keeps desk" in text


@pytest.mark.parametrize("route", [{}, {"reason": "You asked for desk."}])
def test_a_request_without_steps_shows_none(acme, used, route):
    request = used(acme, route=route)
    text = text_of(acme.client().get(reverse("console-request", args=[request])))
    assert "Steps" not in text
    assert (route.get("reason") or "The route was not kept.") in text


def test_the_chat_page_calls_the_steps_as_the_other_pages_do():
    script = Path(settings.BASE_DIR, "static/chat/meter.js").read_text()
    assert [step for step, title in STEP_TITLES.items() if f'  {step}: "{title}",' not in script] == []


def test_only_operators_see_what_a_request_cost_them(acme, used):
    operator, user = Client(), User.objects.create_superuser("operator@x.example")
    operator.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    request = used(acme, charge=4_000)
    record = UsageRecord.objects.get(request=request)
    address = reverse("operate-request", args=[request])
    assert "It cost you" not in text_of(operator.get(address))
    CostSample.objects.create(
        deployment=record.deployment, name="d", model="m", device="d", seconds={}, price={"hour": 1}, proposal={},
        rates={"input": 300_000_000}, residual=0.0, recovery=1.0, created_at=record.reserved_at,
    )  # fmt: skip
    assert "It cost you 0.003 credits, margin 25 %, by the calibration" in text_of(operator.get(address))
    assert "It cost you" not in text_of(operator.get(f"{address}?view=tenant"))
    assert "It cost you" not in text_of(acme.client().get(reverse("console-request", args=[request])))
